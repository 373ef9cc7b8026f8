//! Translates grants into a Landlock ruleset.
//!
//! If files are restricted, every file right that the ABI knows is handled, so access without a
//! grant is denied. Rules only add rights, so they cannot express carve-outs inside a grant.
//! Landlock does not restrict `stat`, `chmod`, times and extended attributes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use super::open_real::open_real;
use crate::sandbox::plan::LandlockRules;
use crate::sandbox::policy::{Access, Grant};

/// The first ABI with scopes. They keep a confined process from signalling processes outside.
pub const SCOPES_SINCE: u32 = 6;

/// The first ABI with rules for TCP ports.
pub const PORTS_SINCE: u32 = 4;

/// Never granted: no confined program needs to create devices, and creating a device node gives
/// access to the device itself.
const DEVICE_NODES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeChar | MakeBlock});

#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    #[error("Landlock cannot be used here; `exec-server doctor` shows why")]
    Missing,
    #[error("Landlock rejected the ruleset: {0}")]
    Ruleset(#[from] RulesetError),
    #[error("cannot open {} for a Landlock rule: {source}", path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("cannot inspect the terminal for a Landlock rule: {source}")]
    Terminal { source: io::Error },
}

impl LandlockError {
    pub fn raw_os_error(&self) -> Option<i32> {
        let mut cause: &(dyn std::error::Error + 'static) = self;
        while let Some(source) = cause.source() {
            cause = source;
        }
        cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
    }
}

/// A kernel ruleset that is not yet in force.
#[derive(Debug)]
pub struct Ruleset(RulesetCreated);

impl Ruleset {
    /// Grants exactly these parts of the file system.
    ///
    /// A path that is missing or inaccessible grants nothing. A path with a symlink in it is an
    /// error: policies name real paths, so the path has changed since the policy was resolved.
    pub fn new(grants: &[Grant], abi: u32) -> Result<Self, LandlockError> {
        let grants = Some(grants.to_vec());
        Self::of_plan(&LandlockRules { abi, grants, listed: vec![], connect_ports: None }, &[])
    }

