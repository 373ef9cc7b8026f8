//! Sandboxes for the launch tests: the same programs and promises under every kind of confinement.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use exec_server_host::sandbox::{
    Access, Capabilities, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, GateRequest, HostNames,
    Network, Plan, Policy, PolicyContext, StartFacts, Tier,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    Direct,
    Namespaces,
    Bubblewrap,
}

/// The plan that confines the commands of the current test. Tests run one at a time.
static CURRENT: Mutex<Option<Arc<Plan>>> = Mutex::new(None);

/// Confines the commands that [`shell`](super::shell) creates until the returned guard is dropped.
pub(crate) fn confine(plan: Plan) -> impl Drop {
    struct Confined;
    impl Drop for Confined {
        fn drop(&mut self) {
            *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(plan));
    Confined
}

pub(crate) fn current() -> Option<Arc<Plan>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn has_pid_namespace() -> bool {
    current().is_some_and(|plan| plan.enforcement().pid_namespace)
}

pub(crate) fn by_bubblewrap() -> bool {
    current().is_some_and(|plan| plan.enforcement().bubblewrap)
}

impl Confinement {
    pub(crate) fn is_available(self) -> bool {
        self != Self::Bubblewrap || bubblewrap().exists()
    }

    fn capabilities(self) -> Capabilities {
        Capabilities {
            landlock_abi: 7,
            seccomp: true,
            user_namespace: self == Self::Namespaces,
            network_namespace: self == Self::Namespaces,
            managed_network: self != Self::Direct,
            fresh_proc: true,
            bubblewrap: (self == Self::Bubblewrap).then(|| bubblewrap().into()),
            seatbelt: false,
            turned_off: Vec::new(),
        }
    }

    /// Returns a plan that allows reading everything and, except in the direct case, writing to
    /// `workspace`.
    pub(crate) fn ordinary(self, workspace: &Path) -> Plan {
        let mut entries = vec![(EntryPath::Root, Access::Read)];
        if self != Self::Direct {
            entries.push((EntryPath::Path(workspace.into()), Access::Write));
        }
        self.plan(workspace, entries)
    }

    /// Returns a plan without file restrictions for a kernel with this Landlock ABI.
    pub(crate) fn of_all_files(self, landlock_abi: u32) -> Plan {
        let has = Capabilities { landlock_abi, ..self.capabilities() };
        Plan::new(&Policy::unrestricted(Network::Restricted), &has, &HostNames).unwrap()
    }

    pub(crate) fn plan(self, workspace: &Path, entries: Vec<(EntryPath, Access)>) -> Plan {
        self.plan_with_gate(workspace, entries, None)
    }

    pub(crate) fn plan_with_gate(
        self,
        workspace: &Path,
        entries: Vec<(EntryPath, Access)>,
        gate: Option<&GateRequest>,
    ) -> Plan {
        let entry = |(path, access)| Entry { path, access, skip_missing: false };
        let entries = entries.into_iter().map(entry).collect();
        let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
        let network = if gate.is_some() { Network::Managed } else { Network::Restricted };
        let declared = DeclaredPolicy { files, network };
        let around = PolicyContext { cwd: Some(workspace.into()), ..PolicyContext::default() };
        let policy = Policy::resolve(&declared, &around, &HostNames).unwrap();
        let start = StartFacts { cwd: None, gate };
        let plan = Plan::for_start(start, &policy, &self.capabilities(), &HostNames).unwrap();
        let tier = match plan.tier {
            Tier::Direct => Self::Direct,
            Tier::Namespaces => Self::Namespaces,
            Tier::Bubblewrap(_) => Self::Bubblewrap,
            Tier::Seatbelt(_) => panic!("this is not macOS"),
        };
        assert_eq!(tier, self);
        plan
    }
}

fn bubblewrap() -> &'static Path {
    Path::new("/usr/bin/bwrap")
}
