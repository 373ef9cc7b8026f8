//! The settings of a rendezvous; values only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_telemetry::AuditLog;
use exec_server_transport::{KeepAlive, SignOfLife, TlsServer};

use crate::tunnel::Bus;

#[derive(Debug, Clone)]
pub struct RendezvousConfig {
    pub listen: SocketAddr,
    /// The URL at which peers reach the registry, as `http://` or `https://`; by default the
    /// listening address. The same for all nodes of a cluster.
    pub public_url: Option<String>,
    pub routing: Routing,
    pub tls: Option<Arc<TlsServer>>,
    /// Allows listening beyond loopback, and a public or advertised URL beyond loopback, without
    /// TLS.
    pub insecure: bool,
    /// The Unix socket through which commands manage credentials and list nodes while the service
    /// runs.
    pub admin_socket: Option<PathBuf>,
    pub keep_alive: KeepAlive,
    /// Covers everything from `accept` to the end of the response or the upgrade.
    pub handshake_timeout: Duration,
    /// How long a harness's ticket and the authorization of its key are valid. A cluster keeps both
    /// for at most 60 s.
    pub ticket_lifetime: Duration,
    /// How long the streams of a lost harness socket are kept.
    pub stream_grace: Duration,
    /// How long harness sockets wait for an environment whose socket is lost.
    pub environment_grace: Duration,
    /// How often the node renews the leases of its environments in the directory, and reports its
    /// status there.
    pub renew_interval: Duration,
    /// At shutdown, environments are moved to other nodes one by one over this time. Zero if there
    /// are no other nodes.
    pub drain_spread: Duration,
    /// How long peers may take to read the close frame at shutdown.
    pub drain_timeout: Duration,
    pub quotas: Quotas,
    /// Whether the service responds to `GET /metrics`.
    pub metrics: bool,
    pub audit_log: Option<Arc<AuditLog>>,
}

impl RendezvousConfig {
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            public_url: None,
            routing: Routing::Direct { advertised_url: None },
            tls: None,
            insecure: false,
            admin_socket: None,
            keep_alive: KeepAlive {
                ping_interval: Duration::from_secs(30),
                silence_limit: Duration::from_secs(60),
                stall_limit: Duration::from_secs(60),
                sign_of_life: SignOfLife::Bytes,
                close_timeout: Duration::from_secs(2),
            },
            handshake_timeout: Duration::from_secs(10),
            ticket_lifetime: Duration::from_secs(60),
            stream_grace: Duration::from_secs(45),
            environment_grace: Duration::from_secs(45),
            renew_interval: Duration::from_secs(10),
            drain_spread: Duration::ZERO,
            drain_timeout: Duration::from_secs(3),
            quotas: Quotas::default(),
            metrics: false,
            audit_log: None,
        }
    }
}

/// How a harness reaches an environment whose socket is at another node.
#[derive(Debug, Clone)]
pub enum Routing {
    /// The harness dials that node.
    Direct {
        /// The URL at which environments and harnesses reach this very node, as `http://` or
        /// `https://`; by default the public URL.
        advertised_url: Option<String>,
    },
    /// The harness dials any node, which exchanges frames with the environment's node over NATS.
    Bus(Arc<Bus>),
}

impl Routing {
    pub(crate) fn bus(&self) -> Option<&Arc<Bus>> {
        match self {
            Self::Direct { .. } => None,
            Self::Bus(bus) => Some(bus),
        }
    }
}

/// Limits that each node applies by itself: of the node, of one credential and of one environment.
/// IP addresses have no limits, because many users may share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Sockets of the whole node.
    pub sockets: usize,
    /// Bytes queued for all sockets.
    pub queued_bytes: usize,
    pub streams_per_environment: usize,
    /// Streams of one credential, across all environments.
    pub streams_per_credential: usize,
    /// Harness sockets of one environment.
    pub sockets_per_environment: usize,
    /// Sockets of one credential, for environments and for harnesses.
    pub sockets_per_credential: usize,
    /// Bytes of frames queued for one socket. The sender of a stream waits once 1 MiB is not
    /// acknowledged.
    pub queued_bytes_per_socket: usize,
    pub queued_bytes_per_credential: usize,
    /// Bytes of frames queued for all harness sockets of one environment.
    pub queued_bytes_per_environment: usize,
    /// Bytes of partially received frames on all sockets of one credential.
    pub unfinished_bytes_per_credential: usize,
    /// Frames per second that the sockets of one credential may send. At a higher rate, the sockets
    /// are read more slowly.
    pub frames_per_second_per_credential: u32,
    /// Frames per second that all harnesses of one environment may send to it.
    pub frames_per_second_per_environment: u32,
    /// Limits three rates, each by itself: the `validate` calls of one credential, its other calls,
    /// and the `connect` calls for one environment. Further calls get 429.
    pub calls_per_second: u32,
    /// Maximum burst of calls, at each of these rates.
    pub calls_at_once: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            sockets: 16_384,
            queued_bytes: 512 << 20,
            streams_per_environment: 128,
            streams_per_credential: 1024,
            sockets_per_environment: 256,
            sockets_per_credential: 2048,
            queued_bytes_per_socket: 4 << 20,
            queued_bytes_per_credential: 32 << 20,
            queued_bytes_per_environment: 64 << 20,
            unfinished_bytes_per_credential: 32 << 20,
            frames_per_second_per_credential: 100_000,
            frames_per_second_per_environment: 200_000,
            calls_per_second: 100,
            calls_at_once: 1000,
        }
    }
}
