//! The hosts that were refused to a process, for its exit record.

/// A refused host. `port` is absent if only the name was looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RefusedHost {
    pub host: String,
    pub port: Option<u16>,
}

pub(super) const MAX_REFUSED_HOSTS: usize = 64;

/// The first refused hosts, each once per port.
#[derive(Debug, Default, Clone)]
pub(super) struct RefusedHosts {
    hosts: Vec<RefusedHost>,
    more: bool,
}

impl RefusedHosts {
    pub(super) fn add(&mut self, host: RefusedHost) {
        let mut same_name = self.hosts.iter_mut().filter(|known| known.host == host.host);
        if same_name.any(|known| host.port.is_none() || known.port == host.port) {
            return;
        }
        // The name was looked up before, and its port is known only now.
        let looked_up = |known: &&mut RefusedHost| known.host == host.host && known.port.is_none();
        if let Some(known) = self.hosts.iter_mut().find(looked_up) {
            *known = host;
            return;
        }
        if self.hosts.len() < MAX_REFUSED_HOSTS {
            self.hosts.push(host);
        } else {
            self.more = true;
        }
    }

    pub(super) fn hosts(&self) -> &[RefusedHost] {
        &self.hosts
    }

    /// Whether more hosts were refused than are listed.
    pub(super) fn more(&self) -> bool {
        self.more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_lookup_is_replaced_by_the_first_port() {
        let mut refused = RefusedHosts::default();
        let host = |port| RefusedHost { host: "h".into(), port };
        for port in [None, Some(80), None, Some(443), Some(80)] {
            refused.add(host(port));
        }
        assert_eq!(refused.hosts(), [host(Some(80)), host(Some(443))]);
    }

    #[test]
    fn each_host_is_listed_once_and_the_list_is_bounded() {
        let mut refused = RefusedHosts::default();
        let host = |n: usize| RefusedHost { host: format!("h{n}"), port: Some(443) };
        for n in 0..MAX_REFUSED_HOSTS {
            refused.add(host(n));
            refused.add(host(n));
        }
        assert_eq!(refused.hosts().len(), MAX_REFUSED_HOSTS);
        assert!(!refused.more());
        refused.add(host(0));
        assert!(!refused.more());
        refused.add(host(MAX_REFUSED_HOSTS));
        assert!(refused.more());
        assert_eq!(refused.hosts().len(), MAX_REFUSED_HOSTS);
    }
}
