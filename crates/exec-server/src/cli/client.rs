//! The commands that need a server. Short flags have the same meaning as in ssh and docker.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use exec_server_protocol::SignalName;
use exec_server_transport::Fingerprint;

use super::files::FileCommand;
use super::http::Http;
use super::limits::LimitFlags;
use super::sandbox::SandboxFlags;
use super::signal::parse_signal;
use super::values::{parse_duration, parse_lifetime, parse_name, secret};
use crate::target::server_url::ServerUrl;

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    Run(Run),
    Shell(Shell),
    Ps(Ps),
    Logs(Logs),
    Attach(Attach),
    Kill(Kill),
    Wait(Wait),
    Forget(Forget),
    Status(Status),
    #[command(flatten)]
    Files(FileCommand),
    Http(Http),
}

impl ClientCommand {
    pub(super) fn server_mut(&mut self) -> &mut ServerChoice {
        match self {
            Self::Run(Run { server, .. })
            | Self::Shell(Shell { server, .. })
            | Self::Ps(Ps { server, .. })
            | Self::Logs(Logs { server, .. })
            | Self::Attach(Attach { server, .. })
            | Self::Kill(Kill { server, .. })
            | Self::Wait(Wait { server, .. })
            | Self::Forget(Forget { server, .. })
            | Self::Status(Status { server, .. })
            | Self::Http(Http { server, .. }) => server,
            Self::Files(command) => command.server_mut(),
        }
    }

    /// Checks rules that clap cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Run(Run { sandbox, terminal, detach, .. }) => {
                sandbox.check()?;
                sandbox.hosts.check_asking(*terminal, *detach)
            }
            Self::Shell(Shell { sandbox, .. }) => {
                sandbox.check()?;
                sandbox.hosts.check_asking(true, false)
            }
            Self::Http(http) => http.method_and_url().map(drop),
            Self::Files(FileCommand::Cp(cp)) if cp.paths.len() < 2 => {
                Err("cp needs a SOURCE and a DESTINATION".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The options with which every client command selects its server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(args_override_self = true)]
pub(crate) struct ServerChoice {
    /// Use the server at wss://HOST:PORT, ws://HOST:PORT or unix:///PATH
    #[arg(long, value_name = "URL", value_parser = secret(parse_url))]
    pub(crate) connect: Option<ServerUrl>,
    /// Use this environment from environments.toml
    #[arg(long, value_name = "ENVIRONMENT", conflicts_with = "connect")]
    pub(crate) on: Option<String>,
    /// Read the server's URL from this TOML file
    #[arg(long = "config", value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) config_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) credentials: Credentials,
}

const CONNECTION: &str = "Connection";

/// How a client and a server authenticate each other. Overrides the settings of an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Credentials {
    /// Send the token in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    pub(crate) token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = CONNECTION)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Trust the server whose certificate has this fingerprint
    #[arg(long, value_name = "SHA256:HEX", conflicts_with = "tls_ca", help_heading = CONNECTION)]
    pub(crate) tls_fingerprint: Option<Fingerprint>,
    /// Send this certificate to the server
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires = "tls_client_key", help_heading = CONNECTION)]
    pub(crate) tls_client_cert: Option<PathBuf>,
    /// The private key of the certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires = "tls_client_cert", help_heading = CONNECTION)]
    pub(crate) tls_client_key: Option<PathBuf>,
}

impl Credentials {
    /// Returns the flags that were given, and whether each concerns TLS. Omits `--tls-client-key`,
    /// which never comes without `--tls-client-cert`.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let flags = [
            (self.token_file.is_some(), "--token-file", false),
            (self.tls_ca.is_some(), "--tls-ca", true),
            (self.tls_fingerprint.is_some(), "--tls-fingerprint", true),
            (self.tls_client_cert.is_some(), "--tls-client-cert", true),
        ];
        flags.into_iter().filter_map(|(given, flag, is_tls)| given.then_some((flag, is_tls)))
    }
}

/// Run a command and pass on its input, output and exit code
#[derive(Debug, Args)]
#[command(
    override_usage = "exec-server run [OPTIONS] [--] COMMAND [ARGUMENTS]...",
    after_help = "\
The exit code is that of the command, or 128 + N if signal N killed it; 124 after --timeout,
125 if exec-server fails, 126 if the command cannot be executed, 127 if it is not found."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Give the command a terminal
    #[arg(short = 't', long = "tty")]
    pub(crate) terminal: bool,
    /// Do not give the command a terminal (the default)
    #[arg(short = 'T', long = "no-tty", overrides_with = "terminal")]
    _no_terminal: bool,
    /// Do not read standard input
    #[arg(short = 'n', long)]
    pub(crate) no_stdin: bool,
    /// With --detach, keep standard input open for attach
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Report sandbox denials even without a terminal, and the hosts reached
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Run in this directory on the server's machine
    #[arg(short = 'w', long, visible_alias = "workdir", value_name = "DIR")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) cwd: Option<OsString>,
    /// Set a variable, or copy yours (may be repeated)
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = secret(parse_variable))]
    pub(crate) env: Vec<Variable>,
    /// Start from the server's environment, even on your own machine
    #[arg(long)]
    pub(crate) server_env: bool,
    /// End the command after this time: TERM, then KILL 2 s later
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// The name for ps, logs, attach, kill, wait and forget
    #[arg(long, value_parser = parse_name)]
    pub(crate) name: Option<String>,
    /// Start the command, print its name and return
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// With --detach, end the command after this time without a client
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime, requires = "detach")]
    pub(crate) ttl: Option<Duration>,
    /// With --detach, print JSON
    #[arg(long, requires = "detach")]
    pub(crate) json: bool,
    /// The command and its arguments
    // The first word that is not an option starts the command; everything after it belongs to the
    // command, with or without dashes.
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::AnyPath)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxFlags,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
}

