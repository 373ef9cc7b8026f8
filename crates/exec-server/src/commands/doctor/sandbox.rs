//! Checks sandboxes on this machine: each mechanism separately, then complete sandboxes around a
//! program that tries to escape.

use std::path::PathBuf;

use anyhow::Context as _;
use exec_server_host::sandbox::{
    Access, Capabilities, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Finding, HostNames,
    Mechanism, Network, Plan, PlanError, Policy, PolicyContext,
};
use serde::Serialize;

use super::checks::{Check, check, confined};
use super::network::{NetworkReport, NetworkTier};
use crate::environment::runtime_paths::ExecServerRuntimePaths;

#[derive(Debug, Serialize)]
pub(super) struct SandboxReport {
    pub(super) tier: Tier,
    pub(super) summary: &'static str,
    pub(super) mechanisms: Vec<MechanismReport>,
    /// A trial run of each kind of sandbox.
    pub(super) sandboxes: Vec<Check>,
    /// How host rules are enforced.
    pub(super) network: NetworkReport,
}

#[derive(Debug, Serialize)]
pub(super) struct MechanismReport {
    pub(super) name: &'static str,
    #[serde(skip)]
    pub(super) title: String,
    pub(super) verdict: Verdict,
    /// The version of the mechanism, `works`, or the reason for the failure.
    pub(super) detail: String,
    pub(super) gives: &'static str,
    /// How to enable the mechanism, or the part of it that does not work.
    pub(super) remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Works,
    /// Works with reduced protection.
    Partial,
    /// Does not work, but the strongest tier does not require it.
    Missing,
    /// Does not work, and the strongest tier requires it.
    Needed,
}

/// The sandboxes available to processes, from the strongest to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tier {
    Full,
    OldLandlock,
    Bubblewrap,
    ReadOnly,
    None,
}

/// The first Landlock ABI that confines signals.
const COMPLETE_LANDLOCK: u32 = 6;

pub(super) async fn examine() -> SandboxReport {
    let asked = ExecServerRuntimePaths::this_program().launcher().and_then(|launcher| {
        let executable = launcher.executable().ok_or(std::io::ErrorKind::Unsupported)?;
        Capabilities::ask(executable)
    });
    let findings = match asked {
        Ok(findings) => findings,
        Err(error) => {
            let detail = format!("cannot determine what this machine can enforce: {error}");
            let probe = Check::fails("probe", detail);
            return SandboxReport::new(Tier::None, NetworkTier::None, Vec::new(), vec![probe]);
        }
    };
    let capabilities = findings.capabilities();
    let sandboxes = vec![
        check("read-only", "a program cannot write", try_read_only(&capabilities)).await,
        check(
            "workspace-write",
            "a program can write in its directory, but neither in its .git nor outside",
            try_workspace_write(&capabilities),
        )
        .await,
    ];
    let tier = Tier::of(&capabilities, sandboxes[0].works, sandboxes[1].works);
    let findings = findings.list().into_iter();
    let mechanisms = findings.map(|finding| MechanismReport::new(finding, &capabilities));
    SandboxReport::new(tier, NetworkTier::of(&capabilities), mechanisms.collect(), sandboxes)
}

impl SandboxReport {
    fn new(
        tier: Tier,
        network: NetworkTier,
        mechanisms: Vec<MechanismReport>,
        sandboxes: Vec<Check>,
    ) -> Self {
        let network = NetworkReport::new(network);
        Self { tier, summary: tier.summary(), mechanisms, sandboxes, network }
    }
}

impl MechanismReport {
    fn new(finding: Finding, capabilities: &Capabilities) -> Self {
        let Finding { mechanism, works, detail, gives, remedy } = finding;
        Self {
            name: mechanism.name(),
            title: mechanism.to_string(),
            verdict: Verdict::of(mechanism, works, capabilities),
            detail,
            gives,
            remedy,
        }
    }
}

impl Verdict {
    fn of(mechanism: Mechanism, works: bool, capabilities: &Capabilities) -> Self {
        match mechanism {
            Mechanism::Landlock if works && capabilities.landlock_abi < COMPLETE_LANDLOCK => {
                Self::Partial
            }
            _ if works => Self::Works,
            Mechanism::NetworkNamespace | Mechanism::ManagedNetwork | Mechanism::FreshProc => {
                Self::Missing
            }
            // Bubblewrap only replaces user namespaces, so the strongest sandbox works without it.
            Mechanism::Bubblewrap => Self::Missing,
            _ => Self::Needed,
        }
    }
}

impl Tier {
    fn of(capabilities: &Capabilities, read_only: bool, workspace_write: bool) -> Self {
        match (read_only, workspace_write) {
            (false, _) => Self::None,
            (true, false) => Self::ReadOnly,
            (true, true) if !capabilities.user_namespace => Self::Bubblewrap,
            (true, true) if capabilities.landlock_abi < COMPLETE_LANDLOCK => Self::OldLandlock,
            (true, true) => Self::Full,
        }
    }

    pub(super) fn is_strongest(self) -> bool {
        self == Self::Full
    }

