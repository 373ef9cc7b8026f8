//! The `exec-server` program, from its arguments to its exit code.

mod door;
pub(crate) mod exit_code;
mod forward;
pub(crate) mod logging;
mod monitor;
mod otlp;
mod reload;
pub(crate) mod remote;
mod rendezvous;
pub(crate) mod serve;
mod sockets;
pub(crate) mod write_history_files;

use std::io::{self, Write as _};
use std::process::ExitCode;

use exec_server_bench as bench;
use exec_server_host::service_manager::ServiceManager;

use crate::cli::rendezvous::RendezvousArguments;
use crate::cli::{self, Command, CommandLine};
use crate::commands;
use crate::commands::wording::one_line;
use crate::config::{self, Configuration, Flags, Setting};
use crate::environment::runtime_paths::run_spawner_if_asked;
use crate::terminal::printable_lines;

use cli::USAGE_ERROR;
use reload::RunningSettings;
use serve::ServiceContext;

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    exec_server_host::use_built_in_name_services();
    if let Some(code) = run_spawner_if_asked() {
        return code;
    }
    if let Some(code) = bench::take_part_if_asked() {
        return code;
    }
    if let Some(code) = commands::completions::complete_if_asked() {
        return code;
    }
    let CommandLine { flags, command, .. } = match cli::parse(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => {
            let _ = error.print();
            return cli::exit_code(&error, std::env::args_os());
        }
    };
    match command {
        None => as_service(
            &flags,
            |_| true,
            |configuration, context| {
                let settings = &configuration.settings;
                let _logging = logging::init(&settings.log, settings.log_format)?;
                for warning in &configuration.warnings {
                    tracing::warn!("{warning}");
                }
                serve::serve(&configuration.settings, context)
            },
        ),
        Some(Command::Config { json, .. }) => with_configuration(&flags, |configuration| {
            for warning in &configuration.warnings {
                say(&warning.to_string());
            }
            commands::config::run(configuration, json, &mut io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }),
        Some(Command::Doctor { json, cluster }) => {
            let cluster = cluster.nats();
            report(commands::doctor::run(json, cluster.as_ref(), &mut io::stdout().lock()))
        }
        Some(Command::Bench { quick, json, only }) => report(bench::run(quick, json, &only)),
        Some(Command::Client(command)) => commands::client::main(&command),
        Some(Command::Rendezvous(arguments)) => match *arguments {
            RendezvousArguments { command: Some(command), .. } => {
                let printed = commands::rendezvous::run(&command, &mut io::stdout().lock());
                report(printed.map(|()| ExitCode::SUCCESS))
            }
            RendezvousArguments { options, command: None } => {
                let is_used = |setting: &Setting| setting.key.starts_with("log");
                as_service(&flags, is_used, |configuration, context| {
                    let settings = &configuration.settings;
                    let _logging = logging::init(&settings.log, settings.log_format)?;
                    rendezvous::run(&options, context)
                })
            }
        },
        Some(Command::Token(command)) => {
            let printed = commands::token::run(&command, &mut io::stdout().lock());
            report(printed.map(|()| ExitCode::SUCCESS))
        }
        Some(Command::Forward(options)) => with_configuration(&flags, |configuration| {
            let settings = &configuration.settings;
            let _logging = logging::init(&settings.log, settings.log_format)?;
            forward::forward(&options)
        }),
        Some(Command::Login(options)) => {
            let kept = commands::login::login(&options, &mut io::stdout().lock());
            report(kept.map(|()| ExitCode::SUCCESS))
        }
        Some(Command::Logout(options)) => {
            let removed = commands::login::logout(&options, &mut io::stdout().lock());
            report(removed.map(|()| ExitCode::SUCCESS))
        }
        Some(Command::Completions { shell }) => {
            let printed = commands::completions::run(shell, &mut io::stdout().lock());
            report(printed.map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::from))
        }
        Some(Command::Man { command }) => {
            let printed = commands::man::run(command.as_deref(), &mut io::stdout().lock());
            report(printed.map(|()| ExitCode::SUCCESS))
        }
        Some(Command::Schema) => {
            let printed = commands::schema::run(&mut io::stdout().lock());
            report(printed.map(|()| ExitCode::SUCCESS))
        }
    }
}

/// Runs a service; `is_used` says which settings it uses.
fn as_service(
    flags: &Flags,
    is_used: fn(&Setting) -> bool,
    run: impl FnOnce(&Configuration, ServiceContext) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    // Must come first: it takes descriptors by number and changes the environment.
    let manager = match ServiceManager::take() {
        Ok(manager) => manager,
        Err(error) => {
            say(&format!("cannot take the sockets and variables of the service manager: {error}"));
            return ExitCode::FAILURE;
        }
    };
    with_configuration(flags, |configuration| {
        let running = Some(RunningSettings::new(flags, configuration, is_used));
        run(configuration, ServiceContext { manager, running, otlp: None })
    })
}

fn with_configuration(
    flags: &Flags,
    run: impl FnOnce(&Configuration) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    match config::load(flags, std::env::vars_os()) {
        Ok(configuration) => report(run(&configuration)),
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(USAGE_ERROR)
        }
    }
}

fn report(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        say(&one_line(&error));
        ExitCode::FAILURE
    })
}

pub(crate) fn say(problem: &str) {
    tell(&format!("exec-server: {}", problem.trim_end_matches('\n')));
}

/// Prints a message on standard error, with control characters replaced. Commands print all
/// messages through this function, because any message may contain text from a server.
pub(crate) fn tell(message: &str) {
    // If standard error is closed, there is no other place to report to.
    let _ = writeln!(io::stderr(), "{}", printable_lines(message));
}
