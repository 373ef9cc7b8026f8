//! Fixed lists: the paths that programs need to start, devices, and protected names.

use super::Access;

/// The paths that a dynamically linked program needs to start, if they exist: loader, libraries,
/// programs, the public files that libc reads, certificates without their keys.
pub(in crate::sandbox) const MINIMAL: &[&str] = &[
    "/bin",
    "/sbin",
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/run/current-system",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
    // All of `/proc`: `/proc/self` is a different directory for every process, and rules are about
    // paths. Where possible, a plan makes sure that no process outside the sandbox is visible in
    // `/proc`.
    "/proc",
    "/sys/devices/system/cpu",
];

/// Devices that are part of every restricted policy that grants anything, unless an entry denies
/// them: hardly any program runs without them. None of them carries data of other users; `/dev/tty`
/// is the terminal of the process that opens it.
pub(in crate::sandbox) const DEVICES: &[(&str, Access)] = &[
    ("/dev/full", Access::Write),
    ("/dev/null", Access::Write),
    ("/dev/random", Access::Read),
    ("/dev/tty", Access::Write),
    ("/dev/urandom", Access::Read),
    ("/dev/zero", Access::Write),
];

/// Names protected directly below a writable root, among other places (see `resolve::protection`).
/// Programs outside the sandbox run or trust the content under these names: hooks, instructions,
/// settings.
pub const PROTECTED_NAMES: &[&str] = &[".agents", ".codex", ".git"];
