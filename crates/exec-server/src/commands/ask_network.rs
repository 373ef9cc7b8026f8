//! Asks the user at the terminal about hosts that match no rule, while the program waits.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use exec_server_client::NetworkRequestHandler;
use exec_server_protocol::{NetworkDecision, NetworkRequest, RefusedHost};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::wording::UsageError;
use crate::environment::host_options::HostOptions;
use crate::terminal::Questions;

pub(super) fn handler(argv: &[String]) -> anyhow::Result<NetworkRequestHandler> {
    let questions = Questions::open().map_err(|error| {
        UsageError(format!(
            "--ask-network needs a terminal ({error}); name the hosts with --allow-host instead"
        ))
    })?;
    let turn = Mutex::new(Turn { questions, always: HashSet::new() });
    let asker = Arc::new(Asker { program: program_name(argv), turn });
    Ok(NetworkRequestHandler::new(move |params| {
        let asker = Arc::clone(&asker);
        async move { asker.decide(&params.request).await }
    }))
}

struct Asker {
    program: String,
    /// Held during a question, so that questions are asked one at a time and in order.
    turn: Mutex<Turn>,
}

struct Turn {
    questions: Questions,
    /// Hosts that are allowed on every port until the command ends.
    always: HashSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    Always,
    No,
}

impl Asker {
    async fn decide(&self, request: &NetworkRequest) -> NetworkDecision {
        let deadline = Instant::now() + HostOptions::ANSWER_TIMEOUT;
        let Ok(mut turn) = timeout_at(deadline, self.turn.lock()).await else {
            return NetworkDecision::deny("an earlier question was not answered in time");
        };
        if turn.always.contains(&request.host) {
            return NetworkDecision::Allow;
        }
        match timeout_at(deadline, turn.ask(&question(&self.program, request))).await {
            Ok(Ok(Answer::Yes)) => NetworkDecision::Allow,
            Ok(Ok(Answer::Always)) => {
                turn.always.insert(request.host.clone());
                NetworkDecision::Allow
            }
            Ok(Ok(Answer::No)) => NetworkDecision::deny("the person at the terminal refused"),
            Ok(Err(error)) => {
                NetworkDecision::deny(&format!("cannot ask at the terminal: {error}"))
            }
            Err(_) => {
                // Ends the line of the question. Errors are ignored: the terminal may have closed.
                let _ = turn.questions.tell("");
                let _ = turn.questions.tell(&format!("no answer: {} is refused", target(request)));
                NetworkDecision::deny("the question was not answered in time")
            }
        }
    }
}

impl Turn {
    /// Repeats the question until the answer is valid. Ctrl-D and Ctrl-C mean no.
    async fn ask(&self, question: &str) -> io::Result<Answer> {
        loop {
            let Some(line) = self.questions.ask(question).await? else { return Ok(Answer::No) };
            if let Some(answer) = Answer::parse(&line) {
                return Ok(answer);
            }
        }
    }
}

impl Answer {
    fn parse(line: &str) -> Option<Self> {
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Some(Self::Yes),
            "a" | "always" => Some(Self::Always),
            "n" | "no" => Some(Self::No),
            _ => None,
        }
    }
}

fn question(program: &str, request: &NetworkRequest) -> String {
    let target = target(request);
    format!("{program} wants to connect to {target}: [y]es, [a]lways for this run, [n]o ")
}

fn target(request: &NetworkRequest) -> RefusedHost {
    RefusedHost { host: request.host.clone(), port: Some(request.port) }
}

/// Returns `npm` for `/usr/bin/npm`.
fn program_name(argv: &[String]) -> String {
    let program = argv.first().map_or("", String::as_str);
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    name.unwrap_or(program).to_owned()
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::NetworkProtocol;

    use super::*;

    #[test]
    fn the_question_names_host_and_program() {
        let request = |host: &str| NetworkRequest {
            protocol: NetworkProtocol::HttpsConnect,
            host: host.to_owned(),
            port: 443,
        };
        let name = program_name(&["/usr/bin/npm".to_owned(), "install".to_owned()]);
        assert_eq!(
            question(&name, &request("packages.example.org")),
            "npm wants to connect to packages.example.org:443: \
             [y]es, [a]lways for this run, [n]o "
        );
        assert!(question("..", &request("::1")).starts_with(".. wants to connect to [::1]:443"));
        assert_eq!(program_name(&["..".to_owned()]), "..");
        assert_eq!(program_name(&[]), "");
    }

    #[test]
    fn only_unambiguous_answers_are_accepted() {
        for (line, answer) in [
            ("y\n", Some(Answer::Yes)),
            (" YES \n", Some(Answer::Yes)),
            ("a\n", Some(Answer::Always)),
            ("n\n", Some(Answer::No)),
            ("\n", None),
            ("yn\n", None),
        ] {
            assert_eq!(Answer::parse(line), answer, "{line:?}");
        }
    }
}
