//! The options that say where a rendezvous keeps its state.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, ValueHint};
use exec_server_rendezvous::NatsOptions;

pub(super) const CLUSTER: &str = "Cluster";

/// Where a rendezvous keeps its tokens and registrations
#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// The data directory of the rendezvous
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "servers",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterOptions,
}

#[derive(Debug, Args)]
#[command(next_help_heading = CLUSTER)]
pub(crate) struct ClusterOptions {
    /// Share the state of a cluster, in these NATS servers: nats://HOST[:PORT][,…]
    #[arg(id = "servers", long = "cluster", value_name = "URLS", value_delimiter = ',')]
    servers: Vec<String>,
    /// Prove who this is to NATS with the credentials in this file
    #[arg(long, value_name = "FILE", requires = "servers", value_hint = ValueHint::FilePath)]
    nats_creds: Option<PathBuf>,
    /// Use TLS, and trust NATS servers that an authority in this PEM file vouches for
    #[arg(long, value_name = "FILE", requires = "servers", value_hint = ValueHint::FilePath)]
    nats_tls_ca: Option<PathBuf>,
    /// How many NATS servers keep the state: 1, 3 or 5 [default: as many as do, or 1 if it is new]
    #[arg(long, value_name = "NUMBER", requires = "servers", value_parser = parse_replicas)]
    replicas: Option<usize>,
}

/// The place itself.
#[derive(Debug)]
pub(crate) enum Store {
    Directory(PathBuf),
    Cluster(NatsOptions),
}

impl StoreOptions {
    pub(crate) fn store(&self) -> anyhow::Result<Store> {
        ensure!(
            self.data.is_none() || self.cluster.servers.is_empty(),
            "--data and --cluster name two places for one state; give one of them"
        );
        Ok(self.store_beside_certificate())
    }

    /// The data directory of a node of a cluster has its certificate, and no state.
    pub(crate) fn store_beside_certificate(&self) -> Store {
        match self.cluster.nats() {
            Some(options) => Store::Cluster(options),
            None => {
                let data = self.data.as_ref().expect("one of both is required");
                Store::Directory(data.clone())
            }
        }
    }
}

impl ClusterOptions {
    /// `None` if no cluster is named.
    pub(crate) fn nats(&self) -> Option<NatsOptions> {
        let Self { servers, nats_creds, nats_tls_ca, replicas } = self;
        (!servers.is_empty()).then(|| NatsOptions {
            servers: servers.clone(),
            credentials: nats_creds.clone(),
            tls_ca: nats_tls_ca.clone(),
            replicas: *replicas,
        })
    }
}

fn parse_replicas(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(replicas @ (1 | 3 | 5)) => Ok(replicas),
        _ => Err("expected 1, 3 or 5".to_owned()),
    }
}