    /// Builds the ruleset of a plan, with additional terminals, or directories of terminals, that
    /// the process may open.
    pub fn of_plan(
        rules: &LandlockRules,
        terminals: &[BorrowedFd<'_>],
    ) -> Result<Self, LandlockError> {
        let abi = known(rules.abi)?;
        let mut attributes = strict();
        if rules.grants.is_some() {
            attributes = attributes.handle_access(AccessFs::from_all(abi))?;
        }
        if rules.connect_ports.is_some() {
            attributes = attributes.handle_access(AccessNet::ConnectTcp)?;
        }
        let scopes = Scope::from_all(abi);
        if !scopes.is_empty() {
            attributes = attributes.scope(scopes)?;
        }
        let mut created = attributes.create()?;
        for port in rules.connect_ports.iter().flatten() {
            created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        let Some(grants) = &rules.grants else {
            return Ok(Self(created));
        };
        for grant in grants {
            let rights = match grant.access {
                Access::Deny => continue,
                Access::Read => AccessFs::from_read(abi),
                Access::Write => writing(abi),
            };
            created = add(created, &grant.path, rights, abi)?;
        }
        for directory in &rules.listed {
            created = add(created, directory, AccessFs::ReadDir.into(), abi)?;
        }
        for terminal in terminals {
            let rights = applicable(*terminal, writing(abi), abi)
                .map_err(|errno| LandlockError::Terminal { source: errno.into() })?;
            created = created.add_rule(PathBeneath::new(*terminal, rights))?;
        }
        Ok(Self(created))
    }

    /// The descriptor is closed on exec.
    pub fn into_fd(self) -> Result<OwnedFd, LandlockError> {
        Option::from(self.0).ok_or(LandlockError::Missing)
    }
}

/// Permanently confines the calling thread and everything that it starts from now on. The thread
/// must have set `no_new_privs` before.
///
/// The handled rights were fixed when the ruleset was created, so the call either restricts all of
/// them or fails. It touches no memory except `errno`, so it may be made between fork and exec.
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the call takes a descriptor, which is open, and flags; no memory is involved.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Returns the ABI that the kernel offers. Using it may still be forbidden.
pub fn kernel_abi() -> io::Result<u32> {
    const VERSION: libc::c_ulong = 1;
    let no_attributes = std::ptr::null::<libc::c_void>();
    // SAFETY: a query for the version touches no memory.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, no_attributes, 0_usize, VERSION)
    };
    u32::try_from(abi).map_err(|_| io::Error::last_os_error())
}

/// An unsupported feature is an error, not a weaker ruleset.
fn strict() -> landlock::Ruleset {
    landlock::Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
}

fn known(abi: u32) -> Result<ABI, LandlockError> {
    match ABI::from(i32::try_from(abi).unwrap_or(i32::MAX)) {
        ABI::Unsupported => Err(LandlockError::Missing),
        abi => Ok(abi),
    }
}

fn writing(abi: ABI) -> BitFlags<AccessFs> {
    AccessFs::from_all(abi) & !DEVICE_NODES
}

fn add(
    ruleset: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
    abi: ABI,
) -> Result<RulesetCreated, LandlockError> {
    let failed = |errno: Errno| LandlockError::Path { path: path.into(), source: errno.into() };
    let opened = match open_real(path, OFlags::PATH | OFlags::CLOEXEC) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(ruleset),
        Err(errno) => return Err(failed(errno)),
    };
    let rights = applicable(opened.as_fd(), rights, abi).map_err(failed)?;
    Ok(ruleset.add_rule(PathBeneath::new(opened, rights))?)
}

/// For a file, drops the rights that concern directories: the kernel refuses a rule with them.
fn applicable(
    opened: BorrowedFd<'_>,
    rights: BitFlags<AccessFs>,
    abi: ABI,
) -> Result<BitFlags<AccessFs>, Errno> {
    let is_directory = FileType::from_raw_mode(fstat(opened)?.st_mode) == FileType::Directory;
    Ok(if is_directory { rights } else { rights & AccessFs::from_file(abi) })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use exec_server_test_support::skipped;
    use rustix::process::{Pid, test_kill_process};
    use tempfile::TempDir;

    use super::*;

    fn restrict(ruleset: Ruleset) {
        rustix::thread::set_no_new_privs(true).unwrap();
        restrict_self(ruleset.into_fd().unwrap().as_fd()).unwrap();
    }

    /// Runs `act` in a confined thread. Returns `None` if the kernel has no Landlock.
    fn confined<T: Send>(grants: &[Grant], act: impl FnOnce() -> T + Send) -> Option<T> {
        let Ok(abi) = kernel_abi() else {
            skipped("this kernel has no Landlock");
            return None;
        };
        let ruleset = Ruleset::new(grants, abi).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                restrict(ruleset);
                act()
            });
            Some(thread.join().unwrap())
        })
    }

    fn grant(path: &Path, access: Access) -> Grant {
        Grant { path: path.into(), access }
    }

    fn scene() -> (TempDir, Vec<Grant>) {
        let scene = tempfile::tempdir().unwrap();
        for name in ["readable", "writable", "hidden"] {
            fs::create_dir(scene.path().join(name)).unwrap();
            fs::write(scene.path().join(name).join("old"), "old").unwrap();
        }
        let grants = vec![
            grant(&scene.path().join("readable"), Access::Read),
            grant(&scene.path().join("writable"), Access::Write),
        ];
        (scene, grants)
    }

    fn denied<T>(result: io::Result<T>) -> bool {
        let refused = [Some(libc::EACCES), Some(libc::EPERM), Some(libc::EXDEV)];
        result.is_err_and(|error| refused.contains(&error.raw_os_error()))
    }

    /// Truncates by path, which has no safe wrapper.
    fn truncate(path: &Path) -> io::Result<()> {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path ends with its NUL.
        match unsafe { libc::truncate(path.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[test]
    fn granted_operations_work() {
        let (scene, grants) = scene();
        let (readable, writable) = (scene.path().join("readable"), scene.path().join("writable"));
        confined(&grants, || {
            assert_eq!(fs::read(readable.join("old")).unwrap(), b"old");
            assert_eq!(fs::read_dir(&readable).unwrap().count(), 1);
            fs::create_dir(writable.join("sub")).unwrap();
            fs::write(writable.join("sub/new"), "new").unwrap();
            fs::rename(writable.join("sub/new"), writable.join("moved")).unwrap();
            fs::hard_link(writable.join("moved"), writable.join("sub/link")).unwrap();
            File::options().write(true).open(writable.join("moved")).unwrap().set_len(1).unwrap();
            fs::remove_dir_all(writable.join("sub")).unwrap();
        });
    }

    #[test]
    fn all_other_operations_are_denied() {
        let (scene, grants) = scene();
        let at = |name: &str| scene.path().join(name);
        confined(&grants, || {
            assert!(denied(File::open(at("hidden/old"))));
            assert!(denied(fs::read_dir(at("hidden"))));
            for directory in ["readable", "hidden"] {
                let at = |name: &str| at(directory).join(name);
                assert!(denied(fs::write(at("new"), "x")));
                assert!(denied(OpenOptions::new().append(true).open(at("old"))));
                assert!(denied(truncate(&at("old"))));
                assert!(denied(fs::create_dir(at("new"))));
                assert!(denied(symlink("x", at("new"))));
                assert!(denied(fs::remove_file(at("old"))));
                assert!(denied(fs::rename(scene.path().join("writable/old"), at("new"))));
                assert!(denied(fs::rename(at("old"), scene.path().join("writable/new"))));
                assert!(denied(fs::hard_link(at("old"), scene.path().join("writable/new"))));
            }
        });
        assert_eq!(fs::read(at("readable/old")).unwrap(), b"old");
        assert_eq!(fs::read(at("hidden/old")).unwrap(), b"old");
    }

    #[test]
    fn a_write_grant_does_not_allow_creating_devices() {
        use rustix::fs::{CWD, Mode, mknodat};
        let (scene, grants) = scene();
        let device = scene.path().join("writable/device");
        confined(&grants, || {
            for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
                let made = mknodat(CWD, &device, kind, Mode::RUSR, rustix::fs::makedev(1, 3));
                assert!(denied(made.map_err(io::Error::from)));
            }
            mknodat(CWD, &device, FileType::Fifo, Mode::RUSR, 0).unwrap();
        });
    }

    #[test]
    fn a_single_file_can_be_granted() {
        let (scene, _) = scene();
        let file = scene.path().join("hidden/old");
        confined(&[grant(&file, Access::Write)], || {
            fs::write(&file, "new").unwrap();
            assert!(denied(fs::remove_file(&file)));
        });
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn signals_to_outside_processes_are_denied() {
        if kernel_abi().unwrap_or(0) < SCOPES_SINCE {
            skipped("Landlock of this kernel has no scopes");
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "this crate starts programs")]
        let mut outside =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&outside);
        test_kill_process(pid).unwrap();
        let everything = [grant(Path::new("/"), Access::Write)];
        assert_eq!(confined(&everything, || test_kill_process(pid)), Some(Err(Errno::PERM)));
        let alone = std::thread::spawn(move || {
            let (abi, grants, connect_ports) = (SCOPES_SINCE, None, None);
            let scopes_only = LandlockRules { abi, grants, listed: vec![], connect_ports };
            restrict(Ruleset::of_plan(&scopes_only, &[]).unwrap());
            File::open("/").unwrap();
            test_kill_process(pid)
        });
        assert_eq!(alone.join().unwrap(), Err(Errno::PERM));
        drop(outside.stdin.take());
        outside.wait().unwrap();
    }

    #[test]
    fn a_missing_path_grants_nothing_and_a_symlink_is_an_error() {
        let (scene, mut grants) = scene();
        grants.push(grant(&scene.path().join("missing"), Access::Write));
        grants.push(grant(&scene.path().join("readable/old/below"), Access::Write));
        let created = scene.path().join("missing");
        confined(&grants, || assert!(denied(fs::create_dir(&created))));

        symlink(scene.path().join("hidden"), scene.path().join("link")).unwrap();
        let Ok(abi) = kernel_abi() else {
            return skipped("this kernel has no Landlock");
        };
        for path in ["link", "link/old"] {
            let error = Ruleset::new(&[grant(&scene.path().join(path), Access::Read)], abi);
            let error = error.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{error}");
            assert!(error.to_string().contains("symbolic links"), "{error}");
        }
    }

    #[test]
    fn every_older_abi_confines_the_same_files() {
        let (scene, grants) = scene();
        let Ok(abi) = kernel_abi() else {
            return skipped("this kernel has no Landlock");
        };
        for abi in 1..=abi {
            let ruleset = Ruleset::new(&grants, abi).unwrap();
            let (hidden, outside) = (scene.path().join("hidden/old"), scene.path().join("new"));
            std::thread::spawn(move || {
                restrict(ruleset);
                assert!(denied(File::open(hidden)));
                assert!(denied(File::create(outside)));
            })
            .join()
            .unwrap();
        }
        assert!(matches!(Ruleset::new(&grants, 0), Err(LandlockError::Missing)));
    }
}
