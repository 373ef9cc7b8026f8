//! The sandbox object, in both of its forms.
//!
//! A policy is parsed strictly: an unknown member might be a restriction, so it is an error.
//! Unknown members beside `permissions` are for other platforms or other versions and are ignored.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{NetworkEnforcement, PathUri, nullable};

/// A sandbox object as raw JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxRequest(pub Box<RawValue>);

impl SandboxRequest {
    /// Whether the object asks for no restriction at all, for example by `danger-full-access` or
    /// `disabled` permissions. An object that does not parse counts as a restriction.
    #[must_use]
    pub fn asks_for_nothing(&self) -> bool {
        match self.parse() {
            Ok(Sandbox::Mode(mode)) => matches!(
                mode,
                SandboxMode::DangerFullAccess {}
                    | SandboxMode::ExternalSandbox { network_access: ExternalNetwork::Enabled }
            ),
            Ok(Sandbox::Profile(SandboxProfile { permissions, .. })) => matches!(
                permissions,
                Permissions::Disabled {}
                    | Permissions::External { network: NetworkPermission::Enabled }
                    | Permissions::Managed {
                        file_system: FileSystemPermissions::Unrestricted {},
                        network: NetworkPermission::Enabled,
                    }
            ),
            Err(_) => false,
        }
    }

    pub fn parse(&self) -> Result<Sandbox, SandboxSyntaxError> {
        #[derive(Deserialize)]
        struct Forms<'a> {
            #[serde(borrow)]
            r#type: Option<&'a RawValue>,
            #[serde(borrow)]
            permissions: Option<&'a RawValue>,
        }
        let text = self.0.get();
        // Serde would also accept an array of the members.
        if !text.trim_start().starts_with('{') {
            return Err(SandboxSyntaxError("expected an object".to_owned()));
        }
        let forms: Forms<'_> = serde_json::from_str(text).map_err(SandboxSyntaxError::new)?;
        match (forms.r#type, forms.permissions) {
            (Some(_), None) => serde_json::from_str(text).map(Sandbox::Mode),
            (None, Some(_)) => serde_json::from_str(text).map(Sandbox::Profile),
            (Some(_), Some(_)) => Err(serde_json::Error::custom(
                "it has both `type` and `permissions`; use one of the two forms",
            )),
            (None, None) => Err(serde_json::Error::custom(
                "it has neither `type` nor `permissions`; use one of the two forms",
            )),
        }
        .map_err(SandboxSyntaxError::new)
    }

    #[must_use]
    pub fn mode(mode: &SandboxMode) -> Self {
        let text = serde_json::value::to_raw_value(mode);
        Self(text.expect("a mode serializes: it has only string keys and plain values"))
    }

    #[must_use]
    pub fn profile(profile: &SandboxProfile) -> Self {
        let text = serde_json::value::to_raw_value(profile);
        Self(text.expect("a profile serializes: it has only string keys and plain values"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSyntaxError(String);

impl SandboxSyntaxError {
    /// Drops the position, which would refer to the object and not to the message.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn new(error: serde_json::Error) -> Self {
        let text = error.to_string();
        let without_position = text.split(" at line ").next().unwrap_or_default();
        Self(without_position.to_owned())
    }
}

impl fmt::Display for SandboxSyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox: {}", self.0)
    }
}

impl std::error::Error for SandboxSyntaxError {}

impl SpecialPath {
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), subpath: None, others: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sandbox {
    Mode(SandboxMode),
    Profile(SandboxProfile),
}

/// The short form of a sandbox object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SandboxMode {
    ReadOnly {
        #[serde(default, deserialize_with = "nullable::or_default")]
        network_access: bool,
    },
    WorkspaceWrite {
        #[serde(default, deserialize_with = "nullable::or_default")]
        writable_roots: Vec<PathUri>,
        #[serde(default, deserialize_with = "nullable::or_default")]
        network_access: bool,
        #[serde(default, deserialize_with = "nullable::or_default")]
        exclude_tmpdir_env_var: bool,
        #[serde(default, deserialize_with = "nullable::or_default")]
        exclude_slash_tmp: bool,
        /// The workspace. Default: the `cwd` of the request, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<PathUri>,
    },
    DangerFullAccess {},
    ExternalSandbox {
        #[serde(default, deserialize_with = "nullable::or_default")]
        network_access: ExternalNetwork,
    },
}

/// The network access that an outer sandbox allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ExternalNetwork {
    #[default]
    Restricted,
    Enabled,
}

