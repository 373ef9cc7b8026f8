//! `environments.toml`: its location and content. Connects to nothing and opens no other file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_server_client::ExecServerLaunchCommand;
use exec_server_relay::registry::RegistryError;
use exec_server_transport::{
    ClientIdentity, DialUrlParseError, FingerprintParseError, ServerTrust,
};
use serde::Deserialize;
use toml::Spanned;

use self::EnvironmentsFileMistake as Mistake;
use super::named::LOCAL_ENVIRONMENT_ID;
use super::remote::RemoteServer;
use super::sandbox_table::{SandboxTable, SandboxTableMistake};
use crate::config::Location;

pub(crate) const ENVIRONMENTS_VARIABLE: &str = "EXEC_SERVER_ENVIRONMENTS";

#[derive(Debug)]
pub(super) struct EnvironmentsFile {
    pub(super) default: Option<String>,
    pub(super) include_local: bool,
    /// In file order.
    pub(super) environments: Vec<(String, RemoteServer)>,
}

/// An error in an environments file. Its message is one line.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentsFileError {
    #[error("{}: cannot read the environments file: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {mistake}", .path.display())]
    Mistake { path: PathBuf, line: usize, mistake: EnvironmentsFileMistake },
}

/// The kinds of mistakes in a file.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentsFileMistake {
    #[error("{0}")]
    Syntax(String),
    #[error("environment {id:?} is defined twice")]
    DuplicateId { id: String },
    #[error("the id of an environment must not be empty")]
    EmptyId,
    #[error("the id \"local\" means this machine; choose another id, or set include_local = false")]
    LocalId,
    #[error("default: unknown environment {id:?}; known environments: {known}")]
    UnknownDefault { id: String, known: String },
    #[error(
        "no environment is defined, and include_local is false; define one, or remove include_local"
    )]
    Nothing,
    #[error("environment {id:?} needs one of url, program and remote")]
    NoKind { id: String },
    #[error("environment {id:?}: {source}")]
    Relay { id: String, source: Box<RegistryError> },
    #[error("environment {id:?}: {key} has no effect without program")]
    NoProgram { id: String, key: &'static str },
    #[error("environment {id:?}: {key} has no effect without url or remote")]
    NoUrl { id: String, key: &'static str },
    #[error(
        "environment {id:?}: {key} has no effect without a wss:// url or an https:// \
         remote"
    )]
    NoTls { id: String, key: &'static str },
    #[error("environment {id:?} has both {first} and {second}; remove one of them")]
    Both { id: String, first: &'static str, second: &'static str },
    #[error("environment {id:?}: {first} needs {second}")]
    Needs { id: String, first: &'static str, second: &'static str },
    #[error("environment {id:?}: {source}")]
    Fingerprint { id: String, source: FingerprintParseError },
    #[error("environment {id:?}: program must not be empty")]
    EmptyProgram { id: String },
    #[error("environment {id:?}: {source}")]
    Url { id: String, source: DialUrlParseError },
    #[error("environment {id:?}: {key} must be more than 0 and at most a year")]
    Timeout { id: String, key: &'static str },
    #[error("environment {id:?}: sandbox: {source}")]
    Sandbox { id: String, source: SandboxTableMistake },
}

impl EnvironmentsFile {
    /// Reads the file that [`ENVIRONMENTS_VARIABLE`] names, or else the default file if it exists.
    pub(super) fn find(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, EnvironmentsFileError> {
        locate(variable).map_or(Ok(None), |location| Self::read_at(&location))
    }

    pub(super) fn read(path: &Path) -> Result<Self, EnvironmentsFileError> {
        let file = Self::read_at(&Location::Named(path.to_owned()))?;
        Ok(file.expect("only the default file may be missing"))
    }

    fn read_at(location: &Location) -> Result<Option<Self>, EnvironmentsFileError> {
        let path = location.path();
        let text = location.read().map_err(|source| EnvironmentsFileError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let Some(text) = text else { return Ok(None) };
        let directory = path.parent().unwrap_or(Path::new(""));
        parse(&text, directory).map(Some).map_err(|MistakeAt { offset, mistake }| {
            let before = text.bytes().take(offset);
            let line = 1 + before.filter(|byte| *byte == b'\n').count();
            EnvironmentsFileError::Mistake { path: path.to_owned(), line, mistake }
        })
    }
}

fn locate(variable: impl Fn(&str) -> Option<OsString>) -> Option<Location> {
    let named = variable(ENVIRONMENTS_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    Location::new(named, "environments.toml", variable)
}

#[derive(Debug)]
struct MistakeAt {
    offset: usize,
    mistake: Mistake,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    default: Option<Spanned<String>>,
    #[serde(default = "yes")]
    include_local: bool,
    #[serde(default)]
    environments: Vec<Spanned<EnvironmentText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentText {
    id: Spanned<String>,
    url: Option<Spanned<String>>,
    remote: Option<Spanned<String>>,
    environment_id: Option<Spanned<String>>,
    use_agent_identity_auth: Option<Spanned<bool>>,
    program: Option<Spanned<PathBuf>>,
    args: Option<Spanned<Vec<String>>>,
    env: Option<Spanned<BTreeMap<String, String>>>,
    cwd: Option<Spanned<PathBuf>>,
    connect_timeout_sec: Option<Spanned<f64>>,
    initialize_timeout_sec: Option<Spanned<f64>>,
    token_file: Option<Spanned<PathBuf>>,
    token_env: Option<Spanned<String>>,
    tls_ca: Option<Spanned<PathBuf>>,
    tls_fingerprint: Option<Spanned<String>>,
    tls_client_cert: Option<Spanned<PathBuf>>,
    tls_client_key: Option<Spanned<PathBuf>>,
    sandbox: Option<SandboxTable>,
}

fn yes() -> bool {
    true
}

/// Relative paths in the text, except that of a `program`, start at `directory`.
fn parse(text: &str, directory: &Path) -> Result<EnvironmentsFile, MistakeAt> {
    let file: FileText = toml::from_str(text).map_err(|error| MistakeAt {
        offset: error.span().map_or(0, |span| span.start),
        mistake: Mistake::Syntax(error.message().replace('\n', ", ")),
    })?;
    let mut ids = BTreeSet::new();
    if file.include_local {
        ids.insert(LOCAL_ENVIRONMENT_ID.to_owned());
    }
    let mut environments = Vec::new();
    for environment in file.environments {
        let at = environment.span().start;
        let environment = environment.into_inner();
        let (id, offset) = (environment.id.get_ref().clone(), environment.id.span().start);
        if id.is_empty() {
            return Err(MistakeAt { offset, mistake: Mistake::EmptyId });
        }
        if !ids.insert(id.clone()) {
            let is_local = file.include_local && id == LOCAL_ENVIRONMENT_ID;
            let duplicate = Mistake::DuplicateId { id };
            let mistake = if is_local { Mistake::LocalId } else { duplicate };
            return Err(MistakeAt { offset, mistake });
        }
        environments.push((id, environment.check(at, directory)?));
    }
    if ids.is_empty() {
        return Err(MistakeAt { offset: 0, mistake: Mistake::Nothing });
    }
    if let Some(default) = &file.default
        && !ids.contains(default.get_ref())
    {
        let known = ids.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(", ");
        let mistake = Mistake::UnknownDefault { id: default.get_ref().clone(), known };
        return Err(MistakeAt { offset: default.span().start, mistake });
    }
    Ok(EnvironmentsFile {
        default: file.default.map(Spanned::into_inner),
        include_local: file.include_local,
        environments,
    })
}

impl EnvironmentText {
    /// `at` is the position of the environment in the text.
    fn check(self, at: usize, directory: &Path) -> Result<RemoteServer, MistakeAt> {
        let id = self.id.get_ref();
        let timeout = |key, seconds: &Option<Spanned<f64>>| {
            seconds.as_ref().map(|seconds| positive(id, key, seconds)).transpose()
        };
        let connect_timeout = timeout("connect_timeout_sec", &self.connect_timeout_sec)?;
        let initialize_timeout = timeout("initialize_timeout_sec", &self.initialize_timeout_sec)?;
        let sandbox = self.sandbox.as_ref().map(SandboxTable::check).transpose();
        let sandbox = sandbox.map_err(|(offset, source)| MistakeAt {
            offset,
            mistake: Mistake::Sandbox { id: id.clone(), source },
        })?;
        self.check_kind()?;
        let mut server = match (&self.url, &self.program, &self.remote) {
            (Some(url), ..) => self.listening(url, directory)?,
            (None, Some(program), _) => self.launched(program, directory)?,
            (None, None, Some(registry)) => self.relayed(registry, directory)?,
            (None, None, None) => {
                let mistake = Mistake::NoKind { id: id.clone() };
                return Err(MistakeAt { offset: at, mistake });
            }
        };
        server.connect_timeout = connect_timeout;
        server.initialize_timeout = initialize_timeout;
        server.sandbox = sandbox;
        Ok(server)
    }

    /// Checks that at most one way to reach the server is given: by URL, by starting it, or through
    /// a relay. Also checks the keys that only a relay has.
    fn check_kind(&self) -> Result<(), MistakeAt> {
        let id = || self.id.get_ref().clone();
        let kinds = [
            ("url", start(&self.url)),
            ("program", start(&self.program)),
            ("remote", start(&self.remote)),
        ];
        let mut given = kinds.into_iter().filter_map(|(key, offset)| Some((key, offset?)));
        if let (Some((first, _)), Some((second, offset))) = (given.next(), given.next()) {
            return Err(MistakeAt { offset, mistake: Mistake::Both { id: id(), first, second } });
        }
        let (remote, environment) = (start(&self.remote), start(&self.environment_id));
        let (first, second) = ("remote", "environment_id");
        match (remote, environment) {
            (Some(offset), None) => {
                Err(MistakeAt { offset, mistake: Mistake::Needs { id: id(), first, second } })
            }
            (None, Some(offset)) => {
                let mistake = Mistake::Needs { id: id(), first: second, second: first };
                Err(MistakeAt { offset, mistake })
            }
            _ => self.check_identity(),
        }
    }

    fn check_identity(&self) -> Result<(), MistakeAt> {
        let first = "use_agent_identity_auth";
        let Some(offset) = start(&self.use_agent_identity_auth) else { return Ok(()) };
        let id = self.id.get_ref().clone();
        let token =
            [("token_file", start(&self.token_file)), ("token_env", start(&self.token_env))]
                .into_iter()
                .find(|(_, offset)| offset.is_some());
        match (&self.remote, token) {
            (None, _) => {
                let mistake = Mistake::Needs { id, first, second: "remote" };
                Err(MistakeAt { offset, mistake })
            }
            (Some(_), Some((second, _))) => {
                Err(MistakeAt { offset, mistake: Mistake::Both { id, first, second } })
            }
            (Some(_), None) => Ok(()),
        }
    }

    fn listening(
        &self,
        url: &Spanned<String>,
        directory: &Path,
    ) -> Result<RemoteServer, MistakeAt> {
        let server = RemoteServer::at(url.get_ref()).map_err(|source| {
            let mistake = Mistake::Url { id: self.id.get_ref().clone(), source };
            MistakeAt { offset: url.span().start, mistake }
        })?;
        self.with_credentials(server, directory)
    }

    fn relayed(
        &self,
        registry: &Spanned<String>,
        directory: &Path,
    ) -> Result<RemoteServer, MistakeAt> {
        let environment = self.environment_id.as_ref().map_or("", |id| id.get_ref());
        let server =
            RemoteServer::through_relay(registry.get_ref(), environment).map_err(|source| {
                let mistake =
                    Mistake::Relay { id: self.id.get_ref().clone(), source: source.into() };
                MistakeAt { offset: registry.span().start, mistake }
            })?;
        let mut server = self.with_credentials(server, directory)?;
        let identity = self.use_agent_identity_auth.as_ref();
        server.use_agent_identity_auth = identity.is_some_and(|identity| *identity.get_ref());
        Ok(server)
    }

    /// Adds credentials and TLS options to a server that exists independently of its clients.
    /// Refuses the keys of a server that is started.
    fn with_credentials(
        &self,
        mut server: RemoteServer,
        directory: &Path,
    ) -> Result<RemoteServer, MistakeAt> {
        let id = self.id.get_ref();
        let only_with_program =
            [("args", start(&self.args)), ("env", start(&self.env)), ("cwd", start(&self.cwd))];
        for (key, offset) in only_with_program {
            if let Some(offset) = offset {
                let mistake = Mistake::NoProgram { id: id.clone(), key };
                return Err(MistakeAt { offset, mistake });
            }
        }
        self.check_pairs(server.is_tls())?;
        let path = |path: &Option<Spanned<PathBuf>>| {
            path.as_ref().map(|path| directory.join(path.get_ref()))
        };
        server.token_file = path(&self.token_file);
        server.token_env = self.token_env.as_ref().map(|name| name.get_ref().clone());
        if let Some(file) = path(&self.tls_ca) {
            server.tls.trust = ServerTrust::Authorities(file);
        }
        if let Some(fingerprint) = &self.tls_fingerprint {
            let fingerprint = fingerprint.get_ref().parse().map_err(|source| MistakeAt {
                offset: fingerprint.span().start,
                mistake: Mistake::Fingerprint { id: id.clone(), source },
            })?;
            server.tls.trust = ServerTrust::Fingerprint(fingerprint);
        }
        let identity = path(&self.tls_client_cert).zip(path(&self.tls_client_key));
        server.tls.identity =
            identity.map(|(certificate, key)| ClientIdentity { certificate, key });
        Ok(server)
    }

    /// Checks for keys that exclude each other, depend on each other, or require TLS.
    fn check_pairs(&self, is_tls: bool) -> Result<(), MistakeAt> {
        let id = || self.id.get_ref().clone();
        let tls_keys = self.tls_keys();
        if let Some((key, offset)) = tls_keys.into_iter().find(|_| !is_tls) {
            return Err(MistakeAt { offset, mistake: Mistake::NoTls { id: id(), key } });
        }
        let excluding = [
            ("token_file", start(&self.token_file), "token_env", start(&self.token_env)),
            ("tls_ca", start(&self.tls_ca), "tls_fingerprint", start(&self.tls_fingerprint)),
        ];
        for (first, one, second, other) in excluding {
            if let (Some(_), Some(offset)) = (one, other) {
                let mistake = Mistake::Both { id: id(), first, second };
                return Err(MistakeAt { offset, mistake });
            }
        }
        let (certificate, key) = (start(&self.tls_client_cert), start(&self.tls_client_key));
        let (first, second) = ("tls_client_cert", "tls_client_key");
        match (certificate, key) {
            (Some(offset), None) => {
                Err(MistakeAt { offset, mistake: Mistake::Needs { id: id(), first, second } })
            }
            (None, Some(offset)) => {
                let mistake = Mistake::Needs { id: id(), first: second, second: first };
                Err(MistakeAt { offset, mistake })
            }
            _ => Ok(()),
        }
    }

    /// Returns the `tls_*` keys that are set, with their positions.
    fn tls_keys(&self) -> Vec<(&'static str, usize)> {
        let keys = [
            ("tls_ca", start(&self.tls_ca)),
            ("tls_fingerprint", start(&self.tls_fingerprint)),
            ("tls_client_cert", start(&self.tls_client_cert)),
            ("tls_client_key", start(&self.tls_client_key)),
        ];
        keys.into_iter().filter_map(|(key, offset)| Some((key, offset?))).collect()
    }

    fn launched(
        &self,
        program: &Spanned<PathBuf>,
        directory: &Path,
    ) -> Result<RemoteServer, MistakeAt> {
        let id = || self.id.get_ref().clone();
        let tokens =
            [("token_file", start(&self.token_file)), ("token_env", start(&self.token_env))];
        let tokens = tokens.into_iter().filter_map(|(key, offset)| Some((key, offset?)));
        if let Some((key, offset)) = tokens.chain(self.tls_keys()).next() {
            return Err(MistakeAt { offset, mistake: Mistake::NoUrl { id: id(), key } });
        }
        if program.get_ref().as_os_str().is_empty() {
            let mistake = Mistake::EmptyProgram { id: id() };
            return Err(MistakeAt { offset: program.span().start, mistake });
        }
        Ok(RemoteServer::launched(ExecServerLaunchCommand {
            program: program.get_ref().clone(),
            args: self.args.as_ref().map(|args| args.get_ref().clone()).unwrap_or_default(),
            env: self.env.as_ref().map(|env| env.get_ref().clone()).unwrap_or_default(),
            cwd: self.cwd.as_ref().map(|cwd| directory.join(cwd.get_ref())),
        }))
    }
}

fn start<T>(value: &Option<Spanned<T>>) -> Option<usize> {
    value.as_ref().map(|value| value.span().start)
}

fn positive(id: &str, key: &'static str, seconds: &Spanned<f64>) -> Result<Duration, MistakeAt> {
    const YEAR: f64 = 365.0 * 24.0 * 60.0 * 60.0;
    let value = *seconds.get_ref();
    if value > 0.0 && value <= YEAR {
        return Ok(Duration::from_secs_f64(value));
    }
    let mistake = Mistake::Timeout { id: id.to_owned(), key };
    Err(MistakeAt { offset: seconds.span().start, mistake })
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::PathUri;
    use exec_server_server::SandboxLevel;

    use super::*;
    use crate::environment::host_options::HostOptions;
    use crate::environment::sandbox_options::SandboxOptions;

    fn read(text: &str) -> Result<EnvironmentsFile, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("environments.toml");
        std::fs::write(&path, text).unwrap();
        let start = format!("{}:", path.display());
        EnvironmentsFile::read(&path).map_err(|error| {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            text.strip_prefix(&start).expect("an error names its file").to_owned()
        })
    }

    fn error(text: &str) -> String {
        read(text).unwrap_err()
    }

    #[test]
    fn a_file_defines_environments() {
        let file = read(
            r#"
            default = "box"
            include_local = false

            [[environments]]
            id = "box"
            url = "ws://box.example:7777"
            token_file = "token"
            connect_timeout_sec = 5
            initialize_timeout_sec = 0.5

            [[environments]]
            id = "far"
            program = "ssh"
            args = ["far", "exec-server", "--listen", "stdio"]
            env = { LANG = "C" }
            cwd = "/tmp"

            [environments.sandbox]
            mode = "workspace-write"
            writable = ["/srv"]
            deny = ["**/*.pem"]
            network = true
            "#,
        )
        .unwrap();
        assert_eq!((file.default.as_deref(), file.include_local), (Some("box"), false));
        let [(first, near), (second, far)] = &file.environments[..] else { panic!("{file:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("box", "far"));
        assert_eq!(near.url(), Some("ws://box.example:7777"));
        assert_eq!(near.connect_timeout, Some(Duration::from_secs(5)));
        assert_eq!(near.initialize_timeout, Some(Duration::from_millis(500)));
        assert!(near.token_file.as_ref().unwrap().is_absolute(), "relative to the file");
        let command = far.launch_command().unwrap();
        assert_eq!(command.program, Path::new("ssh"));
        assert_eq!((command.args.len(), command.env.len()), (4, 1));
        assert_eq!(command.cwd.as_deref(), Some(Path::new("/tmp")));
        assert_eq!(near.sandbox, None);
        assert_eq!(
            far.sandbox,
            Some(SandboxOptions {
                level: SandboxLevel::WorkspaceWrite,
                writable: vec![PathUri::from_path("/srv").unwrap()],
                deny: vec!["**/*.pem".to_owned()],
                network: true,
                hosts: HostOptions::default(),
            })
        );
    }

    #[test]
    fn an_empty_file_is_valid() {
        let file = read("").unwrap();
        assert!(file.include_local && file.environments.is_empty() && file.default.is_none());
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let one = "[[environments]]\nid = \"a\"\n";
        let boxed = &format!("{one}url = \"ws://a\"\n[environments.sandbox]\n");
        for (text, expected) in [
            ("defualt = \"a\"", "1: unknown field `defualt`"),
            ("\ninclude_local = 3", "2: invalid type"),
            (&format!("{one}ulr = \"ws://a\""), "3: unknown field `ulr`"),
            (&format!("{one}url = \"ws://a\"\nurl = \"ws://b\""), "4: duplicate key"),
            ("[[environments]]\nurl = \"ws://a\"", "1: missing field `id`"),
            (&format!("{one}url = \"ws://a\"\n{one}"), "5: environment \"a\" is defined twice"),
            (
                "[[environments]]\nid = \"\"\nurl = \"ws://a\"",
                "2: the id of an environment must not be empty",
            ),
            (
                "[[environments]]\nid = \"local\"\nurl = \"ws://a\"",
                "2: the id \"local\" means this",
            ),
            (
                "default = \"b\"",
                "1: default: unknown environment \"b\"; known environments: \"local\"",
            ),
            ("include_local = false", "1: no environment is defined"),
            (&format!("{one}url = \"ws://a\"\nprogram = \"x\""), "4: environment \"a\" has both"),
            (one, "1: environment \"a\" needs one of url, program and remote"),
            (
                &format!("{one}remote = \"https://a\""),
                "3: environment \"a\": remote needs environment_id",
            ),
            (
                &format!("{one}environment_id = \"b\""),
                "3: environment \"a\": environment_id needs remote",
            ),
            (
                &format!("{one}remote = \"https://a\"\nenvironment_id = \"b\"\nurl = \"ws://a\""),
                "3: environment \"a\" has both url and remote",
            ),
            (
                &format!("{one}remote = \"http://a\"\nenvironment_id = \"b\""),
                "3: environment \"a\": http://a is not encrypted",
            ),
            (
                &format!("{one}url = \"ws://a\"\nargs = []"),
                "4: environment \"a\": args has no effect without program",
            ),
            (
                &format!("{one}program = \"x\"\ntoken_file = \"t\""),
                "4: environment \"a\": token_file has no effect without url or remote",
            ),
            (&format!("{one}program = \"\""), "3: environment \"a\": program must not be empty"),
            (
                &format!("{one}url = \"http://a\""),
                "3: environment \"a\": \"http://a\" is not a server URL",
            ),
            (
                &format!("{one}url = \"ws://a\"\nconnect_timeout_sec = 0"),
                "4: environment \"a\": connect_timeout_sec must be more than 0",
            ),
            (
                &format!("{one}url = \"ws://a\"\ninitialize_timeout_sec = -1.5"),
                "4: environment \"a\": initialize_timeout_sec must be more than 0",
            ),
            (&format!("{one}url = \"ws://a\"\nconnect_timeout_sec = nan"), "4: environment \"a\""),
            (&format!("{boxed}network = true"), "4: missing field `mode`"),
            (&format!("{boxed}mode = \"none\""), "5: unknown variant `none`"),
            (
                &format!("{boxed}mode = \"read-only\"\nwriteable = []"),
                "6: unknown field `writeable`",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\nwritable = [\"/a\"]"),
                "6: environment \"a\": sandbox: writable needs mode = \"workspace-write\"",
            ),
            (
                &format!("{boxed}mode = \"workspace-write\"\nwritable = [\n\"/a\",\n\"b\"]"),
                "8: environment \"a\": sandbox: writable: \"b\" is not an absolute path",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny = [\"\"]"),
                "6: environment \"a\": sandbox: deny: \"\": an empty name denies nothing",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny = [\n\"/a\",\n\"~/.ssh\"]"),
                "8: environment \"a\": sandbox: deny: \"~/.ssh\": ~ is not expanded here",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny = [\"$HOME/.ssh\"]"),
                "6: environment \"a\": sandbox: deny: \"$HOME/.ssh\": variables are not expanded here",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny = [\"file:///etc\"]"),
                "6: environment \"a\": sandbox: deny: \"file:///etc\": this is a URI",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny = [\"**.pem\"]"),
                "6: environment \"a\": sandbox: deny: \"**.pem\": ** matches directories",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\nallow_hosts = [\n\"a.example\",\n\"*\"]"),
                "8: environment \"a\": sandbox: allow_hosts: \"*\" matches every host",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny_hosts = [\"a/b\"]"),
                "6: environment \"a\": sandbox: deny_hosts: \"a/b\" contains a slash",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\nnetwork = true\nallow_hosts = [\"a\"]"),
                "7: environment \"a\": sandbox: network = true allows every host; omit it, or \
                 omit allow_hosts",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\ndeny_hosts = [\"a\"]"),
                "6: environment \"a\": sandbox: deny_hosts needs allow_hosts or ask_network = true",
            ),
            (
                &format!("{boxed}mode = \"read-only\"\nask_network = 1"),
                "6: invalid type: integer `1`, expected a boolean",
            ),
        ] {
            let found = error(text);
            assert!(found.starts_with(expected), "{text}\nexpected {expected}\n   found {found}");
        }
    }

    #[test]
    fn a_sandbox_can_have_host_rules() {
        let text = r#"
            [[environments]]
            id = "a"
            url = "ws://a"
            [environments.sandbox]
            mode = "read-only"
            allow_hosts = ["**.example.org", "[::1]:8080"]
            deny_hosts = ["x.example.org"]
            ask_network = true
            require_transparent = true
            "#;
        let file = read(text).unwrap();
        let hosts = file.environments[0].1.sandbox.as_ref().unwrap().hosts.clone();
        assert_eq!(hosts.allow, ["**.example.org", "[::1]:8080"]);
        assert_eq!(hosts.deny, ["x.example.org"]);
        assert!(hosts.ask && hosts.require_transparent);
    }

    #[test]
    fn local_may_be_another_machine_without_include_local() {
        let text = "include_local = false\n[[environments]]\nid = \"local\"\nurl = \"ws://a\"";
        assert_eq!(read(text).unwrap().environments[0].0, "local");
    }

    #[test]
    fn the_file_is_searched_in_order() {
        let located = |variables: &[(&str, &str)]| {
            locate(|wanted| {
                let found = variables.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| value.into())
            })
        };
        let (home, xdg) = (("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/xdg"));
        let customary = |path: &str| Some(Location::Customary(path.into()));
        assert_eq!(
            located(&[home, xdg, (ENVIRONMENTS_VARIABLE, "mine.toml")]),
            Some(Location::Named("mine.toml".into()))
        );
        assert_eq!(located(&[home, xdg]), customary("/xdg/exec-server/environments.toml"));
        assert_eq!(
            located(&[home, ("XDG_CONFIG_HOME", "relative")]),
            customary("/home/me/.config/exec-server/environments.toml")
        );
        assert_eq!(located(&[]), None);
    }

    #[test]
    fn only_the_default_file_may_be_missing() {
        let directory = tempfile::tempdir().unwrap();
        let home = |name: &str| (name == "HOME").then(|| directory.path().into());
        assert!(EnvironmentsFile::find(home).unwrap().is_none());
        let missing = directory.path().join("missing.toml");
        let named = |name: &str| (name == ENVIRONMENTS_VARIABLE).then(|| missing.clone().into());
        let error = EnvironmentsFile::find(named).unwrap_err().to_string();
        assert!(error.contains("missing.toml: cannot read the environments file: "), "{error}");
    }
}
