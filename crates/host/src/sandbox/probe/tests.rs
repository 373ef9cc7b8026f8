//! Tests the encoding of findings. `tests/probe.rs` tests the probes, which need a process without
//! threads.

use std::ffi::OsStr;

use super::finding::{Failure, Findings, Outcome};
use super::without::{WITHOUT_VARIABLE, Without};
use crate::sandbox::report::mechanism::Mechanism;

fn outcomes(result: impl Fn(Mechanism) -> Result<String, Failure>) -> Vec<Outcome> {
    let outcome = |&mechanism| Outcome { mechanism, result: result(mechanism) };
    Mechanism::ALL.iter().map(outcome).collect()
}

fn decode(outcomes: &[Outcome]) -> std::io::Result<Findings> {
    Findings::decode(&Outcome::encode_all(outcomes))
}

#[cfg(target_os = "linux")]
#[test]
fn findings_become_capabilities() {
    let found = decode(&outcomes(|mechanism| match mechanism {
        Mechanism::Landlock => Ok("7".to_owned()),
        Mechanism::Bubblewrap => Ok("/usr/bin/bwrap 0.8.0".to_owned()),
        Mechanism::FreshProc => Err(Failure::Refused("move_mount: forbidden".to_owned())),
        _ => Ok(String::new()),
    }))
    .unwrap();
    let has = found.capabilities();
    assert_eq!(has.landlock_abi, 7);
    assert!(has.seccomp && has.user_namespace && has.network_namespace && !has.fresh_proc);
    assert_eq!(has.bubblewrap.as_deref(), Some("/usr/bin/bwrap".as_ref()));

    let found = |bubblewrap: &str| {
        let found = decode(&outcomes(|mechanism| match mechanism {
            Mechanism::Bubblewrap => Ok(bubblewrap.to_owned()),
            _ => Err(Failure::NotInstalled),
        }));
        found.unwrap()
    };
    let ubuntu = found("/usr/bin/bwrap 0.9.0 proc network").capabilities();
    assert!(!ubuntu.user_namespace && ubuntu.fresh_proc && ubuntu.network_namespace);
    assert!(!found("/usr/bin/bwrap 0.9.0 proc").capabilities().network_namespace);
    assert!(!found("/usr/bin/bwrap 0.9.0").capabilities().fresh_proc);
    let details: Vec<_> = found("/usr/bin/bwrap 0.9.0 proc").list();
    assert_eq!(details.last().unwrap().detail, "/usr/bin/bwrap 0.9.0");

    let nothing = decode(&outcomes(|_| Err(Failure::NotInstalled))).unwrap().capabilities();
    assert_eq!(nothing, crate::sandbox::Capabilities::default());
}

#[test]
fn mechanisms_that_are_turned_off_are_listed() {
    let found = decode(&outcomes(|_| Err(Failure::TurnedOff))).unwrap();
    assert_eq!(found.capabilities().turned_off, Mechanism::ALL);
    assert!(found.list().iter().all(|finding| finding.detail.contains(WITHOUT_VARIABLE)));
}

#[test]
fn a_reason_stays_on_its_line() {
    let reason = "first\nlandlock\tyes\t9";
    let found = decode(&outcomes(|_| Err(Failure::Refused(reason.to_owned())))).unwrap();
    for finding in found.list() {
        assert!(!finding.works);
        assert_eq!(finding.detail, "first landlock yes 9");
        assert!(finding.remedy.is_some_and(|remedy| !remedy.is_empty()));
        assert!(!finding.gives.is_empty());
    }
}

#[test]
fn incomplete_or_foreign_output_is_an_error() {
    let whole = Outcome::encode_all(&outcomes(|_| Ok("1".to_owned())));
    assert!(Findings::decode(&whole).is_ok());
    assert!(Findings::decode(b"").is_err());
    assert!(Findings::decode(b"usage: something else\n").is_err());
    let twice = [whole.as_slice(), whole.as_slice()].concat();
    assert!(Findings::decode(&twice).is_err());
    let end = whole.iter().position(|byte| *byte == b'\n').unwrap();
    assert!(Findings::decode(&whole[end + 1..]).is_err());
    let maybe = String::from_utf8(whole).unwrap().replacen("yes", "maybe", 1);
    assert!(Findings::decode(maybe.as_bytes()).is_err());
}

#[test]
fn an_operator_can_turn_mechanisms_off() {
    let without = |value: &str| Without::parse(Some(OsStr::new(value)));
    let some = without(" namespaces, bubblewrap,").unwrap();
    for mechanism in [
        Mechanism::UserNamespace,
        Mechanism::NetworkNamespace,
        Mechanism::FreshProc,
        Mechanism::Bubblewrap,
    ] {
        assert!(some.contains(mechanism));
    }
    assert!(!some.contains(Mechanism::Landlock) && !some.contains(Mechanism::Seccomp));
    let others = without("landlock,seccomp").unwrap();
    assert!(others.contains(Mechanism::Landlock) && others.contains(Mechanism::Seccomp));
    assert_eq!(without("").unwrap(), Without::parse(None).unwrap());
    let error = without("namespace").unwrap_err().to_string();
    assert!(error.contains("\"namespace\""), "{error}");
}
