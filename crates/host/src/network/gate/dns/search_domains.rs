//! The search list of the machine's resolver.
//!
//! A resolver with `search corp.example` and `ndots:5`, as in most clusters, looks up
//! `pypi.org.corp.example` before `pypi.org`. If the first lookup returned an address, even an
//! unreachable one, programs would not try the second.

use std::fs;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchDomains(Vec<String>);

impl SearchDomains {
    /// Reads the search list of this machine: programs use the same resolver settings. Blocks.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::parse(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
    }

    /// Parses `resolv.conf(5)`: the last `search` or `domain` line wins.
    pub(super) fn parse(settings: &str) -> Self {
        let mut domains = Vec::new();
        for line in settings.lines() {
            let mut words = line.split_ascii_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                let normal = |word: &str| word.trim_matches('.').to_ascii_lowercase();
                domains = words.map(normal).filter(|domain| !domain.is_empty()).collect();
            }
        }
        Self(domains)
    }

    pub(super) fn strip<'n>(&self, name: &'n str) -> Option<&'n str> {
        let without = |domain: &String| name.strip_suffix(domain.as_str())?.strip_suffix('.');
        // The longest domain leaves the shortest rest.
        self.0.iter().filter_map(without).min_by_key(|rest| rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_list_wins() {
        let settings = "nameserver 10.0.0.10\ndomain a.test\n# search b.test\n\
                        search Default.svc.Cluster.local. svc.cluster.local\noptions ndots:5\n";
        let expected = ["default.svc.cluster.local", "svc.cluster.local"].map(str::to_owned);
        assert_eq!(SearchDomains::parse(settings), SearchDomains(expected.to_vec()));
        assert_eq!(SearchDomains::parse("nameserver 10.0.0.10"), SearchDomains::default());
    }

    #[test]
    fn the_longest_domain_is_stripped() {
        let domains = SearchDomains::parse("search svc.cluster.local default.svc.cluster.local");
        for (name, rest) in [
            ("pypi.org.default.svc.cluster.local", Some("pypi.org")),
            ("pypi.org.svc.cluster.local", Some("pypi.org")),
            ("db.default.svc.cluster.local", Some("db")),
            ("pypi.org", None),
            ("svc.cluster.local", None),
            ("pypi.orgsvc.cluster.local", None),
        ] {
            assert_eq!(domains.strip(name), rest, "{name}");
        }
    }
}
