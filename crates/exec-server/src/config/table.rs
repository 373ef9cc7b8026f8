//! The list of all settings. A row has the name of a setting, its help, the values it accepts and
//! its field; everything else is derived.

use super::Settings;
use super::kind::{Field, Kind};
use exec_server_host::http::ProtectedVariables;
use exec_server_telemetry::AuditTarget;
use exec_server_transport::{ListenUrl, parse_sha256};

use crate::environment::host_options::HostOptions;
use crate::environment::limit_options::LimitUnit;
use crate::program::logging::parse_filter;

pub(super) const VARIABLE_PREFIX: &str = "EXEC_SERVER_";

#[derive(Debug)]
pub(crate) struct Setting {
    /// The name in the file, from which the names of the flag and the variable are derived. The
    /// part before a dot is a table of the file.
    pub(crate) key: &'static str,
    /// A deprecated key. Its flag and variable are also accepted, with a warning.
    old_key: Option<&'static str>,
    pub(crate) group: &'static str,
    pub(crate) help: &'static str,
    pub(crate) value_name: &'static str,
    /// A variable shared by many programs, used if neither the flag nor the setting's own variable
    /// nor the file sets a value.
    pub(super) customary_variable: Option<&'static str>,
    /// The name of the flag for one item, where the key is the plural.
    flag_of_item: Option<&'static str>,
    kind: Kind,
}

impl Setting {
    /// The current name in the file, then the deprecated one, if any.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.key), self.old_key].into_iter().flatten()
    }

    /// Returns the name of the flag: `max_sessions` becomes `max-sessions`, and `sandbox.network`
    /// becomes `sandbox-network`. The key must be one of [`Self::keys`].
    pub(crate) fn flag(&self, key: &str) -> String {
        let key = self.flag_of_item.filter(|_| key == self.key).unwrap_or(key);
        key.replace(['_', '.'], "-")
    }

    /// Returns the table of the file that contains the setting, if any, and the name there.
    pub(crate) fn place_in_file(&self) -> (Option<&'static str>, &'static str) {
        match self.key.split_once('.') {
            Some((section, name)) => (Some(section), name),
            None => (None, self.key),
        }
    }

    pub(crate) fn is_switch(&self) -> bool {
        self.kind.is_switch()
    }

    pub(crate) fn is_list(&self) -> bool {
        self.separator().is_some()
    }

    pub(crate) fn separator(&self) -> Option<char> {
        self.kind.separator()
    }

    /// Returns the value as it would appear in the file.
    pub(crate) fn show(&self, settings: &Settings) -> toml::Value {
        self.kind.show(settings)
    }

    /// Whether the setting has a value. Without one, [`Self::show`] returns a placeholder, which a
    /// printed file must comment out.
    pub(crate) fn is_given(&self, settings: &Settings) -> bool {
        self.kind.is_given(settings)
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    const fn new(
        group: &'static str,
        key: &'static str,
        value_name: &'static str,
        kind: Kind,
    ) -> Self {
        Self {
            key,
            old_key: None,
            group,
            help: "",
            value_name,
            customary_variable: None,
            flag_of_item: None,
            kind,
        }
    }

    const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    const fn formerly(mut self, old_key: &'static str) -> Self {
        self.old_key = Some(old_key);
        self
    }

    const fn each_by_flag(mut self, flag: &'static str) -> Self {
        self.flag_of_item = Some(flag);
        self
    }

    const fn or_variable(mut self, name: &'static str) -> Self {
        self.customary_variable = Some(name);
        self
    }
}

/// Iterates over every setting with its current key, and again with its deprecated key, if any.
pub(crate) fn keys() -> impl Iterator<Item = (&'static Setting, &'static str)> {
    SETTINGS.iter().flat_map(|setting| setting.keys().map(move |key| (setting, key)))
}

