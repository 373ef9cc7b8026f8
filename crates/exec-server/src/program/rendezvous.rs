//! Runs a rendezvous: open the store, bind, print the URL, serve, drain.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use exec_server_host::service_manager::{
    PassedSocket, PassedSocketsError, ServiceManager, ServiceState,
};
use exec_server_rendezvous::{
    ADMIN_SOCKET_FILE, Bus, Directory, DirectoryError, NatsDirectory, RedbDirectory, Rendezvous,
    RendezvousConfig, Routing, TunnelTimes,
};
use exec_server_telemetry::AuditLog;
use exec_server_transport::{SelfSigned, TlsFiles, TlsServer, self_signed};
use tokio::time::{Instant, sleep};

use super::door::certificate_names;
use super::otlp::{self, Export};
use super::reload::{Reloadable, Reloading, notify};
use super::serve::{ServiceContext, Signals};
use super::sockets::{only_tcp_socket, warn_of_unused};
use crate::cli::cluster::Store;
use crate::cli::rendezvous::{HttpListenUrl, RendezvousOptions};

/// How long to wait while a command that manages tokens holds the store open.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The time over which a stopping node moves its environments to other nodes.
const CLUSTER_DRAIN_SPREAD: Duration = Duration::from_secs(10);

pub(super) fn run(
    options: &RendezvousOptions,
    context: ServiceContext,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot create the event loop")?;
    let otlp = otlp::settings("exec-server-rendezvous")?;
    let outcome = runtime.block_on(serve(options, ServiceContext { otlp, ..context }));
    // The lookup of a collector's name may hang; do not wait for it.
    runtime.shutdown_background();
    outcome
}

async fn serve(options: &RendezvousOptions, context: ServiceContext) -> anyhow::Result<ExitCode> {
    if let Err(error) = exec_server_host::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files to the hard limit");
    }
    let mut signals = Signals::new().context("cannot handle signals")?;
    let ServiceContext { manager: ServiceManager { notifier, sockets }, running, otlp } = context;
    let listen = options.listen.as_ref().context("--listen is required")?;
    let endpoint = Endpoint::find(listen, options, sockets)?;
    let store = match options.tls_self_signed {
        true => options.store.store_beside_certificate(),
        false => options.store.store()?,
    };
    let directory = open(&store).await?;
    let tls = certificate(options, &endpoint)?.map(Arc::new);
    let audit_log = options.audit_log.clone().map(AuditLog::open).transpose()?.map(Arc::new);
    let config = RendezvousConfig {
        audit_log: audit_log.clone(),
        public_url: options.public_url.clone(),
        tls: tls.clone(),
        insecure: options.insecure,
        metrics: options.metrics,
        routing: routing(&store, options.advertise.clone()).await?,
        admin_socket: match &store {
            Store::Directory(data) => Some(data.join(ADMIN_SOCKET_FILE)),
            Store::Cluster(_) => None,
        },
        drain_spread: match &store {
            Store::Directory(_) => Duration::ZERO,
            Store::Cluster(_) => CLUSTER_DRAIN_SPREAD,
        },
        ..RendezvousConfig::new(endpoint.address)
    };
    let service = match endpoint.socket {
        None => Rendezvous::bind(config, directory).await?,
        Some(socket) => Rendezvous::from_socket(config, socket, directory).await?,
    };
    let reloadable = Reloadable {
        audit_log,
        authenticator: None,
        tls: tls.clone(),
        settings: running,
        notifier: notifier.clone(),
    };
    let reloading = Reloading::start(reloadable).context("cannot handle signals")?;
    let mut export = Export::new(otlp, service.metrics_registry());
    if let Some(tracer) = export.traces()? {
        service.set_tracer(tracer);
    }
    let metrics = service.metrics();
    export.metrics(move || Some(metrics()))?;
    announce(service.url()).context("cannot write the URL to standard output")?;
    if let Some(tls) = tls.filter(|_| options.tls_self_signed) {
        // A failure to write this line is harmless.
        let _ = writeln!(io::stderr(), "certificate fingerprint: {}", tls.fingerprint());
    }
    notify(&notifier, ServiceState::Ready, "serving");
    service
        .serve_until(async {
            tokio::select! {
                _ = signals.next() => {}
                () = reloading.terminal_closed() => {}
            }
            notify(&notifier, ServiceState::Stopping, "shutting down");
            tracing::info!("shutting down");
        })
        .await;
    export.finish(&mut signals).await;
    Ok(ExitCode::SUCCESS)
}