/// The profile form of a sandbox object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_type))]
#[serde(rename_all = "camelCase")]
pub struct SandboxProfile {
    pub permissions: Permissions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub workspace_roots: Vec<PathUri>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Permissions {
    Managed {
        file_system: FileSystemPermissions,
        network: NetworkPermission,
    },
    /// No sandbox.
    Disabled {},
    /// An outer sandbox restricts the file system.
    External {
        network: NetworkPermission,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileSystemPermissions {
    Restricted {
        entries: Vec<SandboxEntry>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<usize>,
    },
    Unrestricted {},
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkPermission {
    Restricted,
    Enabled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SandboxEntry {
    pub path: SandboxEntryPath,
    pub access: SandboxAccess,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPath>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("enum" = ["read", "write", "deny", "none"])))]
#[serde(rename_all = "snake_case")]
pub enum SandboxAccess {
    Read,
    Write,
    #[serde(alias = "none")]
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissingPath {
    /// The entry is dropped.
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SandboxEntryPath {
    Special { value: SpecialPath },
    Path { path: PathUri },
    GlobPattern { pattern: String },
}

/// An unknown kind is kept by name: whether it is an error depends on the access of its entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpecialPath {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
    /// Members that known kinds do not have.
    #[serde(flatten)]
    pub others: BTreeMap<String, serde_json::Value>,
}

/// The mechanisms that confine a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// The Landlock ABI version in use. Absent if Landlock is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock: Option<u32>,
    pub seccomp: bool,
    pub pid_namespace: bool,
    #[serde(default)]
    pub network_namespace: bool,
    pub bubblewrap: bool,
    /// Absent if the network is unrestricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkEnforcement>,
}

/// The access that a failed process seems to have been denied, according to its output or to the
/// network policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Denial {
    /// The path as printed by the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The first `HOST:PORT` that the network policy refused, or `HOST` if it was only looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Sandbox, SandboxSyntaxError> {
        serde_json::from_str::<SandboxRequest>(text).unwrap().parse()
    }

    #[test]
    fn unrestricted_objects_ask_for_nothing() {
        for (text, nothing) in [
            (r#"{"type":"danger-full-access"}"#, true),
            (r#"{"permissions":{"type":"disabled"},"cwd":"file:///"}"#, true),
            (r#"{"type":"read-only"}"#, false),
            (r#"{"type":"external-sandbox"}"#, false),
            (r#"{"type":"external-sandbox","network_access":"enabled"}"#, true),
            (r#"{"permissions":{"type":"external","network":"enabled"}}"#, true),
            (r#"{"permissions":{"type":"external","network":"restricted"}}"#, false),
            (
                r#"{"permissions":{"type":"managed","network":"enabled","file_system":{"type":"unrestricted"}}}"#,
                true,
            ),
            (
                r#"{"permissions":{"type":"managed","network":"enabled","file_system":{"type":"restricted","entries":[]}}}"#,
                false,
            ),
            (r#"{"permissions":{"type":"managed"}}"#, false),
            (r#"{}"#, false),
            (r#"{"type":"read-only","permissions":{"type":"disabled"}}"#, false),
            (r#"{"type":"danger-full-access","permissions":{"type":"managed"}}"#, false),
            (r#"{"type":"danger-full-access","writable_roots":[]}"#, false),
        ] {
            let request: SandboxRequest = serde_json::from_str(text).unwrap();
            assert_eq!(request.asks_for_nothing(), nothing, "{text}");
        }
    }

    #[test]
    fn the_short_form_parses() {
        let text = r#"{"type":"workspace-write","writable_roots":["/a","file:///b%20c"],"network_access":true,
            "exclude_tmpdir_env_var":null,"exclude_slash_tmp":true,"cwd":"file:///w"}"#;
        let uri = |path: &str| PathUri::from_path(path).unwrap();
        assert_eq!(
            parse(text).unwrap(),
            Sandbox::Mode(SandboxMode::WorkspaceWrite {
                writable_roots: vec![uri("/a"), uri("/b c")],
                network_access: true,
                exclude_tmpdir_env_var: false,
                exclude_slash_tmp: true,
                cwd: Some(uri("/w")),
            })
        );
        let restricted =
            SandboxMode::ExternalSandbox { network_access: ExternalNetwork::Restricted };
        assert_eq!(parse(r#"{"type":"external-sandbox"}"#).unwrap(), Sandbox::Mode(restricted));
    }

    #[test]
    fn the_profile_form_parses() {
        let text = r#"{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[
              {"path":{"type":"special","value":{"kind":"project_roots","subpath":"docs"}},"access":"write"},
              {"path":{"type":"path","path":"file:///src"},"access":"none","missing_path_behavior":"skip"},
              {"path":{"type":"glob_pattern","pattern":"**/*.pem"},"access":"deny"}],
            "glob_scan_max_depth":8},"network":"enabled"},
            "cwd":"file:///src","workspaceRoots":["file:///src"],"windowsSandboxLevel":"disabled","useLegacyLandlock":false}"#;
        let Sandbox::Profile(profile) = parse(text).unwrap() else { panic!("a mode") };
        assert_eq!(profile.workspace_roots.len(), 1);
        let Permissions::Managed { file_system, network } = &profile.permissions else {
            panic!("{profile:?}")
        };
        assert_eq!(*network, NetworkPermission::Enabled);
        let FileSystemPermissions::Restricted { entries, glob_scan_max_depth: Some(8) } =
            file_system
        else {
            panic!("{file_system:?}")
        };
        assert_eq!(entries[1].access, SandboxAccess::Deny);
        assert_eq!(entries[1].missing_path_behavior, Some(MissingPath::Skip));
        let again = SandboxRequest::profile(&profile).parse().unwrap();
        assert_eq!(again, Sandbox::Profile(profile));
    }

    #[test]
    fn unknown_policy_members_are_refused() {
        for (text, reason) in [
            (r#"{"type":"read-only","surprise":1}"#, "unknown field"),
            (r#"{"type":"read-write"}"#, "unknown variant"),
            (r#"{"type":"workspace-write","writable_roots":["relative"]}"#, "not an absolute path"),
            (r#"{"permissions":{"type":"managed"}}"#, "missing field"),
            (r#"{"permissions":{"type":"disabled","network":"restricted"}}"#, "unknown field"),
            (r#"{"permissions":{"type":"external","network":"some"}}"#, "unknown variant"),
            (
                r#"{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[],"deny":[]},"network":"enabled"}}"#,
                "unknown field",
            ),
            ("[]", "expected an object"),
            (r#"["read-only",null]"#, "expected an object"),
            (r#""read-only""#, "expected an object"),
            ("{}", "neither"),
            (r#"{"type":"read-only","permissions":{"type":"disabled"}}"#, "both"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("sandbox: ") && error.contains(reason), "{text}: {error}");
        }
    }
}
