//! The commands that need a server: what they are called, what they accept, and what that means. Short flags mean
//! what they mean in ssh and docker.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use exec_server_protocol::SignalName;

use super::files::{self, FileAction};
use super::http::{self, Request};
use super::sandbox::{self, SandboxChoice};
use super::signal::parse_signal;
use super::{CONFIG_FILE, config_argument, switch};
use crate::target::server_url::ServerUrl;

/// A command of a client, and how it finds its server.
#[derive(Debug)]
pub(crate) struct ClientCommand {
    pub(crate) server: ServerChoice,
    pub(crate) action: Action,
}

/// What the command line says about the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerChoice {
    pub(crate) connect: Option<ServerUrl>,
    pub(crate) on: Option<String>,
    /// Which may have the URL.
    pub(crate) config_file: Option<PathBuf>,
}

#[derive(Debug)]
pub(crate) enum Action {
    Run(Run),
    Shell {
        command: Vec<OsString>,
        sandbox: SandboxChoice,
        server_env: bool,
    },
    Ps {
        all: bool,
        json: bool,
    },
    Logs(Logs),
    Attach {
        name: String,
    },
    Kill {
        names: Vec<String>,
        signal: Option<SignalName>,
    },
    Wait {
        names: Vec<String>,
        timeout: Option<Duration>,
        json: bool,
    },
    /// No names: all that have finished.
    Forget {
        names: Vec<String>,
        force: bool,
    },
    Files(FileAction),
    Http(Request),
}

#[derive(Debug)]
pub(crate) struct Logs {
    pub(crate) name: String,
    pub(crate) follow: bool,
    /// Only the last so many lines of what there is.
    pub(crate) tail: Option<usize>,
    /// Only what came in this time.
    pub(crate) since: Option<Duration>,
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) command: Vec<OsString>,
    pub(crate) terminal: bool,
    /// Nothing is read from our standard input.
    pub(crate) no_stdin: bool,
    pub(crate) cwd: Option<OsString>,
    pub(crate) variables: Vec<Variable>,
    /// The environment is the server's, also where ours could be passed.
    pub(crate) server_env: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) name: Option<String>,
    pub(crate) sandbox: SandboxChoice,
    /// Say also to whoever is no terminal what we notice.
    pub(crate) verbose: bool,
    pub(crate) detach: Option<Detach>,
}

