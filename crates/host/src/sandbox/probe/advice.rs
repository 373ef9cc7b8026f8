//! Remedies for a mechanism that does not work, or not fully, specific to this machine where
//! possible.

use std::fs;
use std::path::Path;

use super::finding::Failure;
use super::without::WITHOUT_VARIABLE;
use crate::sandbox::report::mechanism::Mechanism;

/// The first Landlock ABI with which a sandbox that only reads needs no namespaces.
const COMPLETE_LANDLOCK: u32 = 6;

/// Returns `None` if nothing needs fixing.
pub(super) fn remedy(mechanism: Mechanism, result: &Result<String, Failure>) -> Option<String> {
    match result {
        Ok(abi) if mechanism == Mechanism::Landlock => {
            let is_old = abi.parse::<u32>().is_ok_and(|abi| abi < COMPLETE_LANDLOCK);
            is_old.then(|| {
                "Linux 6.12 or later: before ABI 6 a sandbox needs namespaces even if it only reads"
                    .to_owned()
            })
        }
        Ok(_) => None,
        Err(Failure::TurnedOff) => Some(format!("remove it from {WITHOUT_VARIABLE}")),
        Err(Failure::NotInstalled) => Some(mechanism.remedy().to_owned()),
        Err(Failure::Refused(_)) => {
            Some(for_this_machine(mechanism).unwrap_or_else(|| mechanism.remedy()).to_owned())
        }
    }
}

fn for_this_machine(mechanism: Mechanism) -> Option<&'static str> {
    match mechanism {
        Mechanism::UserNamespace
        | Mechanism::NetworkNamespace
        | Mechanism::ManagedNetwork
        | Mechanism::FreshProc => namespaces(setting, is_container()),
        Mechanism::Bubblewrap => Some(REFUSED_BUBBLEWRAP),
        _ => None,
    }
}

/// Advice for a bubblewrap that is installed but cannot be used.
const REFUSED_BUBBLEWRAP: &str = "allow it to create namespaces: `sysctl -w user.max_user_namespaces=15000`; where AppArmor restricts \
     them, add a profile for it with `userns,`; in a container or sandbox, allow namespaces there; and make sure that only root can \
     change the program";

/// Settings come first: no container option helps if a kernel setting forbids namespaces.
fn namespaces(
    setting: impl Fn(&str) -> Option<String>,
    is_container: bool,
) -> Option<&'static str> {
    let says = |name: &str, value: &str| setting(name).is_some_and(|found| found.trim() == value);
    if says("user/max_user_namespaces", "0") {
        Some("`sysctl -w user.max_user_namespaces=15000`, and the same in /etc/sysctl.d to keep it")
    } else if says("kernel/unprivileged_userns_clone", "0") {
        Some(
            "`sysctl -w kernel.unprivileged_userns_clone=1`, and the same in /etc/sysctl.d to keep it",
        )
    } else if is_container {
        Some(
            "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt \
             systempaths=unconfined` (Docker and Podman), or give its seccomp profile unshare, mount, open_tree, move_mount, \
             mount_setattr, fsopen, fsconfig, fsmount and pivot_root",
        )
    } else if says("kernel/apparmor_restrict_unprivileged_userns", "1") {
        Some(
            "this system (like Ubuntu 24.04) lets only programs with an AppArmor profile create user namespaces: install bubblewrap, \
             which has one (`apt-get install bubblewrap`), or give exec-server a profile with `userns,` in /etc/apparmor.d, or \
             `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    } else {
        None
    }
}

fn setting(name: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(name)).ok()
}

fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(settings: &[(&str, &str)], is_container: bool) -> Option<&'static str> {
        let setting = |name: &str| {
            let found = settings.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| format!("{value}\n"))
        };
        namespaces(setting, is_container)
    }

    #[test]
    fn advice_names_the_obstacle() {
        let restricted = ("kernel/apparmor_restrict_unprivileged_userns", "1");
        let ubuntu = on(&[restricted, ("user/max_user_namespaces", "63000")], false).unwrap();
        assert!(ubuntu.contains("AppArmor") && ubuntu.contains("apt-get install bubblewrap"));
        let docker = on(&[restricted], true).unwrap();
        assert!(docker.contains("--security-opt seccomp=unconfined"));
        let none = on(&[("user/max_user_namespaces", "0")], true).unwrap();
        assert!(none.contains("max_user_namespaces=15000"));
        let debian = on(&[("kernel/unprivileged_userns_clone", "0")], false).unwrap();
        assert!(debian.contains("unprivileged_userns_clone=1"));
        assert_eq!(on(&[("kernel/apparmor_restrict_unprivileged_userns", "0")], false), None);
    }

    #[test]
    fn all_namespaces_get_the_same_advice() {
        let of_user = for_this_machine(Mechanism::UserNamespace);
        for mechanism in
            [Mechanism::NetworkNamespace, Mechanism::ManagedNetwork, Mechanism::FreshProc]
        {
            assert_eq!(for_this_machine(mechanism), of_user, "{mechanism}");
        }
    }

    #[test]
    fn an_old_landlock_gets_advice() {
        let remedy = |abi: &str| remedy(Mechanism::Landlock, &Ok(abi.to_owned()));
        assert!(remedy("5").unwrap().contains("6.12"));
        assert_eq!(remedy("6"), None);
    }

    #[test]
    fn advice_for_a_disabled_mechanism_names_the_variable() {
        let remedy = remedy(Mechanism::Seccomp, &Err(Failure::TurnedOff)).unwrap();
        assert!(remedy.contains(WITHOUT_VARIABLE));
    }

    #[test]
    fn an_installed_program_gets_no_advice_to_install_it() {
        let remedy = |failure| remedy(Mechanism::Bubblewrap, &Err(failure)).unwrap();
        assert!(remedy(Failure::NotInstalled).contains("apt-get install bubblewrap"));
        let refused = remedy(Failure::Refused("Creating new namespace failed".to_owned()));
        assert!(!refused.contains("install") && refused.contains("namespaces"), "{refused}");
    }
}
