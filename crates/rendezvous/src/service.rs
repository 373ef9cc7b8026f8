//! The service: binds, serves, sweeps, and shuts down so that its peers reconnect at once.

use std::future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use exec_server_telemetry::otlp::Tracer;
use exec_server_telemetry::{MetricsRegistry, MetricsSnapshot};
use exec_server_transport::{BindError, CloseCode, Connection, HttpListener, HttpListenerOptions};
use hyper::Uri;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};
use uuid::Uuid;

use crate::admin::AdminSocket;
use crate::audit::Audit;
use crate::authentication::Authentication;
use crate::config::{RendezvousConfig, Routing};
use crate::directory::{Directory, Revocation};
use crate::handler::{Handler, SharedHandler, local_url};
use crate::metrics::RendezvousMetrics;
use crate::quota::PerKey;
use crate::registry::Registry;
use crate::router::Router;
use crate::sockets::Admission;
use crate::status::StatusPage;
use crate::trace::RequestTracer;
use crate::tunnel::{Bus, BusError, NodeInbox};

const LONGEST_SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum BindRendezvousError {
    #[error(
        "refusing to listen on {address} without TLS, since tokens would be sent unencrypted; \
         listen on https:// with --tls-cert and --tls-key or --tls-self-signed, or add --insecure \
         if a TLS proxy is in front"
    )]
    NeedsTls { address: SocketAddr },
    #[error("peers cannot reach {address}; set the URL of the service with --public-url URL")]
    NeedsPublicUrl { address: SocketAddr },
    /// `url` is shown without user, query and fragment.
    #[error(
        "{option} {url:?} is not valid; expected http://HOST[:PORT][/PATH] or https://…, without \
         user, query or fragment"
    )]
    PublicUrl { option: &'static str, url: String },
    #[error(
        "refusing {option} {url} without TLS, since tokens would be sent unencrypted; use \
         https://, or add --insecure"
    )]
    PlainPublicUrl { option: &'static str, url: String },
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("cannot create the administration socket {}", path.display())]
    AdminSocket { path: PathBuf, source: io::Error },
}

/// A bound rendezvous. Its peers find it at [`url`](Self::url).
#[derive(Debug)]
pub struct Rendezvous {
    handler: Arc<Handler>,
    listener: HttpListener<Admission>,
    tunnels: Option<(Arc<Bus>, NodeInbox)>,
    url: String,
    sweep_interval: Duration,
    renew_interval: Duration,
    drain_spread: Duration,
    drain_timeout: Duration,
    _admin: Option<AdminSocket>,
}

impl Rendezvous {
    /// Binds and responds to requests; [`serve_until`](Self::serve_until) serves the sockets. Needs
    /// a runtime.
    pub async fn bind(
        config: RendezvousConfig,
        directory: Arc<dyn Directory>,
    ) -> Result<Self, BindRendezvousError> {
        Self::new(config, None, directory).await
    }

    /// Like [`Self::bind`], on a listening socket; [`RendezvousConfig::listen`] is ignored.
    pub async fn from_socket(
        mut config: RendezvousConfig,
        socket: TcpListener,
        directory: Arc<dyn Directory>,
    ) -> Result<Self, BindRendezvousError> {
        config.listen = socket.local_addr().map_err(|source| BindError::Passed { source })?;
        Self::new(config, Some(socket), directory).await
    }