/// For a command that outlives us.
#[derive(Debug)]
pub(crate) struct Detach {
    /// `None`: until the server stops.
    pub(crate) ttl: Option<Duration>,
    /// Standard input stays open, so that `attach` can type.
    pub(crate) keep_stdin: bool,
    pub(crate) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Variable {
    Set {
        name: String,
        value: String,
    },
    /// Ours, if we have it.
    Copied {
        name: String,
    },
}

pub(super) fn commands() -> Vec<clap::Command> {
    let json = || switch("json", "Print JSON");
    let of_processes = vec![
        run(),
        client_command("shell", "Open a login shell, or run a command, in a terminal on the server's machine")
            .after_help(
                "After a newline, ~. leaves, ~~ sends a tilde, and ~? shows this help.\n\
                 The exit code is that of the shell; 255 after ~. and 125 if the shell cannot be started.",
            )
            .arg(server_env())
            .args(sandbox::arguments())
            .arg(command_argument().help("Run this instead of the login shell")),
        client_command("ps", "List the processes of the server")
            .arg(switch("all", "Show finished processes too").short('a'))
            .arg(json()),
        client_command("logs", "Print the retained output of a process")
            .arg(switch("follow", "Follow the output until the process ends").short('f'))
            .arg(
                Arg::new("tail")
                    .short('n')
                    .long("tail")
                    .value_name("N")
                    .value_parser(value_parser!(usize))
                    .conflicts_with("json")
                    .help("Start with the last N lines"),
            )
            .arg(
                Arg::new("since")
                    .long("since")
                    .value_name("DURATION")
                    .value_parser(parse_duration)
                    .help("Start with the output of the last DURATION, such as 90 (seconds), 10m or 1h 30m"),
            )
            .arg(json().help("Print one JSON object per event; chunks are base64"))
            .arg(name_argument("NAME")),
        client_command("attach", "Connect to a process that was started with run --detach")
            .after_help(
                "On a terminal, ~. after a newline detaches and leaves the process running, and ~? shows help.\n\
                 Otherwise the exit code is that of the process.",
            )
            .arg(name_argument("NAME")),
        client_command("kill", "Kill processes and all their descendants, or send a signal")
            .arg(
                Arg::new("signal")
                    .short('s')
                    .long("signal")
                    .value_name("SIGNAL")
                    .value_parser(parse_signal)
                    .help("Send only this signal [default: TERM, then KILL after 3 s]"),
            )
            .arg(name_argument("NAME").num_args(1..)),
        client_command("wait", "Wait for processes to exit, print their exit codes, and exit with the last")
            .after_help("The exit code is that of the last process; 124 after --timeout, and 125 if exec-server fails.")
            .arg(
                Arg::new("timeout")
                    .long("timeout")
                    .value_name("DURATION")
                    .value_parser(parse_duration)
                    .help("Wait at most this long for all of them; 0 means forever"),
            )
            .arg(json())
            .arg(name_argument("NAME").num_args(1..)),
        client_command("forget", "Forget finished processes and their output")
            .arg(switch("force", "End running processes too").short('f'))
            .arg(
                switch("all", "Forget every finished process that was started with run --detach, and print the names")
                    .conflicts_with_all(["name", "force"]),
            )
            .arg(name_argument("NAME").num_args(1..).required(false).required_unless_present("all")),
    ];
    of_processes.into_iter().chain(files::commands()).chain([http::command()]).collect()
}

fn run() -> clap::Command {
    client_command("run", "Run a command and pass on its input, output and exit code")
        .override_usage("exec-server run [OPTIONS] [--] COMMAND [ARGUMENTS]...")
        .after_help(
            "The exit code is that of the command, or 128 + N if signal N killed it; 124 after --timeout,\n\
             125 if exec-server fails, 126 if the command cannot be executed, 127 if it is not found.",
        )
        .args([
            switch("terminal", "Give the command a terminal").short('t').long("tty"),
            switch("no_terminal", "Do not give it a terminal (the default)").short('T').long("no-tty").overrides_with("terminal"),
            switch("no_stdin", "Do not read standard input").short('n').long("no-stdin"),
            switch("interactive", "With --detach, keep standard input open for attach").short('i'),
            switch("verbose", "Report what the sandbox seems to have denied, even if standard error is not a terminal").short('v'),
        ])
        .args([
            Arg::new("cwd")
                .short('w')
                .long("cwd")
                .visible_alias("workdir")
                .value_name("DIR")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::DirPath)
                .help("Run in this directory on the server's machine"),
            Arg::new("env")
                .short('e')
                .long("env")
                .value_name("NAME[=VALUE]")
                .action(ArgAction::Append)
                .help("Set a variable, or copy yours (may be repeated)"),
            server_env(),
            Arg::new("timeout")
                .long("timeout")
                .value_name("DURATION")
                .value_parser(parse_duration)
                .help("End the command after this time: TERM, then KILL 2 s later; 0 means never"),
            Arg::new("name")
                .long("name")
                .value_name("NAME")
                .value_parser(parse_name)
                .help("The name for ps, logs, attach, kill, wait and forget"),
        ])
        .args([
            switch("detach", "Start it, print its name and return").short('d'),
            Arg::new("ttl")
                .long("ttl")
                .value_name("DURATION")
                .value_parser(parse_lifetime)
                .requires("detach")
                .help("With --detach, how long it may run without a client [default: until the server stops]"),
            switch("json", "With --detach, print JSON").requires("detach"),
        ])
        .args(sandbox::arguments())
        .arg(command_argument().required(true).num_args(1..).help("The command and its arguments"))
}

/// What a client command has in common with the others.
pub(super) fn client_command(name: &'static str, about: &'static str) -> clap::Command {
    clap::Command::new(name).about(about).args_override_self(true).args([
        Arg::new("connect")
            .long("connect")
            .value_name("URL")
            .help("Use the server at ws://HOST:PORT or unix:///PATH"),
        Arg::new("on")
            .long("on")
            .value_name("ENVIRONMENT")
            .conflicts_with("connect")
            .help("Use this environment from environments.toml"),
        config_argument().help("Read the server's URL from this TOML file"),
    ])
}

fn server_env() -> Arg {
    switch(
        "server_env",
        "Start from the server's environment, even if the server is yours and on this machine",
    )
    .long("server-env")
}