/// Open a login shell, or run a command, in a terminal on the server's machine
#[derive(Debug, Args)]
#[command(after_help = "\
After a newline, ~. disconnects, ~~ sends a tilde, and ~? lists these keys.
The exit code is that of the shell, or 255 after ~.; 125, 126 and 127 mean the same as for run.")]
pub(crate) struct Shell {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Start from the server's environment, even on your own machine
    #[arg(long)]
    pub(crate) server_env: bool,
    /// Run this instead of the login shell
    #[arg(trailing_var_arg = true, value_hint = ValueHint::AnyPath)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxFlags,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
}

/// List the processes of the server
#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Show finished processes too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the retained output of a process
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Follow the output until the process ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Start with the last N lines
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "json")]
    pub(crate) tail: Option<usize>,
    /// Start with the output of the last DURATION, such as 90 (seconds), 10m or 1h 30m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Print one JSON object per event; chunks are base64
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of a process, or SESSION/NAME if the name is not unique
    pub(crate) name: String,
}

/// Connect to a running process, such as one that was started with run --detach
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C goes to the process. On a terminal, ~. at the beginning of a line detaches and leaves the
process running; press Enter after it if the process has no terminal. ~? lists the keys.
Unless you detach, the exit code is that of the process.")]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// The name of a process, or SESSION/NAME if the name is not unique
    pub(crate) name: String,
}

/// Kill processes and all their descendants, or send a signal
#[derive(Debug, Args)]
pub(crate) struct Kill {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Send only this signal [default: TERM, then KILL after 3 s]
    #[arg(short, long, value_parser = parse_signal)]
    pub(crate) signal: Option<SignalName>,
    /// The name of a process, or SESSION/NAME if the name is not unique
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Wait for processes to exit, print their exit codes, and exit with the last
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is that of the last process; 124 after --timeout, and 125 if exec-server fails.")]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Wait at most this long for all of them; 0 means forever
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of a process, or SESSION/NAME if the name is not unique
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Forget finished processes and their output
#[derive(Debug, Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// End running processes too
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Forget every finished process that was started with run --detach, and print the names
    #[arg(long, conflicts_with_all = ["names", "force"])]
    pub(crate) all: bool,
    /// The name of a process, or SESSION/NAME if the name is not unique
    #[arg(required_unless_present = "all", value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Show the state of a running server to its operator
#[derive(Debug, Args)]
#[command(after_help = "\
Shows version, uptime, listeners, sessions, processes, the tier of limits and recent refusals.
A signed token needs the role admin; a capability token needs none.

Example: exec-server status --connect wss://box.example:7777 --token-file admin.token")]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variable {
    Set {
        name: String,
        value: String,
    },
    /// Copied from the client's environment, if it is set there.
    Copied {
        name: String,
    },
}

pub(super) fn parse_url(text: &str) -> Result<ServerUrl, String> {
    text.parse::<ServerUrl>().map_err(|error| {
        // In a URL without `@` only the query can be secret, and the error omits it. Before an `@`
        // there may be a password, whose end is ambiguous if it contains a slash, so the error
        // omits the whole URL.
        if text.contains('@') {
            "expected wss://HOST:PORT, ws://HOST:PORT or unix:///PATH, without a user name or password".to_owned()
        } else {
            error.to_string()
        }
    })
}

