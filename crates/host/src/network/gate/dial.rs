//! Opens the outside connection of an allowed access.
//!
//! A name is resolved once per connection. Every address is checked, and exactly these addresses
//! are dialled. So a DNS server gains nothing by changing its answer (DNS rebinding). Only an
//! upstream proxy resolves names itself.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::decisions::{Permission, Refusal};
use super::upstream::{ProxyAddress, TunnelError, UpstreamProxies, open_tunnel};
use crate::network::policy::{Access, Host};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits the attempts at all addresses of a name together, and the wait for a tunnel through a
/// proxy.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_LOOKUPS: usize = 16;

pub trait Resolver: Send + Sync + fmt::Debug {
    /// Blocks until the addresses are known.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the machine, as `getaddrinfo` uses it.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("cannot resolve the name: {source}")]
    Resolve { source: io::Error },
    #[error("cannot connect: {source}")]
    Connect { source: io::Error },
    #[error("cannot connect through the upstream proxy: {source}")]
    Upstream { source: TunnelError },
    #[error("timed out while resolving the name or connecting")]
    TimedOut,
}

#[derive(Debug)]
pub(super) struct Dialer {
    resolver: Arc<dyn Resolver>,
    lookups: Arc<Semaphore>,
    upstream: Option<UpstreamProxies>,
}

impl Dialer {
    pub(super) fn new(resolver: Arc<dyn Resolver>, upstream: Option<UpstreamProxies>) -> Self {
        Self { resolver, lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)), upstream }
    }

    pub(super) async fn dial(
        &self,
        mut permission: Permission<'_>,
    ) -> Result<TcpStream, DialError> {
        let access = permission.access();
        // A proxy on another machine would connect to its own loopback and private network.
        let upstream = self.upstream.as_ref().filter(|_| !access.host.is_private());
        if let Some(proxy) = upstream.and_then(|upstream| upstream.proxy_for(access)) {
            return self.dial_through(proxy, access).await;
        }
        let addresses = self.addresses_of(&mut permission).await?;
        connect_first(&addresses).await
    }

    /// Returns the addresses of an allowed host, all of which may be dialled.
    pub(super) async fn addresses_of(
        &self,
        permission: &mut Permission<'_>,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let port = permission.access().port;
        let addresses = match permission.access().host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let addresses = self.resolve(name).await?;
                permission.check_resolved(&addresses)?;
                addresses
            }
        };
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// The proxy resolves the name, so the addresses are not checked here: an operator who allows
    /// upstream proxies relies on them to block private addresses.
    async fn dial_through(
        &self,
        proxy: &ProxyAddress,
        access: &Access<'_>,
    ) -> Result<TcpStream, DialError> {
        let addresses = match &proxy.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve(name).await?,
        };
        let addresses: Vec<_> =
            addresses.into_iter().map(|address| SocketAddr::new(address, proxy.port)).collect();
        let stream = connect_first(&addresses).await?;
        let target = access.host.with_port(access.port);
        timeout(DIAL_TIMEOUT, open_tunnel(stream, proxy, &target))
            .await
            .map_err(|_| DialError::TimedOut)?
            .map_err(|source| DialError::Upstream { source })
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, DialError> {
        let lookup = async {
            let permit = Arc::clone(&self.lookups).acquire_owned().await;
            let (resolver, name) = (Arc::clone(&self.resolver), name.to_owned());
            // The thread continues after a timeout, so it keeps the permit.
            spawn_blocking(move || {
                let _permit = permit;
                resolver.resolve(&name)
            })
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the resolver panicked")))
        };
        let resolved = timeout(RESOLVE_TIMEOUT, lookup).await.map_err(|_| DialError::TimedOut)?;
        let addresses = resolved.map_err(|source| DialError::Resolve { source })?;
        if addresses.is_empty() {
            let source = io::Error::new(io::ErrorKind::NotFound, "the name has no addresses");
            return Err(DialError::Resolve { source });
        }
        Ok(addresses.into_iter().map(|address| address.to_canonical()).collect())
    }
}

/// Connects to a port of the server's own loopback.
pub(super) async fn dial_loopback(port: u16) -> Result<TcpStream, DialError> {
    connect_first(&[(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]).await
}

async fn connect_first(addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let attempts = async {
        let mut last = DialError::TimedOut;
        for address in addresses {
            last = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).ok();
                    return Ok(stream);
                }
                Ok(Err(source)) => DialError::Connect { source },
                Err(_) => DialError::TimedOut,
            };
        }
        Err(last)
    };
    timeout(DIAL_TIMEOUT, attempts).await.unwrap_or(Err(DialError::TimedOut))
}
