//! Fixed lists: what programs need in order to start, and names that are protected.

use super::Access;

/// What a dynamic program needs in order to start, as far as it exists: loader, libraries, programs, the files that libc reads for
/// anybody, certificates without their keys.
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
    // All of it: `/proc/self` is another directory for every process, and rules are about paths. Where it can, a plan sees to it that
    // nobody else is there.
    "/proc",
    "/sys/devices/system/cpu",
];

/// Of every restricted policy that grants anything, unless an entry denies them: hardly a program runs without. Nothing that is in one
/// of them belongs to somebody else; `/dev/tty` is the terminal of whoever opens it.
pub(in crate::sandbox) const DEVICES: &[(&str, Access)] = &[
    ("/dev/full", Access::Write),
    ("/dev/null", Access::Write),
    ("/dev/random", Access::Read),
    ("/dev/tty", Access::Write),
    ("/dev/urandom", Access::Read),
    ("/dev/zero", Access::Write),
];

/// Directly below a writable root. What is in them is run or believed outside of the sandbox: hooks, instructions, settings.
pub(in crate::sandbox) const PROTECTED_NAMES: &[&str] = &[".agents", ".codex", ".git"];