fn parse_variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("expected NAME=VALUE or NAME".to_owned());
    }
    let name = name.to_owned();
    Ok(match value {
        Some(value) => Variable::Set { name, value },
        None => Variable::Copied { name },
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::super::values::limit;
    use super::*;

    fn parsed(line: &str) -> ClientCommand {
        let words = line.split_whitespace().map(OsString::from);
        let line = parse(std::iter::once("exec-server".into()).chain(words)).unwrap();
        line.command.unwrap().client()
    }

    fn run_of(line: &str) -> Run {
        match parsed(line) {
            ClientCommand::Run(run) => run,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from);
        parse(std::iter::once("exec-server".into()).chain(words)).unwrap_err().to_string()
    }

    #[test]
    fn the_command_begins_with_the_first_word() {
        for line in ["run ls -l --json", "run -- ls -l --json"] {
            assert_eq!(run_of(line).command, ["ls", "-l", "--json"], "{line}");
        }
        assert_eq!(run_of("run -- -odd").command, ["-odd"]);
        assert_eq!(run_of("run a -- b").command, ["a", "--", "b"]);
        assert!(refused("run").contains("COMMAND"));
        let ClientCommand::Shell(shell) = parsed("shell") else { panic!() };
        assert!(shell.command.is_empty());
    }

    #[test]
    fn the_last_terminal_flag_wins() {
        assert!(!run_of("run a").terminal);
        assert!(run_of("run -it a").terminal);
        assert!(run_of("run -T -t a").terminal);
        assert!(!run_of("run -t -T a").terminal);
    }

    #[test]
    fn variables_are_set_or_copied() {
        let run = run_of("run -e A=b=c --env D= -e E -- true");
        let set =
            |name: &str, value: &str| Variable::Set { name: name.into(), value: value.into() };
        let copied = Variable::Copied { name: "E".into() };
        assert_eq!(run.env, [set("A", "b=c"), set("D", ""), copied]);
        assert!(refused("run -e =b true").contains("NAME=VALUE"));
    }

    #[test]
    fn durations_are_seconds_or_have_a_unit() {
        let timeout = |text: &str| run_of(&format!("run --timeout {text} true")).timeout.unwrap();
        assert_eq!(timeout("90"), Duration::from_secs(90));
        assert_eq!(timeout("90s"), Duration::from_secs(90));
        assert_eq!(timeout("250ms"), Duration::from_millis(250));
        assert_eq!(timeout("0.5"), Duration::from_millis(500));
        for bad in ["soon", "inf", "nan", "1e400"] {
            let error = refused(&format!("run --timeout {bad} true"));
            assert!(error.contains("expected seconds"), "{error}");
        }
    }

    #[test]
    fn a_timeout_of_zero_means_no_limit_but_a_lifetime_of_zero_is_refused() {
        for zero in ["0", "0.0", "0s"] {
            let run = run_of(&format!("run --timeout {zero} true"));
            assert_eq!(limit(run.timeout), None, "{zero}");
            let error = refused(&format!("run -d --ttl {zero} true"));
            assert!(error.contains("must be more than 0"), "{error}");
        }
    }

    #[test]
    fn errors_do_not_show_secrets() {
        for (line, expected) in [
            ("run --connect http://h/?token=SECRET true", "http://h/"),
            ("run --connect ws://user:SECRET@h true", "--connect <URL>"),
            ("ps --connect ws://user:a/SECRET@h", "--connect <URL>"),
            ("wait --connect=wss://SECRET@h?token=SECRET a", "--connect <URL>"),
            ("run -e =SECRET true", "expected NAME=VALUE"),
            ("run --env==SECRET true", "expected NAME=VALUE"),
        ] {
            let error = refused(line);
            assert!(error.contains(expected) && !error.contains("SECRET"), "{line}: {error}");
        }
    }

    #[test]
    fn names_follow_the_rule_of_docker() {
        assert_eq!(run_of("run --name a.B_3-x true").name.as_deref(), Some("a.B_3-x"));
        for bad in ["a/b", "-a", ".a", "é"] {
            assert!(refused(&format!("run --name={bad} true")).contains("letters"), "{bad}");
        }
    }

    #[test]
    fn options_for_detach_are_refused_without_it() {
        assert!(run_of("run -d --ttl 1h --json true").detach);
        assert!(refused("run --ttl 1h true").contains("--detach"));
        assert!(refused("run --json true").contains("--detach"));
    }

    #[test]
    fn forget_takes_names_or_all() {
        let ClientCommand::Forget(forget) = parsed("forget --all") else { panic!() };
        assert!(forget.all && forget.names.is_empty());
        for bad in ["forget", "forget --all a", "forget --all -f"] {
            assert!(refused(bad).contains("Usage: exec-server forget"), "{bad}");
        }
    }

    #[test]
    fn logs_take_a_starting_point() {
        let ClientCommand::Logs(logs) = parsed("logs -n 5 --since 1m a") else { panic!() };
        assert_eq!((logs.tail, logs.since), (Some(5), Some(Duration::from_secs(60))));
        assert!(refused("logs --tail many a").contains("--tail"));
        assert!(refused("logs --tail 1 --json a").contains("--json"));
    }

    #[test]
    fn only_one_option_may_select_the_server() {
        let ClientCommand::Ps(Ps { server, .. }) = parsed("ps --connect ws://127.0.0.1:1") else {
            panic!()
        };
        assert_eq!(server.connect.unwrap().to_string(), "ws://127.0.0.1:1");
        assert_eq!(run_of("run --on box true").server.on.as_deref(), Some("box"));
        assert!(refused("ps --connect ws://a --on b").contains("--on"));
        assert!(refused("ps --connect box").contains("expected wss://HOST:PORT"));
    }
}
