//! The synthetic addresses of one managed process: DNS returns them, and the gate finds the name of
//! a connection by its destination. Pure.
//!
//! The ranges are local to the network namespace of the process. No packet leaves it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The range for names that can be reached, as a network and its prefix length.
pub(crate) const OPEN_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 16);
pub(crate) const OPEN_V6: (Ipv6Addr, u8) =
    (Ipv6Addr::new(0xfd65, 0x7865, 0x6373, 0, 0, 0, 0, 0), 64);

/// The range for names that cannot be reached. Its route is `prohibit`, so that `connect` fails at
/// once with EACCES.
pub(crate) const PROHIBITED_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 19, 0, 0), 16);
pub(crate) const PROHIBITED_V6: (Ipv6Addr, u8) =
    (Ipv6Addr::new(0xfd65, 0x7865, 0x6373, 1, 0, 0, 0, 0), 64);

/// The maximum number of names per process. With at most 253 bytes each, names take at most 3 MiB.
pub(crate) const MAX_NAMES: usize = 8_192;

#[derive(Debug, Default)]
pub(crate) struct SyntheticNames {
    /// Invariant: `numbers[names[n - 1]] == n` for every number from 1 to `names.len()`. The number
    /// is the host part of both addresses.
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u16>,
}

/// Whether the policy may allow some connection to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Open,
    Prohibited,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl SyntheticNames {
    /// Returns the address of a name in its canonical spelling. An open name keeps its address. All
    /// prohibited names share one address of each family, which maps to no name. Each call may give
    /// a different `reach` for a name. `None` for a new open name beyond [`MAX_NAMES`].
    pub(crate) fn address_of(
        &mut self,
        name: &str,
        reach: Reach,
        family: Family,
    ) -> Option<IpAddr> {
        Some(match (reach, family) {
            (Reach::Open, Family::V4) => v4(OPEN_V4.0, self.number_of(name)?),
            (Reach::Open, Family::V6) => v6(OPEN_V6.0, self.number_of(name)?),
            (Reach::Prohibited, Family::V4) => v4(PROHIBITED_V4.0, 1),
            (Reach::Prohibited, Family::V6) => v6(PROHIBITED_V6.0, 1),
        })
    }

    /// Returns the open name of an address, which may be IPv4-mapped.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        let number = match address.to_canonical() {
            IpAddr::V4(address) => address.to_bits().checked_sub(OPEN_V4.0.to_bits())?.into(),
            IpAddr::V6(address) => address.to_bits().checked_sub(OPEN_V6.0.to_bits())?,
        };
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.names.get(index).map(AsRef::as_ref)
    }

    fn number_of(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        if self.names.len() >= MAX_NAMES {
            return None;
        }
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        let number = u16::try_from(self.names.len()).expect("MAX_NAMES fits into 16 bits");
        self.numbers.insert(name, number);
        Some(number)
    }
}

/// Whether an address is in one of the synthetic ranges. A connection to such an address without a
/// name must not be dialled.
pub(crate) fn is_synthetic(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => [OPEN_V4, PROHIBITED_V4]
            .iter()
            .any(|(network, _)| address.octets()[..2] == network.octets()[..2]),
        IpAddr::V6(address) => [OPEN_V6, PROHIBITED_V6]
            .iter()
            .any(|(network, _)| address.segments()[..4] == network.segments()[..4]),
    }
}

fn v4(network: Ipv4Addr, number: u16) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(network.to_bits() | u32::from(number)))
}

