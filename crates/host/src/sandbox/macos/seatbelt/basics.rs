//! Rules that every program on macOS needs, regardless of its policy.

/// Lets a program start, query the machine and the user, and have a terminal and children.
pub(super) const ALWAYS: &str = r#"(version 1)
(deny default)

(allow process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow user-preference-read)
(allow ipc-posix-sem)
(allow mach-lookup
    (global-name "com.apple.system.logger")
    (global-name "com.apple.system.notification_center")
    (global-name "com.apple.system.opendirectoryd.libinfo")
    (global-name "com.apple.system.opendirectoryd.membership"))
(allow pseudo-tty)
(allow file-read* file-write* file-ioctl
    (literal "/dev/null")
    (literal "/dev/ptmx")
    (literal "/dev/tty")
    (literal "/dev/zero")
    (regex #"^/dev/ttys[0-9]+$"))
(allow file-read*
    (literal "/")
    (literal "/dev/random")
    (literal "/dev/urandom"))

"#;

pub(super) const ALL_FILES: &str = "(allow file* process-exec)\n";

/// Includes the services that look up names and check certificates.
pub(super) const NETWORK: &str = r#"(allow network*)
(allow system-socket)
(allow mach-lookup
    (global-name "com.apple.SecurityServer")
    (global-name "com.apple.SystemConfiguration.DNSConfiguration")
    (global-name "com.apple.SystemConfiguration.configd")
    (global-name "com.apple.networkd")
    (global-name "com.apple.ocspd")
    (global-name "com.apple.trustd.agent"))
"#;