    async fn new(
        config: RendezvousConfig,
        socket: Option<TcpListener>,
        directory: Arc<dyn Directory>,
    ) -> Result<Self, BindRendezvousError> {
        let address = config.listen;
        let is_tls = config.tls.is_some();
        if !address.ip().is_loopback() && !is_tls && !config.insecure {
            return Err(BindRendezvousError::NeedsTls { address });
        }
        let public = config.public_url.as_deref();
        let public = public.map(|url| PublicUrl::parse("--public-url", url)).transpose()?;
        let advertised = match &config.routing {
            Routing::Direct { advertised_url } => advertised_url.as_deref(),
            Routing::Bus(_) => None,
        };
        let advertised = advertised.map(|url| PublicUrl::parse("--advertise", url)).transpose()?;
        let urls = || public.iter().chain(&advertised);
        if let Some(PublicUrl { option, url, .. }) = urls().find(|url| !url.is_safe)
            && !config.insecure
        {
            return Err(BindRendezvousError::PlainPublicUrl { option, url: url.clone() });
        }
        if public.is_none() && address.ip().is_unspecified() {
            return Err(BindRendezvousError::NeedsPublicUrl { address });
        }
        let options = listener_options(&config, urls().map(|url| url.host.clone()).collect());
        let node = Uuid::new_v4().simple().to_string();
        let tunnels = match config.routing.bus() {
            Some(bus) => Some((Arc::clone(bus), bus.subscribe_node(&node).await?)),
            None => None,
        };
        let mut made = None;
        let make_handler = |bound| {
            let url = public.map_or_else(|| local_url(bound, is_tls), |public| public.url);
            let node_url = advertised.map_or_else(|| url.clone(), |advertised| advertised.url);
            let handler = Arc::new(new_handler(&config, Arc::clone(&directory), node, &node_url));
            made = Some((url, Arc::clone(&handler)));
            SharedHandler(handler)
        };
        let listener = match socket {
            None => HttpListener::bind(address, options, make_handler).await?,
            Some(socket) => HttpListener::from_tcp(socket, options, make_handler)?,
        };
        let (url, handler) = made.expect("a bound listener has made its handler");
        let admin = config.admin_socket.as_ref().map(|path| {
            let failed = |source| BindRendezvousError::AdminSocket { path: path.clone(), source };
            AdminSocket::bind(path, directory).map_err(failed)
        });
        let shortest = config.stream_grace.min(config.environment_grace) / 4;
        Ok(Self {
            handler,
            listener,
            tunnels,
            url,
            sweep_interval: shortest.clamp(Duration::from_millis(5), LONGEST_SWEEP_INTERVAL),
            renew_interval: config.renew_interval,
            drain_spread: config.drain_spread,
            drain_timeout: config.drain_timeout,
            _admin: admin.transpose()?,
        })
    }

    /// Returns the base URL at which peers reach the registry.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the metrics registry, which also counts failed exports.
    #[must_use]
    pub fn metrics_registry(&self) -> &MetricsRegistry {
        self.handler.metrics.registry()
    }

    pub fn metrics(&self) -> impl Fn() -> MetricsSnapshot + Send + use<> {
        let handler = Arc::clone(&self.handler);
        move || handler.metrics()
    }

    pub fn set_tracer(&self, tracer: Tracer) {
        self.handler.tracer.set(tracer);
    }

    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until `shutdown` resolves, and then closes all sockets with "service restart".
    pub async fn serve_until(mut self, shutdown: impl Future<Output = ()>) {
        let mut upkeep = Upkeep::new(&self);
        let mut followers = JoinSet::new();
        if let Some((bus, NodeInbox { opens, moves })) = self.tunnels.take() {
            upkeep.sockets.spawn(Arc::clone(&self.handler).serve_tunnels(bus, opens));
            followers.spawn(Arc::clone(&self.handler).follow_moves(moves));
        }
        self.run(&mut upkeep, shutdown).await;
        self.leave(&mut upkeep).await;
        self.drain(upkeep.sockets).await;
        if let Some(audit) = &self.handler.audit {
            audit.flush();
        }
    }

