//! The state that all connections of a gate share.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use tokio::net::TcpStream;

use super::GateSettings;
use super::decisions::Judge;
use super::dial::{DialError, Dialer};
use super::dns::SearchDomains;
use super::names::{SyntheticNames, is_synthetic};
use super::pump::Traffic;
use crate::network::policy::{Access, Host};

#[derive(Debug)]
pub(super) struct GateState {
    pub(super) judge: Judge,
    pub(super) dialer: Dialer,
    pub(super) names: Mutex<SyntheticNames>,
    pub(super) traffic: Traffic,
    pub(super) hide_refused: bool,
    pub(super) search_domains: SearchDomains,
    loopback_ports: Vec<u16>,
}

impl GateState {
    pub(super) fn new(settings: GateSettings) -> Self {
        Self {
            judge: Judge::new(settings.policy, settings.client),
            dialer: Dialer::new(settings.resolver, settings.upstream),
            names: Mutex::default(),
            traffic: Traffic::default(),
            hide_refused: settings.hide_refused,
            search_domains: settings.search_domains,
            loopback_ports: settings.loopback_ports,
        }
    }

    pub(super) async fn connect(
        &self,
        access: &Access<'_>,
        peer: Option<SocketAddr>,
    ) -> Result<TcpStream, DialError> {
        self.dialer.dial(self.judge.judge(access, peer).await?).await
    }

    /// Returns the host that a program means: a synthetic address stands for its name. `None` for a
    /// synthetic address without a name.
    pub(super) fn meant_host(&self, host: Host) -> Option<Host> {
        match host {
            Host::Address(address) if is_synthetic(address) => {
                let names =
                    self.names.lock().expect("no code panics while it holds the synthetic names");
                names.name_of(address).map(|name| Host::Name(name.to_owned()))
            }
            Host::Name(_) | Host::Address(_) => Some(host),
        }
    }

    /// Whether a direct connection to this address goes to the server's own loopback.
    pub(super) fn is_loopback_port(&self, address: IpAddr, port: u16) -> bool {
        address.to_canonical().is_loopback() && self.loopback_ports.contains(&port)
    }
}
