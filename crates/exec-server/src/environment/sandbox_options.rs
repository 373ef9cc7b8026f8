//! A sandbox in terms of the flags of `run` and of `environments.toml`, and its conversion to the
//! protocol. The server checks whether its machine can enforce the sandbox.

use exec_server_protocol::{
    FileSystemPermissions, NetworkPermission, PathUri, Permissions, SandboxAccess, SandboxEntry,
    SandboxEntryPath, SandboxMode, SandboxProfile, SandboxRequest, SpecialPath,
};
use exec_server_server::SandboxLevel;

use super::host_options::HostOptions;

/// The rights of a process: it may read everything that is not denied, and write only in the given
/// directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOptions {
    pub level: SandboxLevel,
    /// With [`SandboxLevel::WorkspaceWrite`]: writable directories in addition to the working
    /// directory and the temporary directories.
    pub writable: Vec<PathUri>,
    /// Paths that can be neither read nor written. A relative path is below the working directory;
    /// a relative pattern applies below the working directory and every writable directory.
    pub deny: Vec<String>,
    /// Whether all hosts are reachable.
    pub network: bool,
    /// Host rules, which replace [`Self::network`].
    pub hosts: HostOptions,
}

/// Why a pattern would deny less than its author expects. That must be an error, because the gap
/// would go unnoticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DenyPatternError {
    #[error("an empty name denies nothing")]
    Empty,
    #[error("~ is not expanded here; write the whole path")]
    Home,
    #[error(
        "variables are not expanded here; write the whole path, or put ./ before a name that begins with $"
    )]
    Variable,
    #[error("this is a URI; write the path without file://")]
    Uri,
    #[error("** matches directories and must be a whole component, as in **/*.pem")]
    StarsInName,
}

impl SandboxOptions {
    /// Checks that a pattern in [`Self::deny`] denies what its author expects. Servers refuse other
    /// invalid patterns.
    pub fn check_deny_pattern(text: &str) -> Result<(), DenyPatternError> {
        if text.is_empty() {
            return Err(DenyPatternError::Empty);
        }
        if text == "~" || text.starts_with("~/") {
            return Err(DenyPatternError::Home);
        }
        if starts_with_variable(text) {
            return Err(DenyPatternError::Variable);
        }
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
            return Err(DenyPatternError::Uri);
        }
        // With escapes, classes or alternatives, only the server can tell whether `**` is valid.
        let is_plain = !text.contains(['\\', '[', '{']);
        if is_plain && text.split('/').any(|name| name.contains("**") && name != "**") {
            return Err(DenyPatternError::StarsInName);
        }
        Ok(())
    }

    /// Converts the options, except for host rules, for a process that starts in `cwd`.
    /// [`HostOptions::rules`] converts those.
    #[must_use]
    pub fn request(&self, cwd: &PathUri) -> SandboxRequest {
        if !self.deny.is_empty() {
            return SandboxRequest::profile(&self.profile(cwd));
        }
        SandboxRequest::mode(&match self.level {
            SandboxLevel::ReadOnly => SandboxMode::ReadOnly { network_access: self.network },
            SandboxLevel::WorkspaceWrite => SandboxMode::WorkspaceWrite {
                writable_roots: self.writable.clone(),
                network_access: self.network,
                exclude_tmpdir_env_var: false,
                exclude_slash_tmp: false,
                cwd: None,
            },
        })
    }

    /// Returns the only form of request that can deny paths.
    fn profile(&self, cwd: &PathUri) -> SandboxProfile {
        let mut entries = vec![entry(special("root"), SandboxAccess::Read)];
        let mut workspace_roots = vec![cwd.clone()];
        if self.level == SandboxLevel::WorkspaceWrite {
            let kinds = ["project_roots", "tmpdir", "slash_tmp"];
            entries.extend(kinds.map(|kind| entry(special(kind), SandboxAccess::Write)));
            workspace_roots.extend(self.writable.iter().cloned());
        }
        let denied = self.deny.iter().map(|text| entry(denied(text, cwd), SandboxAccess::Deny));
        entries.extend(denied);
        SandboxProfile {
            permissions: Permissions::Managed {
                file_system: FileSystemPermissions::Restricted {
                    entries,
                    glob_scan_max_depth: None,
                },
                network: match self.network {
                    true => NetworkPermission::Enabled,
                    false => NetworkPermission::Restricted,
                },
            },
            cwd: Some(cwd.clone()),
            workspace_roots,
        }
    }
}

/// Whether a string starts like `$HOME/.ssh` or `${HOME}`.
fn starts_with_variable(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('$') else { return false };
    let name = rest.split('/').next().unwrap_or(rest);
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let is_of_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    !name.is_empty() && name.chars().all(is_of_name)
}

