//! User and host lookups in a static program.

/// In a static program, restricts name lookups to the built-in modules. Does nothing in other
/// programs.
///
/// A static glibc loads the modules that `/etc/nsswitch.conf` names (`systemd`, `sss`, `mdns4`, …),
/// and these load the machine's shared C library. A process with two versions of the C library may
/// crash. So a static program uses only the modules built into it: files such as `/etc/passwd` and
/// `/etc/hosts`, and DNS. Call this before other threads exist.
pub fn use_built_in_name_services() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{CStr, c_char, c_int};

        unsafe extern "C" {
            /// From `nss.h`. Overrides a line of `/etc/nsswitch.conf`.
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }

        const DATABASES: [(&CStr, &CStr); 4] = [
            (c"passwd", c"files"),
            (c"group", c"files"),
            (c"hosts", c"files dns"),
            (c"services", c"files"),
        ];
        for (database, services) in DATABASES {
            // SAFETY: both are C strings. The call fails only for unknown names, and these are
            // known.
            unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
        }
    }
}