/// Returns the variable of a key: `max_sessions` becomes `EXEC_SERVER_MAX_SESSIONS`.
pub(super) fn variable_of(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

macro_rules! field {
    ($($path:ident).+) => {
        Field { get: |settings| &settings.$($path).+, get_mut: |settings| &mut settings.$($path).+ }
    };
}

/// The table of the file with the settings of clients, which a server ignores.
pub(super) const CLIENT_SECTION: &str = "exec_server";
/// The key of the server's URL, for the commands that need a server. Not in [`SETTINGS`], because
/// the URL is a setting of clients.
pub(crate) const SERVER_URL_KEY: &str = "exec_server.url";
pub(crate) const SERVER_URL_VARIABLE: &str = "EXEC_SERVER_URL";
/// The TOML tables of the file. This module names their keys with a dot: `sandbox.require`.
pub(super) const SECTIONS: &[&str] =
    &[CLIENT_SECTION, "audit", "http", "limits", "network", "sandbox"];
pub(super) const LISTEN_KEY: &str = "listen";
pub(super) const SANDBOX_REQUIRE_KEY: &str = "sandbox.require";
pub(super) const NETWORK_ALLOW_KEY: &str = "network.allow";
pub(super) const NETWORK_ASK_KEY: &str = "network.ask";
/// The one sandbox setting that has an effect without a required level.
pub(super) const SANDBOX_TRUSTED_LINKS_KEY: &str = "sandbox.trusted_links";

const LOG_FILTER: &str = "a log filter such as \"info\" or \"warn,exec_server=debug\"";

pub(super) const NO_AUTH: &str = "none";
pub(super) const CAPABILITY_TOKEN: &str = "capability-token";
pub(super) const SIGNED_BEARER_TOKEN: &str = "signed-bearer-token";
const AUTH_KINDS: &str = "none, capability-token or signed-bearer-token";

/// A path; empty means not set.
const fn path(field: Field<String>) -> Kind {
    Kind::Text { field, expected: "a path", check: any }
}

/// A string; empty means not set.
const fn text(field: Field<String>) -> Kind {
    Kind::Text { field, expected: "a string", check: any }
}

/// A limit; absent means no limit.
const fn limit(field: Field<Option<u64>>, unit: LimitUnit, least: u64) -> Kind {
    Kind::Limit { field, unit, least }
}

fn any(_: &str) -> Result<(), String> {
    Ok(())
}

fn host_pattern(text: &str) -> Result<(), String> {
    HostOptions::check_pattern(text).map_err(|error| error.to_string())
}

/// In display order. Rows of one group are adjacent, and groups in tables of the file come last.
pub(crate) static SETTINGS: &[Setting] = &[
    Setting::new(
        "Listener",
        LISTEN_KEY,
        "URL",
        Kind::OneOrMore {
            field: field!(listen),
            expected: "a URL to listen on such as \"ws://127.0.0.1:0\", \"wss://0.0.0.0:7777\", \
                       \"stdio\", \"unix:///path\", \"systemd\" or \"off\"",
            check: |url| url.parse::<ListenUrl>().map(drop).map_err(|error| error.to_string()),
        },
    )
    .help(
        "Where clients connect: ws://IP:PORT, wss://IP:PORT, unix:///PATH, stdio, off or \
         systemd[:NAME] for sockets from systemd",
    ),
    Setting::new(
        "Listener",
        "allow_origin",
        "ORIGIN",
        Kind::List { field: field!(allow_origins), example: "https://app.example", check: any },
    )
    .help(
        "Accept requests from this web origin; otherwise any request with an Origin header is \
         refused",
    ),
    Setting::new(
        "Listener",
        "allow_host",
        "NAME",
        Kind::List { field: field!(allow_hosts), example: "devbox.example", check: any },
    )
    .help("Accept this name in the Host header, in addition to the listener's address"),
    Setting::new("Listener", "allow_other_users", "BOOL", Kind::Switch(field!(allow_other_users)))
        .help(
            "Whether other users of this machine may connect without credentials; root always may",
        ),
    Setting::new("Listener", "discoverable", "BOOL", Kind::Switch(field!(discoverable)))
        .help("Whether the commands of this user find this server without --connect"),
    Setting::new(
        "Listener",
        "handshake_timeout",
        "DURATION",
        Kind::Duration(field!(handshake_timeout)),
    )
    .help("How long a client may take to complete the WebSocket handshake"),
    Setting::new(
        "Authentication",
        "ws_auth",
        "KIND",
        Kind::Text {
            field: field!(ws_auth),
            expected: AUTH_KINDS,
            check: |kind| {
                let is_known = matches!(kind, NO_AUTH | CAPABILITY_TOKEN | SIGNED_BEARER_TOKEN);
                let unknown = || format!("expected {AUTH_KINDS}, found {kind:?}");
                if is_known { Ok(()) } else { Err(unknown()) }
            },
        },
    )
    .help(
        "How WebSocket clients authenticate: none, capability-token or signed-bearer-token",
    ),
    Setting::new("Authentication", "ws_token_file", "FILE", path(field!(ws_token_file)))
        .help("With capability-token: the file that holds the token"),
    Setting::new(
        "Authentication",
        "ws_token_sha256",
        "HEX",
        Kind::Text {
            field: field!(ws_token_sha256),
            expected: "64 hexadecimal digits",
            check: |digits| match digits.is_empty() || parse_sha256(digits).is_some() {
                true => Ok(()),
                false => Err(format!("expected 64 hexadecimal digits, found {digits:?}")),
            },
        },
    )
    .help("With capability-token: the SHA-256 of the token, instead of the file"),
    Setting::new(
        "Authentication",
        "ws_shared_secret_file",
        "FILE",
        path(field!(ws_shared_secret_file)),
    )
    .help("With signed-bearer-token: the file that holds the secret, of at least 32 bytes"),
    Setting::new("Authentication", "ws_issuer", "TEXT", text(field!(ws_issuer)))
        .help("With signed-bearer-token: tokens must have this issuer (iss)"),
    Setting::new("Authentication", "ws_audience", "TEXT", text(field!(ws_audience)))
        .help("With signed-bearer-token: tokens must be for this audience (aud)"),
    Setting::new(
        "Authentication",
        "ws_max_clock_skew_seconds",
        "SECONDS",
        Kind::Seconds(field!(ws_max_clock_skew)),
    )
    .help("With signed-bearer-token: how far the clocks of signer and server may differ"),
    Setting::new("TLS", "tls_cert", "FILE", path(field!(tls_cert)))
        .help("The certificate of wss:// listeners and those of its authorities, in PEM format"),
    Setting::new("TLS", "tls_key", "FILE", path(field!(tls_key)))
        .help("The private key of the certificate, in PEM format"),
    Setting::new("TLS", "tls_self_signed", "BOOL", Kind::Switch(field!(tls_self_signed)))
        .help("Create and keep a self-signed certificate, and print its fingerprint for clients"),
    Setting::new("TLS", "tls_client_ca", "FILE", path(field!(tls_client_ca)))
        .help("Require client certificates that are signed by an authority in this PEM file"),
    Setting::new("TLS", "insecure", "BOOL", Kind::Switch(field!(insecure)))
        .help("Allow ws:// on addresses that other machines can reach"),
    Setting::new("Remote mode", "remote", "URL", text(field!(remote)))
        .help("Serve clients through this rendezvous: https://HOST[:PORT][/PATH]"),
    Setting::new("Remote mode", "environment_id", "ID", text(field!(environment_id)))
        .help("With remote: the id by which clients address this server"),
    Setting::new("Remote mode", "name", "TEXT", text(field!(name)))
        .help("With remote: a descriptive name, shown in the log of this server"),
    Setting::new("Remote mode", "remote_token_file", "FILE", path(field!(remote_token_file))).help(
        "With remote: the file that holds the token for the rendezvous; otherwise \
         EXEC_SERVER_API_KEY, or the token of exec-server login",
    ),
    Setting::new("Remote mode", "remote_tls_ca", "FILE", path(field!(remote_tls_ca)))
        .help("With remote: trust a rendezvous whose certificate an authority in this file signed"),
    Setting::new(
        "Remote mode",
        "remote_tls_fingerprint",
        "SHA256:HEX",
        text(field!(remote_tls_fingerprint)),
    )
    .help("With remote: trust the rendezvous whose certificate has this SHA-256 fingerprint"),
    Setting::new(
        "Remote mode",
        "use_agent_identity_auth",
        "BOOL",
        Kind::Switch(field!(use_agent_identity_auth)),
    )
    .help(
        "With remote: sign requests to the rendezvous with the identity in \
         EXEC_SERVER_ACCESS_TOKEN",
    ),
    Setting::new("Limits", "max_connections", "COUNT", Kind::Positive(field!(max_connections)))
        .help("Connections at once"),
    Setting::new(
        "Limits",
        "max_connections_per_subject",
        "COUNT",
        Kind::Positive(field!(max_connections_per_subject)),
    )
    .help("Connections of one client at once, by token, certificate or user"),
    Setting::new(
        "Limits",
        "idle_connection_timeout",
        "DURATION",
        Kind::Duration(field!(server.idle_connection_timeout)),
    )
    .help(
        "Close a connection that sends nothing and runs nothing for this long; 0s means never",
    ),
    Setting::new(
        "Limits",
        "max_requests_per_second",
        "COUNT",
        Kind::Rate(field!(server.max_requests_per_second)),
    )
    .help("Requests of one connection per second; 0 means no limit"),
    Setting::new("Limits", "max_sessions", "COUNT", Kind::Positive(field!(server.max_sessions)))
        .help("Sessions at once, with and without a connection"),
    Setting::new(
        "Limits",
        "max_sessions_per_subject",
        "COUNT",
        Kind::Positive(field!(server.max_sessions_per_subject)),
    )
    .help("Sessions of one client, by token, certificate or user"),
    Setting::new(
        "Limits",
        "max_processes_per_session",
        "COUNT",
        Kind::Count(field!(server.max_processes_per_session)),
    )
    .help("Processes of one session that may run at once")
    .formerly("max_processes_per_connection"),
    Setting::new(
        "Limits",
        "max_processes_per_subject",
        "COUNT",
        Kind::Count(field!(server.max_processes_per_subject)),
    )
    .help("Processes of one client, by token, certificate or user, that may run at once"),
    Setting::new("Limits", "max_processes", "COUNT", Kind::Count(field!(server.max_processes)))
        .help("Processes of all clients that may run at once"),
    Setting::new(
        "Limits",
        "max_handles_per_connection",
        "COUNT",
        Kind::Count(field!(server.max_handles_per_connection)),
    )
    .help("Files that one connection may have open"),
    Setting::new(
        "Limits",
        "max_watches_per_connection",
        "COUNT",
        Kind::Count(field!(server.max_watches_per_connection)),
    )
    .help("Paths that one connection may watch"),
    Setting::new(
        "Limits",
        "concurrent_requests",
        "COUNT",
        Kind::Positive(field!(server.concurrent_requests)),
    )
    .help("Requests of one connection that run at once; 1 runs them one at a time"),
    Setting::new(
        "Limits",
        "max_buffered_bytes",
        "BYTES",
        Kind::Bytes(field!(server.max_buffered_bytes)),
    )
    .help(
        "Memory for messages and responses of all connections; 0 means a quarter of the \
         available memory",
    ),
    Setting::new(
        "Limits",
        "retained_output_bytes_per_process",
        "BYTES",
        Kind::Positive(field!(server.retained_output_bytes_per_process)),
    )
    .help("Output of each process kept in memory"),
    Setting::new(
        "Limits",
        "spill_output_bytes_per_process",
        "BYTES",
        Kind::Bytes(field!(server.spill_output_bytes_per_process)),
    )
    .help("Further output of each process kept on disk until its client has it; 0 means none"),
    Setting::new(
        "Limits",
        "max_retained_output_bytes",
        "BYTES",
        Kind::Bytes(field!(server.max_retained_output_bytes)),
    )
    .help("Output of all processes kept in memory; beyond it, each keeps 64 KiB"),
    Setting::new(
        "Limits",
        "max_spilled_output_bytes",
        "BYTES",
        Kind::Bytes(field!(server.max_spilled_output_bytes)),
    )
    .help("Output of all processes kept on disk; beyond it, processes wait for their clients"),
    Setting::new(
        "Sessions",
        "detached_session_ttl",
        "DURATION",
        Kind::Duration(field!(server.detached_session_ttl)),
    )
    .help("How long a session outlives its connection, unless its client requests another time"),
    Setting::new(
        "Sessions",
        "max_detached_session_ttl",
        "DURATION",
        Kind::Duration(field!(server.max_detached_session_ttl)),
    )
    .help("The longest time that a client may request for a session to outlive its connection"),
    Setting::new(
        "Sessions",
        "shutdown_grace_period_ms",
        "MILLISECONDS",
        Kind::Milliseconds(field!(server.shutdown_grace_period)),
    )
    .help("How long processes may take to exit when the server shuts down"),
    Setting::new(
        "Permissions",
        "allow_direct_exec",
        "BOOL",
        Kind::Switch(field!(server.allow_direct_exec)),
    )
    .help("Whether clients may start processes in mode direct"),
    Setting::new(
        "Permissions",
        "allow_prepared_exec",
        "BOOL",
        Kind::Switch(field!(server.allow_prepared_exec)),
    )
    .help("Whether clients may start processes in mode prepared"),
    Setting::new(
        "Logging",
        "log",
        "FILTER",
        Kind::Text {
            field: field!(log),
            expected: LOG_FILTER,
            check: |filter| {
                let failed = |error| format!("expected {LOG_FILTER}, found {filter:?}: {error}");
                parse_filter(filter).map(drop).map_err(failed)
            },
        },
    )
    .help("The filter of the log on standard error; RUST_LOG is the fallback")
    .or_variable("RUST_LOG"),
    Setting::new("Logging", "log_format", "FORMAT", Kind::LogFormat(field!(log_format)))
        .help("The format of log lines: human or json"),
    Setting::new("Metrics", "metrics", "BOOL", Kind::Switch(field!(metrics)))
        .help("Serve Prometheus metrics at /metrics of each listener"),
    Setting::new(
        "Audit log",
        "audit.log",
        "TARGET",
        Kind::Text {
            field: field!(audit_log),
            expected: "journald, journald:SOCKET or an absolute path",
            check: |target| match target.is_empty() {
                true => Ok(()),
                false => target.parse::<AuditTarget>().map(drop),
            },
        },
    )
    .help("Record who did what, as JSON lines in this file, or in the journal with journald"),
    Setting::new("Audit log", "audit.commands", "BOOL", Kind::Switch(field!(audit_commands)))
        .help("Also record command lines and paths"),
    Setting::new("Audit log", "audit.required", "BOOL", Kind::Switch(field!(audit_required)))
        .help("Refuse a request that changes something if the audit log cannot record it"),
    Setting::new(
        "HTTP requests",
        "http.protected_variables",
        "NAME",
        Kind::List {
            field: field!(server.http_protected_variables),
            example: "STRIPE_SECRET_KEY",
            check: ProtectedVariables::check_entry,
        },
    )
    .help(
        "Keep this variable out of clients' HTTP requests; NAME* matches all that begin with \
         NAME",
    )
    .each_by_flag("http.protected_variable"),
    Setting::new(
        "HTTP requests",
        "http.allowed_variables",
        "NAME",
        Kind::List {
            field: field!(server.http_allowed_variables),
            example: "FLY_API_TOKEN",
            check: ProtectedVariables::check_entry,
        },
    )
    .help("Allow this variable in clients' HTTP requests, although it is protected by default")
    .each_by_flag("http.allowed_variable"),
    Setting::new("Limits of processes", "limits.default_memory", "SIZE", limit(field!(server.default_limits.memory_bytes), LimitUnit::Bytes, 1)).help("Memory of a process and its descendants, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_pids", "COUNT", limit(field!(server.default_limits.pids), LimitUnit::Count, 1)).help("Processes and threads in a process tree, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_cpu_time", "DURATION", limit(field!(server.default_limits.cpu_time_ms), LimitUnit::Time, 1)).help("CPU time of a process and its descendants, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_cpus", "NUMBER", Kind::Cpus(field!(server.default_limits.cpus))).help("CPUs that a process and its descendants may keep busy, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_wall_time", "DURATION", limit(field!(server.default_limits.wall_time_ms), LimitUnit::Time, 1)).help("How long a process may run, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_open_files", "COUNT", limit(field!(server.default_limits.open_files), LimitUnit::Count, 1)).help("Files that each process may have open, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_file_size", "SIZE", limit(field!(server.default_limits.file_size_bytes), LimitUnit::Bytes, 0)).help("The largest file that a process may write, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.default_core_size", "SIZE", limit(field!(server.default_limits.core_size_bytes), LimitUnit::Bytes, 0)).help("The largest core file that a process may leave, unless its start sets another limit"),
    Setting::new("Limits of processes", "limits.max_memory", "SIZE", limit(field!(server.max_limits.memory_bytes), LimitUnit::Bytes, 1)).help("The most memory that a process and its descendants may use"),
    Setting::new("Limits of processes", "limits.max_pids", "COUNT", limit(field!(server.max_limits.pids), LimitUnit::Count, 1)).help("The most processes and threads in a process tree"),
    Setting::new("Limits of processes", "limits.max_cpu_time", "DURATION", limit(field!(server.max_limits.cpu_time_ms), LimitUnit::Time, 1)).help("The most CPU time that a process and its descendants may use"),
    Setting::new("Limits of processes", "limits.max_cpus", "NUMBER", Kind::Cpus(field!(server.max_limits.cpus))).help("The most CPUs that a process and its descendants may keep busy"),
    Setting::new("Limits of processes", "limits.max_wall_time", "DURATION", limit(field!(server.max_limits.wall_time_ms), LimitUnit::Time, 1)).help("The longest time that a process may run"),
    Setting::new("Limits of processes", "limits.max_open_files", "COUNT", limit(field!(server.max_limits.open_files), LimitUnit::Count, 1)).help("The most files that each process may have open"),
    Setting::new("Limits of processes", "limits.max_file_size", "SIZE", limit(field!(server.max_limits.file_size_bytes), LimitUnit::Bytes, 0)).help("The largest file that a process may write"),
    Setting::new("Limits of processes", "limits.max_core_size", "SIZE", limit(field!(server.max_limits.core_size_bytes), LimitUnit::Bytes, 0)).help("The largest core file that a process may leave"),
    Setting::new(
        "Network",
        NETWORK_ALLOW_KEY,
        "PATTERN",
        Kind::OptionalList {
            field: field!(network_allow),
            example: "*.example.org:443",
            check: host_pattern,
        },
    )
    .help(
        "Processes may reach only this host: HOST, *.HOST or **.HOST, with an optional \
         :PORT; an empty list allows none",
    ),
    Setting::new(
        "Network",
        "network.deny",
        "PATTERN",
        Kind::List { field: field!(network_deny), example: "*.example.org", check: host_pattern },
    )
    .help(
        "Processes must not reach this host, even if it is allowed; without --network-allow, \
         all others are allowed",
    ),
    Setting::new("Network", NETWORK_ASK_KEY, "BOOL", Kind::Switch(field!(network_ask)))
        .help("Whether a client may decide about hosts that match neither list"),
    Setting::new(
        "Sandbox",
        SANDBOX_REQUIRE_KEY,
        "LEVEL",
        Kind::SandboxLevel(field!(server.sandbox.require)),
    )
    .help(
        "The most access that a client can get: read-only, workspace-write, or none for the same \
         access as the server",
    ),
    Setting::new(
        "Sandbox",
        "sandbox.writable_roots",
        "DIR",
        Kind::Paths { field: field!(server.sandbox.writable_roots), example: "/srv/work" },
    )
    .help(
        "With workspace-write, let clients write below this directory instead of the server's \
         directory",
    )
    .each_by_flag("sandbox.writable_root"),
    Setting::new(
        "Sandbox",
        "sandbox.network",
        "BOOL",
        Kind::Switch(field!(server.sandbox.network)),
    )
    .help("Whether clients of a server that requires a sandbox may use the network"),
    Setting::new(
        "Sandbox",
        SANDBOX_TRUSTED_LINKS_KEY,
        "LINK",
        Kind::Paths { field: field!(server.trusted_links), example: "/home/me/code" },
    )
    .help("Accept grants through this symlink, although a sandboxed process could have made it")
    .each_by_flag("sandbox.trusted_link"),
];
