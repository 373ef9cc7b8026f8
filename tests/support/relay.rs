//! A rendezvous and an environment on this machine, with real binaries.

use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use exec_server::environment::RemoteServer;
use rustix::process::Signal;
use tempfile::TempDir;

use super::program::{Outcome, PROGRAM, command, run_command};
use super::recorder::Recorder;
use super::rendezvous::{Rendezvous, create_identity, create_token};
use super::running::Running;

pub(crate) const ENVIRONMENT_ID: &str = "box";

const IDENTITY_VARIABLE: &str = "EXEC_SERVER_ACCESS_TOKEN";

/// A rendezvous on loopback and an environment behind it. Dropping this value ends both.
pub(crate) struct Relay {
    directory: TempDir,
    url: String,
    rendezvous: Rendezvous,
    environment: Running,
    /// The log of the environment: until it was online, and after that.
    logs: (String, JoinHandle<String>),
    /// The credentials of the environment and of its clients.
    credentials: [String; 2],
    has_identities: bool,
    recorder: Option<Recorder>,
}

#[derive(Default)]
pub(crate) struct RelayBuilder {
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    has_identities: bool,
    recorder: Option<Recorder>,
}

impl RelayBuilder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds arguments before those about the relay: flags of the environment, or a subcommand.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Sets a variable for the program of the environment.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives both ends agent identities instead of tokens.
    pub(crate) fn agent_identities(mut self) -> Self {
        self.has_identities = true;
        self
    }

    /// Lets both ends reach the registry through a [`Recorder`].
    pub(crate) fn recorded(mut self) -> Self {
        self.recorder = Some(Recorder::new());
        self
    }

    pub(crate) fn start(self) -> Relay {
        let Self { arguments, variables, has_identities, recorder } = self;
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let rendezvous = Rendezvous::start(&data);
        let url = match &recorder {
            Some(recorder) => recorder.pass_on_to(&rendezvous.url),
            None => rendezvous.url.clone(),
        };
        let create = if has_identities { create_identity } else { create_token };
        let credentials = ["environment", "harness"].map(|role| create(&data, role));
        let mut program = command(PROGRAM);
        program.envs(variables).args(arguments);
        program.args(["--remote", &url, "--environment-id", ENVIRONMENT_ID]);
        if has_identities {
            program.arg("--use-agent-identity-auth").env(IDENTITY_VARIABLE, &credentials[0]);
        } else {
            let token_file = directory.path().join("environment");
            std::fs::write(&token_file, &credentials[0]).unwrap();
            program.arg("--remote-token-file").arg(token_file);
            std::fs::write(directory.path().join("harness"), &credentials[1]).unwrap();
        }
        let mut environment = Running::start(program);
        let logs = (wait_until_online(&mut environment), environment.collect_errors());
        let relay = Relay {
            directory,
            url,
            rendezvous,
            environment,
            logs,
            credentials,
            has_identities,
            recorder,
        };
        relay.write_environments_file();
        relay
    }
}

impl Relay {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a relay with these arguments of the environment.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        RelayBuilder::new().arguments(arguments).start()
    }

    /// Ends the rendezvous and waits until its port and its store are free.
    pub(crate) fn end_rendezvous(&self, signal: Signal) {
        self.rendezvous.end_by(signal);
    }

    /// Starts the rendezvous again with the same data and address.
    pub(crate) fn start_rendezvous(&mut self) {
        self.rendezvous =
            Rendezvous::start_at(&self.directory.path().join("data"), &self.rendezvous.url);
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn credentials(&self) -> &[String; 2] {
        &self.credentials
    }

    /// Returns everything that both ends and the registry have exchanged so far.
    pub(crate) fn recorded(&self) -> String {
        self.recorder.as_ref().expect("the relay is recorded").text()
    }

    /// Ends the environment. Returns its log.
    pub(crate) fn stop(self) -> String {
        self.environment.signal(Signal::TERM);
        let (status, _, _) = self.environment.finish();
        let (first, rest) = self.logs;
        let log = first + &rest.join().unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    /// Returns the address of the environment for programs that use the library.
    pub(crate) fn remote_server(&self) -> RemoteServer {
        let mut server = RemoteServer::through_relay(&self.url, ENVIRONMENT_ID).unwrap();
        server.token_file = Some(self.token_file());
        server
    }

    /// Returns a command whose environments.toml lists the environment as `box`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(PROGRAM);
        command.args(arguments).env("EXEC_SERVER_ENVIRONMENTS", self.environments_file());
        if self.has_identities {
            command.env(IDENTITY_VARIABLE, &self.credentials[1]);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        run_command(self.command(arguments))
    }

    pub(crate) fn environments_file(&self) -> PathBuf {
        self.directory.path().join("environments.toml")
    }

    /// Returns the file with the token of clients.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.directory.path().join("harness")
    }

    fn write_environments_file(&self) {
        let credential = match self.has_identities {
            true => "use_agent_identity_auth = true",
            false => "token_file = \"harness\"",
        };
        let text = format!(
            "[[environments]]\nid = {ENVIRONMENT_ID:?}\nremote = {:?}\n\
             environment_id = {ENVIRONMENT_ID:?}\n{credential}\n",
            self.url
        );
        std::fs::write(self.environments_file(), text).unwrap();
    }
}

/// Waits until the environment has logged that it is online. Returns its log so far.
pub(crate) fn wait_until_online(environment: &mut Running) -> String {
    let mut log = String::new();
    loop {
        let line = environment.error_line();
        assert!(!line.is_empty(), "the environment ended: {log}");
        log.push_str(&line);
        if line.contains("connected to the rendezvous") {
            return log;
        }
    }
}
