//! A server of the real binary, killed at the end of its test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::machine::{self, Watched};
use super::program::{HISTORY_VARIABLE, Outcome, PROGRAM, command, run_command};
use super::wire::{Wire, tcp, wait_readable};
use super::{Client, Inbox};

pub(crate) struct Server {
    child: Child,
    url: String,
    /// `None` for a stdio server, whose output belongs to its client.
    stdout: Option<BufReader<ChildStdout>>,
    runtime_directory: TempDir,
}

pub(crate) struct ServerBuilder {
    program: String,
    arguments: Vec<String>,
    wrapper: Vec<String>,
    variables: Vec<(String, String)>,
    stderr: Stdio,
}

impl Server {
    /// Starts a server on an ephemeral port of the loopback interface.
    pub(crate) fn start() -> Self {
        ServerBuilder::new().start()
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        ServerBuilder::new().arguments(arguments).start()
    }

    pub(crate) fn stdio() -> (Self, Client) {
        ServerBuilder::new().start_stdio()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the `XDG_RUNTIME_DIR` of this server, in which its user's commands find it.
    pub(crate) fn runtime_directory(&self) -> &Path {
        self.runtime_directory.path()
    }

    /// Returns a command that finds this server, as other commands of its user do.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(PROGRAM);
        command.args(arguments).env("XDG_RUNTIME_DIR", self.runtime_directory());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        run_command(self.command(arguments))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a connection without `initialize`.
    pub(crate) fn connect(&self) -> Client {
        Client::over(Wire::connect(&self.url).unwrap())
    }

    /// Connects a client with a new session.
    pub(crate) fn client(&self) -> Client {
        self.client_with(&json!({}))
    }

    pub(crate) fn client_of(&self, token: &str) -> Client {
        let mut client = self.connect_with(token).unwrap();
        client.initialize(&json!({})).unwrap();
        client
    }

    pub(crate) fn connect_with(&self, token: &str) -> Result<Client, Box<dyn std::error::Error>> {
        Ok(Client::over(Wire::connect(&format!("{}/?token={token}", self.url))?))
    }

    pub(crate) fn client_with(&self, params: &Value) -> Client {
        let mut client = self.connect();
        client.initialize(params).unwrap();
        client
    }

    /// Resumes a session. Retries until the server has noticed the end of the old connection.
    pub(crate) fn resume(&self, session: &str, params: &Value) -> Client {
        const STILL_ATTACHED: i64 = -32010;
        let mut params = params.clone();
        params["resumeSessionId"] = session.into();
        loop {
            let mut client = self.connect();
            match client.initialize(&params) {
                Ok(_) => return client,
                Err(failure) => assert_eq!(failure.code, STILL_ATTACHED, "{failure:?}"),
            }
        }
    }

    /// Resumes a session and catches up as the inbox's kind of client does.
    pub(crate) fn resume_with(&self, session: &str, inbox: &mut impl Inbox) -> Client {
        let mut client = self.resume(session, &inbox.handshake());
        inbox.catch_up(&mut client);
        client
    }

    /// Sends a request verbatim, and returns the status and the head of the response.
    pub(crate) fn http(&self, request: &str) -> (u16, String) {
        let mut stream = tcp(&self.url).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = BufReader::new(stream);
        let mut response = String::new();
        while !response.ends_with("\r\n\r\n") {
            assert_ne!(head.read_line(&mut response).unwrap(), 0, "cut short: {response:?}");
        }
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response)
    }

    pub(crate) fn get(&self, path: &str) -> u16 {
        self.http(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).0
    }

    pub(crate) fn signal(&self, signal: Signal) {
        machine::signal(self.pid(), signal);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        Watched::new(&[self.pid()]).wait_until_all_end();
        self.child.wait().unwrap()
    }