fn v6(network: Ipv6Addr, number: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(network.to_bits() | u128::from(number)))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::network::policy::is_private;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_addresses() {
        let mut names = SyntheticNames::default();
        for _ in 0..2 {
            let mut open = |name, family| names.address_of(name, Reach::Open, family).unwrap();
            assert_eq!(open("a.test", Family::V4), address("198.18.0.1"));
            assert_eq!(open("b.test", Family::V6), address("fd65:7865:6373::2"));
            assert_eq!(open("b.test", Family::V4), address("198.18.0.2"));
            assert_eq!(open("a.test", Family::V6), address("fd65:7865:6373::1"));
        }
        for text in ["198.18.0.1", "::ffff:198.18.0.1", "fd65:7865:6373::1"] {
            assert_eq!(names.name_of(address(text)), Some("a.test"), "{text}");
        }
    }

    #[test]
    fn a_prohibited_name_has_an_address_without_a_name() {
        let mut names = SyntheticNames::default();
        let mut resolve = |reach| names.address_of("a.test", reach, Family::V4).unwrap();
        assert_eq!(resolve(Reach::Prohibited), address("198.19.0.1"));
        assert_eq!(resolve(Reach::Open), address("198.18.0.1"));
        assert_eq!(resolve(Reach::Prohibited), address("198.19.0.1"));
        assert_eq!(names.name_of(address("198.18.0.1")), Some("a.test"));
        assert_eq!(names.name_of(address("198.19.0.1")), None);
        let v6 = names.address_of("b.test", Reach::Prohibited, Family::V6);
        assert_eq!(v6, Some(address("fd65:7865:6373:1::1")));
        assert_eq!(names.names.len(), 1);
    }

    #[test]
    fn other_addresses_have_no_name() {
        let mut names = SyntheticNames::default();
        names.address_of("a.test", Reach::Open, Family::V4);
        let others = [
            "198.18.0.0",
            "198.18.0.2",
            "198.17.255.255",
            "203.0.113.1",
            "0.0.0.1",
            "fd65:7865:6373::",
            "fd65:7865:6373:0:1::1",
            "fd65:7865:6373:1::1",
            "64:ff9b::198.18.0.1",
            "::1",
        ];
        for text in others {
            assert_eq!(names.name_of(address(text)), None, "{text}");
        }
    }

    #[test]
    fn the_ranges_are_recognised() {
        let synthetic = [
            "198.18.0.0",
            "198.19.255.255",
            "::ffff:198.18.1.1",
            "fd65:7865:6373::1",
            "fd65:7865:6373:1:ffff::",
        ];
        for text in synthetic {
            assert!(is_synthetic(address(text)), "{text}");
            assert!(is_private(address(text)), "{text}");
        }
        for text in ["198.17.255.255", "198.20.0.0", "fd65:7865:6373:2::", "fd65:7865:6372::1"] {
            assert!(!is_synthetic(address(text)), "{text}");
        }
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut names = SyntheticNames::default();
        for number in 0..MAX_NAMES {
            let name = format!("n{number}.test");
            let address = names.address_of(&name, Reach::Open, Family::V4).unwrap();
            assert!(is_synthetic(address));
            assert_eq!(names.name_of(address), Some(name.as_str()));
        }
        assert_eq!(names.address_of("new.test", Reach::Open, Family::V4), None);
        assert!(names.address_of("new.test", Reach::Prohibited, Family::V4).is_some());
        assert!(names.address_of("n0.test", Reach::Open, Family::V6).is_some());
    }

    proptest! {
        #[test]
        fn an_address_leads_back_to_its_name(
            requests in vec((
                "[a-d]{1,2}",
                select(&[Reach::Open, Reach::Prohibited][..]),
                select(&[Family::V4, Family::V6][..]),
            ), 0..50),
        ) {
            let mut names = SyntheticNames::default();
            let mut open = Vec::new();
            for (name, reach, family) in requests {
                let address = names.address_of(&name, reach, family).unwrap();
                prop_assert!(is_synthetic(address));
                prop_assert_eq!(address.is_ipv4(), family == Family::V4);
                match reach {
                    Reach::Open => open.push((name, address)),
                    Reach::Prohibited => prop_assert_eq!(names.name_of(address), None),
                }
            }
            for (name, address) in open {
                prop_assert_eq!(names.name_of(address), Some(name.as_str()));
            }
        }

        #[test]
        fn any_address_has_a_name_only_if_it_was_given_out(address in any::<IpAddr>()) {
            let mut names = SyntheticNames::default();
            let given = names.address_of("a.test", Reach::Open, Family::V4);
            prop_assert!(names.name_of(address).is_none() || given == Some(address.to_canonical()));
        }
    }
}