    const fn summary(self) -> &'static str {
        match self {
            Self::Full => {
                "Processes get the strongest sandbox here: Landlock and seccomp, and namespaces for those that may write."
            }
            Self::OldLandlock => {
                "Every sandbox works here, but always uses namespaces, because the Landlock of this kernel is older than ABI 6."
            }
            Self::Bubblewrap => {
                "Every sandbox works here; those with write access use bubblewrap, which is slower than the server's own namespaces."
            }
            Self::ReadOnly => {
                "Only sandboxes that protect no part of a writable directory work here, such as read-only; others, such as \
                 workspace-write, are refused."
            }
            Self::None => {
                "No sandbox works here: commands that request one are refused, and never run without it."
            }
        }
    }
}

async fn try_read_only(capabilities: &Capabilities) -> anyhow::Result<()> {
    let workspace = Workspace::new()?;
    let plan = workspace.plan(Vec::new(), capabilities)?;
    match confined("(: > made) 2> /dev/null && exit 1; exit 0", &workspace.path, plan).await? {
        0 => Ok(()),
        1 => anyhow::bail!("the program could write despite the sandbox"),
        code => anyhow::bail!("expected exit code 0, got {code}"),
    }
}

async fn try_workspace_write(capabilities: &Capabilities) -> anyhow::Result<()> {
    let workspace = Workspace::new()?;
    let plan = workspace.plan(vec![EntryPath::Path(workspace.path.clone())], capabilities)?;
    let script = ": > made || exit 1
        mkdir .git 2> /dev/null && exit 2
        (: > ../outside) 2> /dev/null && exit 3
        exit 0";
    match confined(script, &workspace.path, plan).await? {
        0 => Ok(()),
        1 => anyhow::bail!("the program cannot write in its own directory"),
        2 => anyhow::bail!("the program created .git in its directory despite the sandbox"),
        3 => anyhow::bail!("the program wrote outside its directory despite the sandbox"),
        code => anyhow::bail!("expected exit code 0, got {code}"),
    }
}

/// A temporary directory in which an escaping program does no harm.
struct Workspace {
    path: PathBuf,
    _around: tempfile::TempDir,
}

impl Workspace {
    fn new() -> anyhow::Result<Self> {
        let around =
            tempfile::tempdir().context("cannot create a temporary directory for the check")?;
        let path = around.path().canonicalize()?.join("workspace");
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, _around: around })
    }

    fn plan(&self, writable: Vec<EntryPath>, capabilities: &Capabilities) -> anyhow::Result<Plan> {
        let entry = |path, access| Entry { path, access, skip_missing: false };
        let mut entries = vec![entry(EntryPath::Root, Access::Read)];
        entries.extend(writable.into_iter().map(|path| entry(path, Access::Write)));
        let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
        let declared = DeclaredPolicy { files, network: Network::Restricted };
        let around = PolicyContext { cwd: Some(self.path.clone()), ..PolicyContext::default() };
        let policy = Policy::resolve(&declared, &around, &HostNames)?;
        Plan::new(&policy, capabilities, &HostNames).map_err(without_advice)
    }
}

/// Drops the remedy from the error; the table shows it with each mechanism.
fn without_advice(error: PlanError) -> anyhow::Error {
    match error {
        PlanError::Missing { need, mechanism, .. } => {
            anyhow::anyhow!("{need}: requires {mechanism}")
        }
        PlanError::NoIsolation { need, .. } => {
            anyhow::anyhow!("{need}: requires user namespaces or bubblewrap")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tier_follows_from_capabilities_and_trials() {
        let complete = Capabilities {
            landlock_abi: 6,
            seccomp: true,
            user_namespace: true,
            ..Capabilities::default()
        };
        assert_eq!(Tier::of(&complete, true, true), Tier::Full);
        let old = Capabilities { landlock_abi: 5, ..complete.clone() };
        assert_eq!(Tier::of(&old, true, true), Tier::OldLandlock);
        let forbidden = Capabilities { user_namespace: false, ..complete.clone() };
        assert_eq!(Tier::of(&forbidden, true, true), Tier::Bubblewrap);
        assert_eq!(Tier::of(&forbidden, true, false), Tier::ReadOnly);
        assert_eq!(Tier::of(&complete, false, true), Tier::None, "the trial decides");
        let strongest =
            [Tier::Full, Tier::OldLandlock, Tier::Bubblewrap, Tier::ReadOnly, Tier::None];
        assert_eq!(strongest.map(Tier::is_strongest), [true, false, false, false, false]);
    }

    #[test]
    fn only_a_required_mechanism_is_a_failure() {
        let capabilities = Capabilities { landlock_abi: 3, ..Capabilities::default() };
        let verdict = |mechanism, works| Verdict::of(mechanism, works, &capabilities);
        assert_eq!(verdict(Mechanism::Landlock, true), Verdict::Partial);
        assert_eq!(verdict(Mechanism::Seccomp, false), Verdict::Needed);
        assert_eq!(verdict(Mechanism::UserNamespace, false), Verdict::Needed);
        assert_eq!(verdict(Mechanism::FreshProc, false), Verdict::Missing);
        assert_eq!(verdict(Mechanism::ManagedNetwork, false), Verdict::Missing);
        assert_eq!(verdict(Mechanism::Bubblewrap, false), Verdict::Missing);
        assert_eq!(verdict(Mechanism::Bubblewrap, true), Verdict::Works);
    }
}