/// Selects the routing. Nodes that peers cannot dial individually exchange frames over NATS.
async fn routing(store: &Store, advertised_url: Option<String>) -> anyhow::Result<Routing> {
    match (store, advertised_url) {
        (Store::Cluster(options), None) => {
            let bus = Bus::connect(options, TunnelTimes::default()).await?;
            Ok(Routing::Bus(Arc::new(bus)))
        }
        (_, advertised_url) => Ok(Routing::Direct { advertised_url }),
    }
}

async fn open(store: &Store) -> anyhow::Result<Arc<dyn Directory>> {
    match store {
        Store::Directory(data) => Ok(Arc::new(open_embedded(data).await?)),
        Store::Cluster(options) => {
            let directory = NatsDirectory::connect(options).await;
            Ok(Arc::new(directory.context("cannot use the cluster")?))
        }
    }
}

async fn open_embedded(data: &Path) -> anyhow::Result<RedbDirectory> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match RedbDirectory::open(data) {
            Err(DirectoryError::InUse { .. }) if Instant::now() < deadline => {
                sleep(RETRY_INTERVAL).await;
            }
            Err(DirectoryError::InUse { .. }) => {
                bail!(
                    "another process, most likely another rendezvous, uses the store in {}; give \
                     this rendezvous its own --data",
                    data.display()
                )
            }
            opened => {
                return opened
                    .with_context(|| format!("cannot open the store in {}", data.display()));
            }
        }
    }
}

struct Endpoint {
    address: SocketAddr,
    is_tls: bool,
    /// The socket from the service manager.
    socket: Option<TcpListener>,
}

impl Endpoint {
    fn find(
        listen: &HttpListenUrl,
        options: &RendezvousOptions,
        passed: Result<Vec<PassedSocket>, PassedSocketsError>,
    ) -> anyhow::Result<Self> {
        match listen {
            HttpListenUrl::Address { address, is_tls } => {
                warn_of_unused(passed);
                Ok(Self { address: *address, is_tls: *is_tls, socket: None })
            }
            HttpListenUrl::Systemd(name) => {
                let socket = only_tcp_socket(name.as_deref(), passed)?;
                let address = socket
                    .local_addr()
                    .context("cannot use the socket from the service manager")?;
                let is_tls = options.tls_cert.is_some() || options.tls_self_signed;
                Ok(Self { address, is_tls, socket: Some(socket) })
            }
        }
    }
}

fn certificate(
    options: &RendezvousOptions,
    endpoint: &Endpoint,
) -> anyhow::Result<Option<TlsServer>> {
    let files = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        _ if options.tls_self_signed => {
            let address = endpoint.address.ip();
            let urls = [&options.public_url, &options.advertise];
            let hosts = urls.into_iter().flatten().filter_map(|url| host_of(url));
            let names = certificate_names([address].into_iter(), hosts);
            let data = options.store.data.as_ref().expect("clap requires --data");
            let SelfSigned { certificate, key } = self_signed(&data.join("tls"), names)?;
            Some((certificate, key))
        }
        _ => None,
    };
    let is_tls = endpoint.is_tls;
    ensure!(
        is_tls || files.is_none(),
        "a certificate requires --listen https://IP:PORT; http:// does not use TLS"
    );
    ensure!(
        !is_tls || files.is_some(),
        "https:// requires a certificate: give --tls-cert and --tls-key, or --tls-self-signed"
    );
    let load = |(certificate, key)| TlsServer::load(TlsFiles { certificate, key, client_ca: None });
    Ok(files.map(load).transpose()?)
}

/// Returns the host of a URL, if it is valid as a name in a certificate.
fn host_of(url: &str) -> Option<String> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    let is_name = |host: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        !host.is_empty() && host.bytes().all(is_part)
    };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => authority.split(':').next()?,
    };
    (is_name(host) || host.parse::<IpAddr>().is_ok()).then(|| host.to_owned())
}

/// Prints the URL, the only line on standard output.
fn announce(url: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{url}")?;
    stdout.flush()
}