/// Everything from the first word on belongs to the command, dashes or not.
fn command_argument() -> Arg {
    Arg::new("command")
        .value_name("COMMAND")
        .value_parser(value_parser!(OsString))
        .value_hint(ValueHint::AnyPath)
        .num_args(0..)
        .trailing_var_arg(true)
}

fn name_argument(name: &'static str) -> Arg {
    Arg::new("name")
        .value_name(name)
        .required(true)
        .help("The name of a process, or SESSION/NAME if the name is not unique")
}

/// `None` for a command that is not one of these. An error says what is wrong with a value that clap must not judge,
/// because it would print it.
pub(super) fn parse(name: &str, matches: &ArgMatches) -> Result<Option<ClientCommand>, String> {
    let flag = |id: &str| matches.get_flag(id);
    let names =
        || -> Vec<String> { matches.get_many("name").into_iter().flatten().cloned().collect() };
    let the_name = || names().pop().unwrap_or_default();
    let action = match name {
        "run" => Action::Run(parse_run(matches)?),
        "shell" => Action::Shell {
            command: words(matches),
            sandbox: sandbox::parse(matches)?,
            server_env: flag("server_env"),
        },
        "ps" => Action::Ps { all: flag("all"), json: flag("json") },
        "logs" => Action::Logs(Logs {
            name: the_name(),
            follow: flag("follow"),
            tail: matches.get_one("tail").copied(),
            since: matches.get_one("since").copied(),
            json: flag("json"),
        }),
        "attach" => Action::Attach { name: the_name() },
        "kill" => Action::Kill { names: names(), signal: matches.get_one("signal").copied() },
        "wait" => Action::Wait { names: names(), timeout: timeout(matches), json: flag("json") },
        "forget" => Action::Forget { names: names(), force: flag("force") },
        "http" => Action::Http(http::parse(matches)?),
        _ => match files::parse(name, matches)? {
            Some(action) => Action::Files(action),
            None => return Ok(None),
        },
    };
    let connect = matches.get_one::<String>("connect").map(|url| parse_url(url)).transpose()?;
    let server = ServerChoice {
        connect,
        on: matches.get_one("on").cloned(),
        config_file: matches.get_one(CONFIG_FILE).cloned(),
    };
    Ok(Some(ClientCommand { server, action }))
}

fn parse_run(matches: &ArgMatches) -> Result<Run, String> {
    let variables = matches.get_many::<String>("env").into_iter().flatten();
    Ok(Run {
        command: words(matches),
        terminal: matches.get_flag("terminal"),
        no_stdin: matches.get_flag("no_stdin"),
        cwd: matches.get_one("cwd").cloned(),
        variables: variables.map(|text| parse_variable(text)).collect::<Result<_, _>>()?,
        server_env: matches.get_flag("server_env"),
        timeout: timeout(matches),
        name: matches.get_one("name").cloned(),
        sandbox: sandbox::parse(matches)?,
        verbose: matches.get_flag("verbose"),
        detach: matches.get_flag("detach").then(|| Detach {
            ttl: matches.get_one("ttl").copied(),
            keep_stdin: matches.get_flag("interactive"),
            json: matches.get_flag("json"),
        }),
    })
}

/// As for timeout(1), zero is no limit.
pub(super) fn timeout(matches: &ArgMatches) -> Option<Duration> {
    matches.get_one::<Duration>("timeout").copied().filter(|timeout| !timeout.is_zero())
}

fn words(matches: &ArgMatches) -> Vec<OsString> {
    matches.get_many("command").into_iter().flatten().cloned().collect()
}

/// An error does not show a user's password or a token.
fn parse_url(text: &str) -> Result<ServerUrl, String> {
    text.parse::<ServerUrl>().map_err(|error| {
        // Without a user name only a query can be secret, and the error leaves that out itself. With one it cannot be
        // told where a password with a slash in it ends.
        let problem = if text.contains('@') {
            "expected ws://HOST:PORT or unix:///PATH, without a user name or password".to_owned()
        } else {
            error.to_string()
        };
        format!("invalid value for '--connect <URL>': {problem}")
    })
}

