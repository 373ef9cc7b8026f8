//! The options that select where a rendezvous keeps its state.

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
    /// Share the state of a cluster through these NATS servers: nats://HOST[:PORT][,…]
    #[arg(id = "servers", long = "cluster", value_name = "URLS", value_delimiter = ',')]
    servers: Vec<String>,
    /// Authenticate to NATS with the credentials in this file
    #[arg(long, value_name = "FILE", requires = "servers", value_hint = ValueHint::FilePath)]
    nats_creds: Option<PathBuf>,
    /// Use TLS, and trust NATS servers whose certificate is signed by an authority in this PEM file
    #[arg(long, value_name = "FILE", requires = "servers", value_hint = ValueHint::FilePath)]
    nats_tls_ca: Option<PathBuf>,
    /// How many NATS servers store the state: 1, 3 or 5 [default: the existing number, or 1 for new
    /// state]
    #[arg(long, value_name = "NUMBER", requires = "servers", value_parser = parse_replicas)]
    replicas: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Store {
    Directory(PathBuf),
    Cluster(NatsOptions),
}

impl StoreOptions {
    pub(crate) fn store(&self) -> anyhow::Result<Store> {
        ensure!(
            self.data.is_none() || self.cluster.servers.is_empty(),
            "--data and --cluster both say where to keep the state; give only one of them"
        );
        Ok(self.store_beside_certificate())
    }

    /// Like [`Self::store`], but allows `--data` beside `--cluster`: a cluster node keeps its
    /// certificate, but no state, in the data directory.
    pub(crate) fn store_beside_certificate(&self) -> Store {
        match self.cluster.nats() {
            Some(options) => Store::Cluster(options),
            None => {
                let data = self.data.as_ref().expect("clap requires --data or --cluster");
                Store::Directory(data.clone())
            }
        }
    }
}

impl ClusterOptions {
    /// Returns `None` without `--cluster`.
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
