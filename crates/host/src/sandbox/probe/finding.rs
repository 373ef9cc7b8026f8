//! The result of each probe, as lines between two processes and as text for people.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::advice;
use super::without::WITHOUT_VARIABLE;
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;

/// Extras of bubblewrap: a `/proc` for its namespaces, a network namespace, and a network namespace
/// whose routes can be set.
pub(super) const WITH_PROC: &str = "proc";
pub(super) const WITH_NETWORK: &str = "network";
pub(super) const WITH_ROUTES: &str = "routes";

/// One outcome per mechanism of this operating system, in the order of [`Mechanism::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    outcomes: Vec<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub mechanism: Mechanism,
    pub works: bool,
    /// The ABI of Landlock, the path and version of bubblewrap, `works` for any other mechanism
    /// that works, or the reason for the failure.
    pub detail: String,
    pub gives: &'static str,
    /// How to get the mechanism, or a more complete version of it.
    pub remedy: Option<String>,
}

/// The result of using a mechanism: why it failed, or text about it. The text is the ABI of
/// Landlock; path, version and extras of bubblewrap; and empty for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) mechanism: Mechanism,
    pub(super) result: Result<String, Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    TurnedOff,
    NotInstalled,
    /// The failed step, and the reason as the kernel, bubblewrap or the probe gives it.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TurnedOff => write!(f, "turned off by {WITHOUT_VARIABLE}"),
            Self::NotInstalled => f.write_str("not installed"),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

impl Findings {
    pub fn list(&self) -> Vec<Finding> {
        self.outcomes.iter().map(Outcome::explain).collect()
    }

    pub fn capabilities(&self) -> Capabilities {
        let value = |mechanism| {
            let outcome = self.outcomes.iter().find(|outcome| outcome.mechanism == mechanism);
            outcome.and_then(|outcome| outcome.result.as_deref().ok())
        };
        let works = |mechanism| value(mechanism).is_some();
        let bubblewrap: Vec<_> = value(Mechanism::Bubblewrap).unwrap_or("").split(' ').collect();
        let user_namespace = works(Mechanism::UserNamespace);
        // A sandbox uses namespaces that the server creates if it can, and otherwise those of
        // bubblewrap.
        let of_namespaces = |mechanism, extra| {
            if user_namespace { works(mechanism) } else { bubblewrap.contains(&extra) }
        };
        Capabilities {
            landlock_abi: value(Mechanism::Landlock).and_then(|abi| abi.parse().ok()).unwrap_or(0),
            seccomp: works(Mechanism::Seccomp),
            user_namespace,
            network_namespace: of_namespaces(Mechanism::NetworkNamespace, WITH_NETWORK),
            managed_network: of_namespaces(Mechanism::ManagedNetwork, WITH_ROUTES),
            fresh_proc: of_namespaces(Mechanism::FreshProc, WITH_PROC),
            bubblewrap: bubblewrap.first().filter(|path| !path.is_empty()).map(PathBuf::from),
            seatbelt: works(Mechanism::Seatbelt),
            turned_off: self.turned_off().collect(),
        }
    }

    fn turned_off(&self) -> impl Iterator<Item = Mechanism> {
        let is_off = |outcome: &&Outcome| outcome.result == Err(Failure::TurnedOff);
        self.outcomes.iter().filter(is_off).map(|outcome| outcome.mechanism)
    }

    /// Accepts exactly one line per mechanism. Any other output does not come from this probe.
    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let foreign = || {
            let message = "unexpected output from the sandbox probe; the program's `main` must first call `run_spawner_if_asked`";
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        let text = str::from_utf8(bytes).map_err(|_| foreign())?;
        let outcomes: Vec<_> =
            text.lines().map(Outcome::decode).collect::<Option<_>>().ok_or_else(foreign)?;
        let complete =
            outcomes.iter().map(|outcome| outcome.mechanism).eq(Mechanism::ALL.iter().copied());
        if complete { Ok(Self { outcomes }) } else { Err(foreign()) }
    }
}

impl Outcome {
    fn explain(&self) -> Finding {
        let mechanism = self.mechanism;
        let (works, detail) = match (&self.result, mechanism) {
            (Ok(abi), Mechanism::Landlock) => (true, format!("ABI {abi}")),
            (Ok(words), Mechanism::Bubblewrap) => {
                (true, words.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" "))
            }
            (Ok(value), _) if value.is_empty() => (true, "works".to_owned()),
            (Ok(value), _) => (true, value.clone()),
            (Err(failure), _) => (false, failure.to_string()),
        };
        let remedy = advice::remedy(mechanism, &self.result);
        Finding { mechanism, works, detail, gives: mechanism.gives(), remedy }
    }

    /// One line per mechanism: name, result and detail, separated by tabs.
    pub(super) fn encode_all(outcomes: &[Self]) -> Vec<u8> {
        let mut text = String::new();
        for Self { mechanism, result } in outcomes {
            let (how, rest) = match result {
                Ok(value) => ("yes", value.as_str()),
                Err(Failure::Refused(reason)) => ("no", reason.as_str()),
                Err(Failure::NotInstalled) => ("absent", ""),
                Err(Failure::TurnedOff) => ("off", ""),
            };
            let rest = rest.replace(char::is_control, " ");
            text.extend([mechanism.name(), "\t", how, "\t", &rest, "\n"]);
        }
        text.into_bytes()
    }

    fn decode(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, '\t');
        let name = fields.next()?;
        let mechanism = *Mechanism::ALL.iter().find(|mechanism| mechanism.name() == name)?;
        let (how, rest) = (fields.next()?, fields.next()?.to_owned());
        let result = match how {
            "yes" => Ok(rest),
            "no" => Err(Failure::Refused(rest)),
            "absent" => Err(Failure::NotInstalled),
            "off" => Err(Failure::TurnedOff),
            _ => return None,
        };
        Some(Self { mechanism, result })
    }
}