    /// Does all the work of the service until `end` resolves.
    async fn run(&mut self, upkeep: &mut Upkeep, end: impl Future<Output = ()>) {
        tokio::pin!(end);
        loop {
            let handler = Arc::clone(&self.handler);
            if upkeep.missed_revocations && upkeep.rechecks.is_empty() {
                upkeep.missed_revocations = false;
                let handler = Arc::clone(&handler);
                upkeep.rechecks.spawn(async move { handler.close_all_revoked().await });
            }
            tokio::select! {
                (connection, admission) = self.listener.accept() => {
                    upkeep.sockets.spawn(async move { handler.serve(connection, admission).await });
                }
                Some(_) = upkeep.sockets.join_next() => {}
                _ = upkeep.sweep.tick() => {
                    handler.router.sweep(Instant::now(), SystemTime::now());
                    handler.registry.forget_idle(Instant::now());
                    handler.authentication.forget_idle(Instant::now());
                    let is_ready = handler.directory.is_reachable() && !handler.is_leaving();
                    self.listener.readiness().set_degraded(!is_ready);
                    if upkeep.moved_checks.is_empty() {
                        upkeep.moved_checks.spawn(async move { handler.follow_moved().await });
                    }
                }
                Some(_) = upkeep.moved_checks.join_next() => {}
                _ = upkeep.renew.tick(), if upkeep.renewals.is_empty() => {
                    upkeep.renewals.spawn(async move { handler.renew_all().await });
                }
                Some(_) = upkeep.renewals.join_next() => {}
                revocation = next_revocation(&mut upkeep.revocations) => match revocation {
                    Revocation::Revoked(credential) => handler.router.close_credential(&credential),
                    Revocation::Missed => upkeep.missed_revocations = true,
                },
                Some(_) = upkeep.rechecks.join_next() => {}
                () = &mut end => break,
            }
        }
    }

    /// Sends environments to other nodes, one after another over `drain_spread`: all at once would
    /// cause a burst of registrations there. Harnesses of the remaining environments are still
    /// admitted.
    async fn leave(&mut self, upkeep: &mut Upkeep) {
        self.handler.is_leaving.store(true, Ordering::Relaxed);
        self.listener.readiness().set_degraded(true);
        let environments = self.handler.router.online();
        let count = u32::try_from(environments.len()).unwrap_or(u32::MAX);
        let Some(pause) = self.drain_spread.checked_div(count).filter(|it| !it.is_zero()) else {
            return;
        };
        let handler = Arc::clone(&self.handler);
        upkeep.sockets.spawn(async move { handler.tell_status().await });
        for (environment, _) in environments {
            self.handler.router.close_environment(&environment);
            self.run(upkeep, sleep(pause)).await;
        }
    }

    /// Closes all sockets. The listener stays open: until the end, health checks succeed and
    /// readiness checks fail.
    async fn drain(&mut self, mut sockets: JoinSet<()>) {
        self.handler.draining.send_replace(true);
        self.listener.readiness().drain();
        self.handler.router.close_all();
        let ended = async {
            loop {
                tokio::select! {
                    joined = sockets.join_next() => if joined.is_none() { break },
                    (mut connection, _) = self.listener.accept() => {
                        sockets.spawn(async move {
                            let Connection { outgoing, .. } = &mut connection;
                            outgoing.close(CloseCode::Restart, "service restart").await;
                        });
                    }
                }
            }
        };
        let _ = timeout(self.drain_timeout, ended).await;
    }
}

struct Upkeep {
    sockets: JoinSet<()>,
    renewals: JoinSet<()>,
    /// Checks whether environments that were lost here have connected to another node.
    moved_checks: JoinSet<()>,
    /// Checks whether the credentials of all sockets are still valid.
    rechecks: JoinSet<()>,
    missed_revocations: bool,
    revocations: broadcast::Receiver<Revocation>,
    sweep: Interval,
    renew: Interval,
}

impl Upkeep {
    fn new(service: &Rendezvous) -> Self {
        Self {
            sockets: JoinSet::new(),
            renewals: JoinSet::new(),
            moved_checks: JoinSet::new(),
            rechecks: JoinSet::new(),
            missed_revocations: false,
            revocations: service.handler.directory.watch_revocations(),
            sweep: every(service.sweep_interval),
            renew: every(service.renew_interval),
        }
    }
}

/// `hosts`: the names of the service.
fn listener_options(config: &RendezvousConfig, hosts: Vec<String>) -> HttpListenerOptions {
    HttpListenerOptions {
        // Beyond loopback any name is allowed: a page of another site has no token.
        allowed_hosts: match config.listen.ip().is_loopback() {
            true => hosts,
            false => Vec::new(),
        },
        tls: config.tls.clone(),
        insecure: config.insecure,
        keep_alive: config.keep_alive,
        handshake_timeout: config.handshake_timeout,
        ..HttpListenerOptions::default()
    }
}