/// An error does not show the value.
fn parse_variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        Some(("", _)) | None if text.is_empty() || text.starts_with('=') => {
            Err("invalid value for '--env <NAME[=VALUE]>': expected NAME=VALUE or NAME".to_owned())
        }
        Some((name, value)) => Ok(Variable::Set { name: name.to_owned(), value: value.to_owned() }),
        None => Ok(Variable::Copied { name: text.to_owned() }),
    }
}

/// A bare number is seconds, as it is for `timeout` and `sleep`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let whole = text.parse().ok().map(Duration::from_secs);
    let fraction = || Duration::try_from_secs_f64(text.parse().ok()?).ok();
    whole
        .or_else(fraction)
        .or_else(|| humantime::parse_duration(text).ok())
        .ok_or_else(|| "expected seconds, or a duration such as 500ms, 30s or 1h 30m".to_owned())
}

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    if lifetime.is_zero() {
        return Err(
            "expected more than 0; a command that ends with exec-server run needs no --detach"
                .to_owned(),
        );
    }
    Ok(lifetime)
}

const LONGEST_NAME: usize = 128;

/// The rule of docker. A slash would make the name of a session of what stands before it.
pub(crate) fn is_plain_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
        && text.len() <= LONGEST_NAME
}

fn parse_name(text: &str) -> Result<String, String> {
    is_plain_name(text).then(|| text.to_owned()).ok_or_else(|| {
        format!("expected letters, digits, '_', '.' and '-', the first a letter or digit, at most {LONGEST_NAME}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use super::*;

    fn parsed(line: &str) -> ClientCommand {
        let words = line.split_whitespace().map(OsString::from);
        match parse(std::iter::once("exec-server".into()).chain(words)) {
            Ok(Command::Client(command)) => *command,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn run_of(line: &str) -> Run {
        match parsed(line).action {
            Action::Run(run) => run,
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
        let Action::Shell { command, .. } = parsed("shell").action else { panic!() };
        assert!(command.is_empty());
    }

    #[test]
    fn the_last_of_the_terminal_flags_counts() {
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
        assert_eq!(run.variables, [set("A", "b=c"), set("D", ""), copied]);
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
    fn no_time_is_no_limit_but_no_life() {
        for zero in ["0", "0.0", "0s"] {
            assert_eq!(run_of(&format!("run --timeout {zero} true")).timeout, None, "{zero}");
            let error = refused(&format!("run -d --ttl {zero} true"));
            assert!(error.contains("expected more than 0"), "{error}");
        }
    }

    #[test]
    fn mistakes_do_not_show_secrets() {
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
    fn names_are_those_of_docker() {
        assert_eq!(run_of("run --name a.B_3-x true").name.as_deref(), Some("a.B_3-x"));
        for bad in ["a/b", "-a", ".a", "é"] {
            assert!(refused(&format!("run --name={bad} true")).contains("letters"), "{bad}");
        }
    }

    #[test]
    fn what_only_goes_with_detach_needs_it() {
        assert!(run_of("run -d --ttl 1h --json true").detach.is_some());
        assert!(refused("run --ttl 1h true").contains("--detach"));
        assert!(refused("run --json true").contains("--detach"));
    }

    #[test]
    fn what_is_forgotten_is_named_or_all() {
        let Action::Forget { names, .. } = parsed("forget --all").action else { panic!() };
        assert!(names.is_empty());
        for bad in ["forget", "forget --all a", "forget --all -f"] {
            assert!(refused(bad).contains("Usage: exec-server forget"), "{bad}");
        }
    }

    #[test]
    fn logs_begin_where_they_are_asked_to() {
        let Action::Logs(logs) = parsed("logs -n 5 --since 1m a").action else { panic!() };
        assert_eq!((logs.tail, logs.since), (Some(5), Some(Duration::from_secs(60))));
        assert!(refused("logs --tail many a").contains("--tail"));
        assert!(refused("logs --tail 1 --json a").contains("--json"));
    }

    #[test]
    fn a_server_is_named_once() {
        let server = parsed("ps --connect ws://127.0.0.1:1").server;
        assert_eq!(server.connect.unwrap().to_string(), "ws://127.0.0.1:1");
        assert_eq!(parsed("run --on box true").server.on.as_deref(), Some("box"));
        assert!(refused("ps --connect ws://a --on b").contains("--on"));
        assert!(refused("ps --connect box").contains("expected ws://HOST:PORT"));
    }
}
