//! Completion of the command line. `exec-server completions SHELL` prints a script with which the
//! shell calls this program at each Tab, so the candidates are current: the processes of the server
//! and the user's environments.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ValueHint};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};

use super::listing::{self, Listed};
use super::run::options;
use crate::cli;
use crate::cli::client::{Credentials, ServerChoice};
use crate::cli::values::is_plain_name;
use crate::target::{Target, environment_ids};

/// Set by the scripts to the name of the shell.
const VARIABLE: &str = "EXEC_SERVER_COMPLETE";
const PROGRAM: &str = "exec-server";
/// Listing processes takes at most this long, because a user waits at the prompt.
const LISTING_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn run(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).expect("both crates know the same shells");
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, &this_program(), &mut script)?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash {
        // Bash does not quote the candidates of a program, so bash itself completes file names.
        script = script.replace("-o bashdefault", "-o bashdefault -o default");
    }
    super::print(script.as_bytes(), out)
}

/// Returns the name of this program if it was found in `PATH`, otherwise its absolute path.
fn this_program() -> String {
    let name = std::env::args_os().next().map_or_else(|| PROGRAM.into(), PathBuf::from);
    let is_bare = name.components().count() < 2;
    let path = if is_bare { name } else { std::path::absolute(&name).unwrap_or(name) };
    path.to_string_lossy().into_owned()
}

/// Completes a command line if a completion script calls this program.
pub(crate) fn complete_if_asked() -> Option<ExitCode> {
    let shell = std::env::var_os(VARIABLE)?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let choice = server_choice(&words);
    let program = || program_with_candidates(&choice, shell == "bash");
    let directory = std::env::current_dir().ok();
    let completed =
        CompleteEnv::with_factory(program).var(VARIABLE).try_complete(words, directory.as_deref());
    match completed {
        Ok(true) => Some(ExitCode::SUCCESS),
        Ok(false) => None,
        Err(_) => Some(ExitCode::FAILURE),
    }
}

fn server_choice(words: &[OsString]) -> ServerChoice {
    let value_of = |option: &str| {
        let with_value = format!("{option}=");
        words.iter().enumerate().find_map(|(at, word)| match word.to_str()? {
            text if text == option => words.get(at + 1)?.to_str().map(str::to_owned),
            text => text.strip_prefix(&with_value).map(str::to_owned),
        })
    };
    let path_of = |option: &str| value_of(option).map(PathBuf::from);
    ServerChoice {
        connect: value_of("--connect").and_then(|url| url.parse().ok()),
        on: value_of("--on"),
        config_file: path_of("--config"),
        credentials: Credentials {
            token_file: path_of("--token-file"),
            tls_ca: path_of("--tls-ca"),
            tls_fingerprint: value_of("--tls-fingerprint").and_then(|text| text.parse().ok()),
            tls_client_cert: path_of("--tls-client-cert"),
            tls_client_key: path_of("--tls-client-key"),
        },
    }
}

fn program_with_candidates(choice: &ServerChoice, is_bash: bool) -> clap::Command {
    cli::program().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        command.mut_args(|argument| with_candidates(&name, argument, choice.clone(), is_bash))
    })
}

fn with_candidates(command: &str, argument: Arg, choice: ServerChoice, is_bash: bool) -> Arg {
    let only_running = matches!(command, "attach" | "kill");
    match (command, argument.get_id().as_str()) {
        (_, "on") => argument.add(ArgValueCandidates::new(|| candidates(environment_ids()))),
        ("logs" | "attach" | "kill" | "wait" | "forget", "name" | "names") => {
            let names = move || candidates(process_names(&choice, only_running));
            argument.add(ArgValueCandidates::new(names))
        }
        (_, "path" | "paths") => {
            let is_here = command == "cp";
            let paths = move |word: &OsStr| paths(word, &choice, is_here, is_bash);
            argument.add(ArgValueCompleter::new(paths))
        }
        _ if is_bash && argument.get_action().takes_values() => {
            argument.value_hint(ValueHint::Other)
        }
        _ => argument,
    }
}

fn candidates(values: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    values.into_iter().filter(|value| is_harmless(value)).map(CompletionCandidate::new).collect()
}

/// Whether a shell may insert the candidate verbatim. It must contain no shell syntax, because
/// process names of a server are untrusted.
fn is_harmless(value: &str) -> bool {
    value.split('/').all(is_plain_name)
}

/// Completes environments and, where paths are local, file names; in bash, bash does the latter.
fn paths(
    word: &OsStr,
    choice: &ServerChoice,
    is_here: bool,
    is_bash: bool,
) -> Vec<CompletionCandidate> {
    let begins = |id: &String| id.as_bytes().starts_with(word.as_encoded_bytes());
    let ids = environment_ids().into_iter().filter(begins).filter(|id| is_plain_name(id));
    let ids = ids.map(|id| CompletionCandidate::new(format!("{id}:")));
    // For an empty word, bash would show environments instead of files.
    let mut found: Vec<_> = if is_bash && word.is_empty() { Vec::new() } else { ids.collect() };
    if !is_bash && (is_here || Target::find(choice).is_ok_and(|target| target.shares_files())) {
        found.extend(PathCompleter::any().complete(word));
    }
    found
}

/// Returns the names as [`listing::find`] accepts them, qualified by the session if not unique.
fn process_names(choice: &ServerChoice, only_running: bool) -> Vec<String> {
    let listed = listed(choice).unwrap_or_default();
    let name = |one: &Listed| match listed.iter().filter(|other| other.name() == one.name()).count()
    {
        1 => one.name().to_owned(),
        _ => format!("{}/{}", one.short_session(), one.name()),
    };
    let wanted = |one: &&Listed| !only_running || one.process.running;
    listed.iter().filter(wanted).map(name).collect()
}

fn listed(choice: &ServerChoice) -> Option<Vec<Listed>> {
    let target = Target::lasting(choice).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let listing = async {
        let session = target.connect(options("exec-server completions")).await.ok()?;
        let listed = listing::list(&session.client).await.ok();
        session.close().await;
        listed
    };
    runtime.block_on(async { tokio::time::timeout(LISTING_TIMEOUT, listing).await.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_without_shell_syntax_are_offered() {
        for name in ["$(reboot)", "a b", "a;b", "`x`", "\x1b[2J", "-rf", "", "a/$x", "~"] {
            assert!(!is_harmless(name), "{name:?}");
        }
        assert!(is_harmless("web-1.2_x") && is_harmless("0a1b2c3d/web"));
    }

    #[test]
    fn the_words_select_the_server() {
        let choice =
            |line: &str| server_choice(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(choice("exec-server -- exec-server logs --on box").on.as_deref(), Some("box"));
        assert_eq!(choice("exec-server logs --on=box w").on.as_deref(), Some("box"));
        let url = choice("exec-server logs --connect ws://127.0.0.1:1 w").connect.unwrap();
        assert_eq!(url.to_string(), "ws://127.0.0.1:1");
        assert_eq!(choice("exec-server logs --on"), ServerChoice::default());
    }
}