async fn next_revocation(revocations: &mut broadcast::Receiver<Revocation>) -> Revocation {
    match revocations.recv().await {
        Ok(revocation) => revocation,
        Err(RecvError::Lagged(_)) => Revocation::Missed,
        // Never happens: the handler holds the directory, which holds the sender.
        Err(RecvError::Closed) => future::pending().await,
    }
}

/// `node_url`: as `http://` or `https://`.
fn new_handler(
    config: &RendezvousConfig,
    directory: Arc<dyn Directory>,
    node: String,
    node_url: &str,
) -> Handler {
    let router = Arc::new(Router::new(config));
    let node_url = format!("ws{}", node_url.strip_prefix("http").expect("the URL was checked"));
    let registry =
        Registry::new(config, Arc::clone(&directory), Arc::clone(&router), &node, node_url);
    let is_open = config.listen.ip().is_loopback() && config.public_url.is_none();
    Handler {
        authentication: Authentication::new(Arc::clone(&directory), &config.quotas),
        directory,
        registry,
        router,
        status: StatusPage::new(is_open, &config.routing),
        metrics: RendezvousMetrics::new(config.audit_log.clone()),
        serves_metrics: config.metrics,
        audit: config.audit_log.clone().map(Audit::new),
        tracer: RequestTracer::default(),
        is_leaving: AtomicBool::new(false),
        node,
        bus: config.routing.bus().cloned(),
        moves: PerKey::new(|| watch::Sender::new(String::new())),
        draining: watch::Sender::new(false),
    }
}

#[derive(Debug)]
struct PublicUrl {
    /// The command-line option that sets the URL.
    option: &'static str,
    /// Without a slash at the end.
    url: String,
    host: String,
    /// Whether requests to the URL are encrypted, or cannot leave this machine.
    is_safe: bool,
}

impl PublicUrl {
    fn parse(option: &'static str, text: &str) -> Result<Self, BindRendezvousError> {
        let invalid = || {
            let (url, query) = text.split_once(['?', '#']).unwrap_or((text, ""));
            let shown = match query.contains('@') {
                // Perhaps a password with one of these characters.
                true => "…",
                false => url.rsplit('@').next().unwrap_or_default(),
            };
            BindRendezvousError::PublicUrl { option, url: shown.to_owned() }
        };
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let (Some(scheme @ ("http" | "https")), Some(authority), None, false) =
            (uri.scheme_str(), uri.authority(), uri.query(), text.contains(['#', '@']))
        else {
            return Err(invalid());
        };
        let path = uri.path().trim_end_matches('/');
        let url = format!("{scheme}://{authority}{path}");
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_safe = scheme == "https" || is_loopback;
        Ok(Self { option, url, host: authority.to_string(), is_safe })
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_urls_are_bases_without_secrets() {
        for (text, url) in [
            ("https://relay.example", "https://relay.example"),
            ("https://relay.example:8443/", "https://relay.example:8443"),
            ("http://10.0.0.1/base/", "http://10.0.0.1/base"),
        ] {
            assert_eq!(PublicUrl::parse("--public-url", text).unwrap().url, url);
        }
        for (text, is_safe) in [
            ("https://relay.example", true),
            ("http://127.0.0.1:80", true),
            ("http://[::1]", true),
            ("http://localhost:1", true),
            ("http://10.0.0.1", false),
            ("http://127.0.0.1.example", false),
        ] {
            let url = PublicUrl::parse("--public-url", text).unwrap();
            assert_eq!(url.is_safe, is_safe, "{text}");
        }
        for text in [
            "relay.example",
            "ws://relay.example",
            "https://u:p@h",
            "https://u:p#x@h",
            "https://u:p?x@h",
            "https://h/?a=b",
            "",
        ] {
            let error = PublicUrl::parse("--advertise", text).unwrap_err().to_string();
            assert!(error.starts_with("--advertise \"") && !error.contains("u:p"), "{error}");
        }
    }
}
