//! Encoding and decoding of plans.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::*;
use crate::sandbox::policy::Grant;

fn varied_plans() -> Vec<Plan> {
    let names = names().directory("/home/ann/app/src/private/shared").file("/home/ann/app/a.pem");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/src/private"), Access::Deny),
        (path("/home/ann/app/src/private/shared"), Access::Read),
        (EntryPath::Glob("*.pem".into()), Access::Deny),
    ];
    let policy = policy_of(&names, Network::Enabled, &entries);
    let all_files = Policy::unrestricted(Network::Restricted);
    let macos = Capabilities { seatbelt: true, ..Capabilities::default() };
    [
        (&policy, everything()),
        (&policy, without_namespaces()),
        (&policy, macos),
        (&all_but_source(), everything()),
        (&all_files, everything()),
        (&all_files, with_abi(0, everything())),
        (&read_only(), everything()),
    ]
    .map(|(policy, has)| Plan::new(policy, &has, &names).unwrap())
    .into()
}

#[test]
fn a_plan_survives_encoding_and_decoding() {
    for plan in varied_plans() {
        assert_eq!(Plan::decode(&plan.encode()), Some(plan));
    }
    let mut odd = varied_plans().remove(0);
    let name = OsString::from_vec(vec![b'/', 0xff, 0, b'\n']);
    let grants = vec![Grant { path: name.into(), access: Access::Read }];
    odd.landlock = Some(LandlockRules {
        abi: u32::MAX,
        grants: Some(grants),
        listed: vec!["/".into()],
        connect_ports: Some(vec![1, u16::MAX]),
    });
    assert_eq!(Plan::decode(&odd.encode()), Some(odd));
}

#[test]
fn anything_but_a_whole_plan_is_rejected() {
    for plan in varied_plans() {
        let bytes = plan.encode();
        for len in 0..bytes.len() {
            assert_eq!(Plan::decode(&bytes[..len]), None, "accepted {len} of {}", bytes.len());
        }
        assert_eq!(Plan::decode(&[bytes.as_slice(), &[0]].concat()), None);
    }
    assert_eq!(Plan::decode(&[9]), None);
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let claimed = [&[1][..], &u32::MAX.to_ne_bytes()].concat();
    assert_eq!(Plan::decode(&claimed), None);
}
