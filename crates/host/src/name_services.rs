//! Looking up users and hosts in a static program.

/// A static glibc loads the modules that `/etc/nsswitch.conf` names (`systemd`, `sss`, `mdns4`, …), and these bring the shared C
/// library of the machine. Two versions of it in one process may crash. So a static program uses those modules only that are
/// built into it: `/etc/passwd`, `/etc/hosts` and DNS. Call it before there are other threads.
pub fn use_built_in_name_services() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{CStr, c_char, c_int};

        unsafe extern "C" {
            /// Of `nss.h`. Overrides a line of `/etc/nsswitch.conf`.
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }

        const DATABASES: [(&CStr, &CStr); 4] = [
            (c"passwd", c"files"),
            (c"group", c"files"),
            (c"hosts", c"files dns"),
            (c"services", c"files"),
        ];
        for (database, services) in DATABASES {
            // SAFETY: both are strings of C. It fails for unknown names only, and these are known.
            unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
        }
    }
}
