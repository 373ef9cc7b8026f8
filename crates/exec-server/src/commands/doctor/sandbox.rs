//! What a sandbox can count on here: each mechanism by itself, and then whole sandboxes around a program that tries
//! to get out.

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
    /// A sandbox of each kind, tried.
    pub(super) sandboxes: Vec<Check>,
    /// How rules about hosts are enforced.
    pub(super) network: NetworkReport,
}

#[derive(Debug, Serialize)]
pub(super) struct MechanismReport {
    pub(super) name: &'static str,
    #[serde(skip)]
    pub(super) title: String,
    pub(super) verdict: Verdict,
    /// Its version, or what went wrong.
    pub(super) detail: String,
    pub(super) gives: &'static str,
    /// How to get it, or more of it.
    pub(super) remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Works,
    /// Less of it than there could be.
    Partial,
    /// The strongest sandbox is stronger with it, and is one without it.
    Missing,
    /// There is no strongest sandbox without it.
    Needed,
}

/// What processes can have, from the most to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tier {
    Full,
    OldLandlock,
    Bubblewrap,
    ReadOnly,
    None,
}

/// The first ABI of Landlock that keeps signals inside.
const COMPLETE_LANDLOCK: u32 = 6;

pub(super) async fn examine() -> SandboxReport {
    let asked = ExecServerRuntimePaths::this_program().launcher().and_then(|launcher| {
        let executable = launcher.executable().ok_or(std::io::ErrorKind::Unsupported)?;
        Capabilities::ask(executable)
    });
    let findings = match asked {
        Ok(findings) => findings,
        Err(error) => {
            let detail = format!("cannot find out what this machine can enforce: {error}");
            let probe = Check { name: "probe", works: false, detail };
            return SandboxReport::new(Tier::None, NetworkTier::None, Vec::new(), vec![probe]);
        }
    };
    let capabilities = findings.capabilities();
    let sandboxes = vec![
        check("read-only", "a program that tries to write cannot", try_read_only(&capabilities))
            .await,
        check(
            "workspace-write",
            "one writes in its directory, but neither .git in it nor outside",
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
            // It only does what namespaces do.
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
                "Every sandbox works here, and always takes namespaces, since Landlock of this kernel is older than ABI 6."
            }
            Self::Bubblewrap => {
                "Every sandbox works here; those that may write take bubblewrap, which is slower than namespaces of our own."
            }
            Self::ReadOnly => {
                "Only sandboxes that protect no part of a writable directory work here, such as read-only; others, such as \
                 workspace-write, are refused."
            }
            Self::None => {
                "No sandbox works here: who asks for one is refused, and nothing runs without it."
            }
        }
    }
}

async fn try_read_only(capabilities: &Capabilities) -> anyhow::Result<()> {
    let workspace = Workspace::new()?;
    let plan = workspace.plan(Vec::new(), capabilities)?;
    let code = confined("(: > made) 2> /dev/null && exit 1; exit 0", &workspace.path, plan).await?;
    anyhow::ensure!(code == 0, "it wrote all the same");
    Ok(())
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
        1 => anyhow::bail!("it cannot write in its own directory"),
        2 => anyhow::bail!("it made a .git in its directory all the same"),
        3 => anyhow::bail!("it wrote outside of its directory all the same"),
        code => anyhow::bail!("expected exit code 0, got {code}"),
    }
}

/// A place where a program can do no harm, whatever comes of it.
struct Workspace {
    path: PathBuf,
    _around: tempfile::TempDir,
}

impl Workspace {
    fn new() -> anyhow::Result<Self> {
        let around = tempfile::tempdir().context("cannot make a directory to try it in")?;
        let path = around.path().canonicalize()?.join("workspace");
        std::fs::create_dir(&path)?;
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

/// How to get what is missing stands with each mechanism.
fn without_advice(error: PlanError) -> anyhow::Error {
    match error {
        PlanError::Missing { need, mechanism, .. } => {
            anyhow::anyhow!("{need}: it takes {mechanism}")
        }
        PlanError::NoIsolation { need, .. } => {
            anyhow::anyhow!("{need}: it takes user namespaces or bubblewrap")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tier_follows_from_what_works() {
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
        assert_eq!(Tier::of(&complete, false, true), Tier::None, "what was tried counts");
        let strongest =
            [Tier::Full, Tier::OldLandlock, Tier::Bubblewrap, Tier::ReadOnly, Tier::None];
        assert_eq!(strongest.map(Tier::is_strongest), [true, false, false, false, false]);
    }

    #[test]
    fn only_what_is_needed_is_a_failure() {
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