    pub(crate) fn next_line(&mut self) -> String {
        let stdout = self.stdout.as_mut().expect("the server listens on a socket");
        if stdout.buffer().is_empty() {
            wait_readable(stdout.get_ref().as_fd());
        }
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn error_line(&mut self) -> String {
        let mut line = Vec::new();
        let stderr = self.child.stderr.as_mut().expect("stderr is captured");
        while !line.ends_with(b"\n") {
            wait_readable(stderr.as_fd());
            let mut byte = [0];
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "the server ended");
            line.extend(byte);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    pub(crate) fn rest_of_stdout(&mut self) -> String {
        let mut rest = String::new();
        let stdout = self.stdout.as_mut().expect("the server listens on a socket");
        stdout.read_to_string(&mut rest).unwrap();
        rest
    }

    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().expect("stderr is captured").read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerBuilder {
    pub(crate) fn new() -> Self {
        Self {
            program: PROGRAM.to_owned(),
            arguments: Vec::new(),
            wrapper: Vec::new(),
            variables: Vec::new(),
            stderr: Stdio::inherit(),
        }
    }

    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a wrapper, such as `prlimit` with its arguments, which executes the server.
    pub(crate) fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper.extend(wrapper.iter().map(ToString::to_string));
        self
    }

    /// Runs a copy of the program, which is removed with the directory.
    pub(crate) fn copied_to(mut self, directory: &Path) -> Self {
        let copy = directory.join("exec-server");
        // An earlier server may still run from this copy; a running program cannot be overwritten.
        if !copy.exists() {
            std::fs::copy(PROGRAM, &copy).unwrap();
        }
        copy.to_str().expect("test paths are text").clone_into(&mut self.program);
        self
    }

    /// Makes the server run as another user; only root can.
    pub(crate) fn with_user(mut self, uid: u32, directory: &Path) -> Self {
        // The user may have no access to Cargo's target directory, so the program is copied.
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
        self = self.copied_to(directory);
        // The user cannot write to the directory of the sandbox history or to the runtime
        // directory.
        self = self.variable(HISTORY_VARIABLE, "");
        self.arguments.extend(["--discoverable", "false"].map(str::to_owned));
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        self.through(&["setpriv", &ids[0], &ids[1], "--clear-groups"])
    }

    pub(crate) fn capture_stderr(self) -> Self {
        self.stderr(Stdio::piped())
    }

    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = stderr.into();
        self
    }

    pub(crate) fn start(self) -> Server {
        let (mut child, runtime_directory) = self.spawn(&["--log", "warn"], Stdio::null());
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        wait_readable(stdout.get_ref().as_fd());
        let mut url = String::new();
        stdout.read_line(&mut url).unwrap();
        let url = url.trim_end().to_owned();
        Server { child, url, stdout: Some(stdout), runtime_directory }
    }

    /// Starts a server and does not wait for its URL, which some servers never print.
    pub(crate) fn start_silent(self) -> Server {
        let (mut child, runtime_directory) = self.spawn(&["--log", "warn"], Stdio::null());
        let stdout = child.stdout.take().map(BufReader::new);
        Server { child, url: String::new(), stdout, runtime_directory }
    }

    pub(crate) fn start_stdio(self) -> (Server, Client) {
        let defaults = ["--log", "warn", "--listen", "stdio"];
        let (mut child, runtime_directory) = self.spawn(&defaults, Stdio::piped());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let client = Client::over(Wire::Stdio { stdin: child.stdin.take(), stdout });
        (Server { child, url: "stdio".to_owned(), stdout: None, runtime_directory }, client)
    }

    fn spawn(self, defaults: &[&str], stdin: Stdio) -> (Child, TempDir) {
        let runtime_directory = tempfile::tempdir().unwrap();
        let mut words = self.wrapper.into_iter().chain([self.program]);
        let mut command = command(&words.next().expect("there is a program"));
        command
            .args(words)
            .args(defaults)
            .args(self.arguments)
            .env("XDG_RUNTIME_DIR", runtime_directory.path())
            .envs(self.variables)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(self.stderr);
        (command.spawn().unwrap(), runtime_directory)
    }
}
