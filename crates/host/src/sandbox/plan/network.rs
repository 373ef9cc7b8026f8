//! Chooses how this machine enforces the network restrictions of a policy.

use super::error::Requirement;
use super::linux::isolation;
use super::{GateRequest, GateSockets, NetworkNamespace, PlanError};
use crate::sandbox::kernel::landlock::PORTS_SINCE;
use crate::sandbox::kernel::seccomp::Sockets;
use crate::sandbox::policy::Network;
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;

/// The network restrictions of a process, before its namespaces are known.
pub(super) struct NetworkPlan {
    pub(super) network: Network,
    pub(super) sockets: Sockets,
    /// Set if the process reaches its gate through a network namespace of its own.
    pub(super) gate: Option<GateSockets>,
    restricts_ports: bool,
}

impl NetworkPlan {
    pub(super) fn new(
        network: Network,
        gate: Option<&GateRequest>,
        has: &Capabilities,
    ) -> Result<Self, PlanError> {
        let plan =
            |network, sockets| Ok(Self { network, sockets, gate: None, restricts_ports: false });
        let gate = match (network, gate) {
            (Network::Enabled, _) => return plan(network, Sockets::InternetAndUnix),
            (Network::Managed, Some(gate)) => gate,
            // A managed network without a gate has no network access.
            _ => return plan(Network::Restricted, Sockets::Pairs),
        };
        let (internet, tcp) = if gate.unix_sockets {
            (Sockets::InternetAndUnix, Sockets::TcpAndUnix)
        } else {
            (Sockets::Internet, Sockets::Tcp)
        };
        if has.managed_network && isolation(has).is_some() {
            let gate = Some(gate.sockets.clone());
            return Ok(Self { network, sockets: internet, gate, restricts_ports: false });
        }
        if gate.require_transparent {
            let need = Requirement::EveryConnection;
            return Err(PlanError::missing(need, Mechanism::ManagedNetwork, has));
        }
        if has.landlock_abi < PORTS_SINCE {
            let need = Requirement::Ports { abi: has.landlock_abi };
            return Err(PlanError::missing(need, Mechanism::ManagedNetwork, has));
        }
        Ok(Self { network, sockets: tcp, gate: None, restricts_ports: true })
    }

    pub(super) fn namespace(&self, isolated: bool, has: &Capabilities) -> NetworkNamespace {
        match &self.gate {
            Some(sockets) => NetworkNamespace::Gated(sockets.clone()),
            None if isolated && self.network == Network::Restricted && has.network_namespace => {
                NetworkNamespace::Empty
            }
            None => NetworkNamespace::Inherited,
        }
    }

    /// `None` if Landlock does not restrict ports. Otherwise empty: the ports are added once the
    /// proxies are bound.
    pub(super) fn connect_ports(&self) -> Option<Vec<u16>> {
        self.restricts_ports.then(Vec::new)
    }
}