/// Converts a denial. A value without pattern characters becomes an exact path: then symlinks in it
/// are resolved, and it is denied even if it is created after the start.
fn denied(text: &str, cwd: &PathUri) -> SandboxEntryPath {
    const OF_PATTERNS: &[char] = &['*', '?', '[', ']', '{', '}', '\\'];
    let pattern = || SandboxEntryPath::GlobPattern { pattern: text.to_owned() };
    if text.contains(OF_PATTERNS) {
        return pattern();
    }
    match PathUri::from_path(cwd.as_path().join(text)) {
        Some(path) => SandboxEntryPath::Path { path },
        // The server reports the error.
        None => pattern(),
    }
}

fn entry(path: SandboxEntryPath, access: SandboxAccess) -> SandboxEntry {
    SandboxEntry { path, access, missing_path_behavior: None }
}

fn special(kind: &str) -> SandboxEntryPath {
    SandboxEntryPath::Special { value: SpecialPath::new(kind) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn uri(path: &str) -> PathUri {
        PathUri::from_path(path).unwrap()
    }

    fn object(options: &SandboxOptions) -> Value {
        let request = options.request(&uri("/srv/app"));
        request.parse().unwrap();
        serde_json::to_value(request).unwrap()
    }

    fn options(level: SandboxLevel) -> SandboxOptions {
        SandboxOptions {
            level,
            writable: Vec::new(),
            deny: Vec::new(),
            network: false,
            hosts: HostOptions::default(),
        }
    }

    #[test]
    fn modes_suffice_unless_a_path_is_denied() {
        assert_eq!(
            object(&SandboxOptions { network: true, ..options(SandboxLevel::ReadOnly) }),
            json!({"type": "read-only", "network_access": true})
        );
        let writable = vec![uri("/srv/a b")];
        let workspace = SandboxOptions { writable, ..options(SandboxLevel::WorkspaceWrite) };
        assert_eq!(
            object(&workspace),
            json!({"type": "workspace-write", "writable_roots": ["file:///srv/a%20b"], "network_access": false,
                   "exclude_tmpdir_env_var": false, "exclude_slash_tmp": false})
        );
    }

    #[test]
    fn denials_that_deny_less_than_expected_are_refused() {
        for (text, mistake) in [
            ("", DenyPatternError::Empty),
            ("~", DenyPatternError::Home),
            ("~/.ssh", DenyPatternError::Home),
            ("$HOME/.ssh", DenyPatternError::Variable),
            ("${HOME}/.ssh", DenyPatternError::Variable),
            ("$HOME", DenyPatternError::Variable),
            ("$XDG_DATA_HOME/**/*.pem", DenyPatternError::Variable),
            ("file:///home/me/.ssh", DenyPatternError::Uri),
            ("File:/srv/*.pem", DenyPatternError::Uri),
            ("**.pem", DenyPatternError::StarsInName),
            ("/srv/**x/y", DenyPatternError::StarsInName),
        ] {
            assert_eq!(SandboxOptions::check_deny_pattern(text), Err(mistake), "{text}");
        }
        for text in [
            "~backup",
            "a~",
            "**/*.pem",
            "/srv/**",
            "**",
            "a*b*",
            r"\**",
            "[**]",
            "{**/a,b}",
            "./$HOME",
            "$RECYCLE.BIN",
            "Outer$Inner.class",
            "$",
            "files",
            "./file:",
            "é",
        ] {
            assert_eq!(SandboxOptions::check_deny_pattern(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn denials_are_paths_or_patterns() {
        let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
        let denied = |path: Value| json!({"path": path, "access": "deny"});
        let path = |path: &str| denied(json!({"type": "path", "path": path}));
        let glob = denied(json!({"type": "glob_pattern", "pattern": "**/*.pem"}));
        let deny = ["secrets", "/home/me/.ssh", "**/*.pem"].map(str::to_owned).to_vec();
        let writable = vec![uri("/srv")];
        let workspace = SandboxOptions {
            writable,
            deny,
            network: true,
            ..options(SandboxLevel::WorkspaceWrite)
        };
        assert_eq!(
            object(&workspace),
            json!({
                "permissions": {
                    "type": "managed",
                    "file_system": {"type": "restricted", "entries": [
                        special("root", "read"), special("project_roots", "write"), special("tmpdir", "write"),
                        special("slash_tmp", "write"), path("file:///srv/app/secrets"), path("file:///home/me/.ssh"), glob,
                    ]},
                    "network": "enabled",
                },
                "cwd": "file:///srv/app",
                "workspaceRoots": ["file:///srv/app", "file:///srv"],
            })
        );
        let nothing_to_write =
            SandboxOptions { deny: vec!["a?".to_owned()], ..options(SandboxLevel::ReadOnly) };
        let object = object(&nothing_to_write);
        let entries = &object["permissions"]["file_system"]["entries"];
        assert_eq!(entries.as_array().unwrap().len(), 2);
        assert!(!entries.to_string().contains("write"), "{entries}");
    }
}
