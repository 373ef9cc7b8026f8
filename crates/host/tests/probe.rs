//! Probing needs a single-threaded process, and a test harness has several threads. So this
//! executable, like `exec-server`, is also the probe.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

use exec_server_host::sandbox::landlock::kernel_abi;
use exec_server_host::sandbox::{Capabilities, PROBE_ARG, WITHOUT_VARIABLE, run_probe};
use exec_server_test_support::skipped;
use libtest_mimic::{Arguments, Failed, Trial};

const OURSELVES: &str = "/proc/self/exe";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(PROBE_ARG) {
        return run_probe();
    }
    let trials = vec![
        Trial::test("findings_agree_with_the_kernel", findings_agree_with_the_kernel),
        Trial::test("disabled_mechanisms_are_absent", disabled_mechanisms_are_absent),
        Trial::test("an_unknown_name_is_an_error", an_unknown_name_is_an_error),
        Trial::test("every_user_gets_the_same_findings", every_user_gets_the_same_findings),
        Trial::test(
            "the_output_of_another_program_is_rejected",
            the_output_of_another_program_is_rejected,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn findings_agree_with_the_kernel() -> Result<(), Failed> {
    let findings = Capabilities::ask(OURSELVES.as_ref())?;
    let has = findings.capabilities();
    assert_eq!(has.landlock_abi, kernel_abi().unwrap_or(0), "{findings:?}");
    for finding in findings.list() {
        let is_installed = Path::new("/usr/bin/bwrap").exists();
        if finding.mechanism.name() == "bubblewrap" && !is_installed {
            assert!(!finding.works);
        }
        assert!(finding.works || finding.remedy.is_some(), "{finding:?}");
    }
    Ok(())
}

fn disabled_mechanisms_are_absent() -> Result<(), Failed> {
    let output = probe_without("landlock,seccomp,namespaces,bubblewrap");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(text.lines().count(), 7, "{text}");
    for line in text.lines() {
        assert!(line.ends_with("\toff\t"), "{line}");
    }
    let some = String::from_utf8(probe_without("namespaces").stdout)?;
    assert_eq!(some.matches("\toff\t").count(), 4, "{some}");
    Ok(())
}

fn an_unknown_name_is_an_error() -> Result<(), Failed> {
    let output = probe_without("everything");
    assert!(!output.status.success() && output.stdout.is_empty());
    Ok(())
}

/// The uid of `nobody` is also the kernel's uid for unmapped users, so a probe that runs as
/// `nobody` may miss errors.
fn every_user_gets_the_same_findings() -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can become another user");
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let program = directory.path().join("probe");
    std::fs::copy(OURSELVES, &program)?;
    let found_by = |user: u32| {
        let output = ourselves_at(&program).uid(user).gid(user).output()?;
        Ok::<_, Failed>(String::from_utf8(output.stdout)?)
    };
    assert_eq!(found_by(65_534)?, found_by(1000)?);
    Ok(())
}

fn the_output_of_another_program_is_rejected() -> Result<(), Failed> {
    assert!(Capabilities::ask("/bin/true".as_ref()).is_err());
    assert!(Capabilities::ask("/bin/echo".as_ref()).is_err());
    assert!(Capabilities::ask("/bin/false".as_ref()).is_err());
    assert!(Capabilities::ask("/does/not/exist".as_ref()).is_err());
    Ok(())
}

fn probe_without(mechanisms: &str) -> Output {
    let mut probe = ourselves_at(OURSELVES.as_ref());
    probe.env(WITHOUT_VARIABLE, mechanisms).output().expect("this executable can be started")
}

fn ourselves_at(path: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "a test of the crate that starts programs")]
    let mut command = Command::new(path);
    command.arg(PROBE_ARG);
    command
}
