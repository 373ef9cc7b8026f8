//! Four hosts on this machine: a rendezvous in the middle, and an environment and two clients, each
//! on its own link.

use std::process::Command;

use crate::support::command;

/// The address of the rendezvous, the same from every host.
pub(super) const ADDRESS: &str = "10.213.0.1";
pub(super) const PORT: u16 = 8443;

/// A host, and its link to the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    Environment,
    FirstClient,
    SecondClient,
}

impl Host {
    pub(super) const ALL: [Self; 3] = [Self::Environment, Self::FirstClient, Self::SecondClient];

    fn number(self) -> u8 {
        match self {
            Self::Environment => 1,
            Self::FirstClient => 2,
            Self::SecondClient => 3,
        }
    }
}

/// Network namespaces, removed on drop.
pub(super) struct Networks {
    /// Short: names of interfaces have at most 15 characters.
    prefix: String,
}

impl Networks {
    /// Creates the namespaces. Returns the reason if this machine cannot.
    pub(super) fn new() -> Result<Self, String> {
        let networks = Self { prefix: format!("es{}", std::process::id()) };
        networks.set_up()?;
        Ok(networks)
    }

    fn set_up(&self) -> Result<(), String> {
        let middle = self.rendezvous();
        ip(&["netns", "add", &middle])?;
        ip(&["-n", &middle, "link", "set", "lo", "up"])?;
        ip(&["-n", &middle, "addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        for host in Host::ALL {
            let (name, number) = (self.name(host), host.number());
            let (outer, inner) = (format!("{name}o"), format!("{name}i"));
            ip(&["netns", "add", &name])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&[
                "link", "add", &outer, "netns", &middle, "type", "veth", "peer", "name", &inner,
                "netns", &name,
            ])?;
            let gateway = format!("10.213.{number}.1");
            let ends = [(&middle, &outer, 1), (&name, &inner, 2)];
            for (namespace, interface, last) in ends {
                let address = format!("10.213.{number}.{last}/24");
                ip(&["-n", namespace, "addr", "add", &address, "dev", interface])?;
                ip(&["-n", namespace, "link", "set", interface, "up"])?;
            }
            ip(&["-n", &name, "route", "add", "default", "via", &gateway])?;
        }
        Ok(())
    }

    /// Drops this percentage of the packets of a link, in both directions.
    pub(super) fn lose_packets(&self, host: Host, percent: u32) -> Result<(), String> {
        let rules = format!(
            "add table inet lossy\n\
             add chain inet lossy out {{ type filter hook output priority 0; }}\n\
             add chain inet lossy in {{ type filter hook input priority 0; }}\n\
             add rule inet lossy out numgen random mod 100 < {percent} drop\n\
             add rule inet lossy in numgen random mod 100 < {percent} drop\n"
        );
        let mut nft = self.command(&self.name(host), "nft");
        nft.arg(rules);
        run(nft)
    }

    /// Cuts every connection between a host and the rendezvous.
    pub(super) fn cut(&self, host: Host) {
        let mut ss = self.command(&self.name(host), "ss");
        ss.args(["-K", "dport", "=", &PORT.to_string()]);
        run(ss).unwrap();
    }

    /// Returns a command that runs a program on the host of the rendezvous.
    pub(super) fn in_the_middle(&self, program: &str) -> Command {
        self.command(&self.rendezvous(), program)
    }

    pub(super) fn on(&self, host: Host, program: &str) -> Command {
        self.command(&self.name(host), program)
    }

    fn command(&self, namespace: &str, program: &str) -> Command {
        let mut ip = command("ip");
        ip.args(["netns", "exec", namespace, program]);
        ip
    }

    fn rendezvous(&self) -> String {
        format!("{}r", self.prefix)
    }

    fn name(&self, host: Host) -> String {
        format!("{}{}", self.prefix, host.number())
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in Host::ALL.map(|host| self.name(host)).into_iter().chain([self.rendezvous()]) {
            // The setup may have failed before it created this namespace.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let mut ip = command("ip");
    ip.args(arguments);
    run(ip)
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
