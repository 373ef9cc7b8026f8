//! Signals as users write them, and the flags of kill(1).

use std::ffi::OsString;

use exec_server_protocol::SignalName;

const SIGNALS: [(&str, i32, SignalName); 9] = [
    ("HUP", 1, SignalName::Hangup),
    ("INT", 2, SignalName::Interrupt),
    ("QUIT", 3, SignalName::Quit),
    ("KILL", 9, SignalName::Kill),
    ("USR1", 10, SignalName::User1),
    ("USR2", 12, SignalName::User2),
    ("TERM", 15, SignalName::Terminate),
    ("CONT", 18, SignalName::Continue),
    ("STOP", 19, SignalName::Stop),
];

pub(super) fn parse_signal(text: &str) -> Result<SignalName, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = text.parse::<i32>().ok();
    let found = SIGNALS.iter().find(|(known, n, _)| *known == name || Some(*n) == number);
    found
        .map(|(_, _, signal)| *signal)
        .ok_or_else(|| format!("expected one of {}", SIGNALS.map(|(name, _, _)| name).join(", ")))
}

/// Rewrites `kill -9 NAME` as `kill --signal=9 NAME`, because clap cannot describe such flags. Also
/// rewrites flags that only look like signals, so that the error lists the valid signals.
pub(super) fn with_signal_flags(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = super::index_of_command(&arguments);
    if arguments.get(command).is_some_and(|command| command == "kill") {
        let behind = arguments.iter_mut().skip(command + 1);
        for argument in behind.take_while(|argument| *argument != "--") {
            let signal = argument.to_str().and_then(|text| text.strip_prefix('-'));
            if let Some(signal) = signal.filter(|signal| looks_like_signal(signal)) {
                *argument = format!("--signal={signal}").into();
            }
        }
    }
    arguments
}

fn looks_like_signal(text: &str) -> bool {
    let begins =
        text.starts_with(|letter: char| letter.is_ascii_digit() || letter.is_ascii_uppercase());
    parse_signal(text).is_ok() || (begins && text.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::super::client::{ClientCommand, Kill};
    use super::super::parse;
    use super::*;

    fn killed(arguments: &str) -> Result<(Vec<String>, Option<SignalName>), clap::Error> {
        parsed(&format!("exec-server kill {arguments}"))
    }

    fn parsed(words: &str) -> Result<(Vec<String>, Option<SignalName>), clap::Error> {
        let line = parse(words.split_whitespace().map(OsString::from))?;
        match line.command.unwrap().client() {
            ClientCommand::Kill(Kill { names, signal, .. }) => Ok((names, signal)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for flag in ["-s USR1", "-s SIGUSR1", "--signal usr1", "-s10", "-10", "-USR1", "-SIGUSR1"] {
            let (names, signal) = killed(&format!("{flag} a b")).unwrap();
            assert_eq!(
                (names.as_slice(), signal),
                (&["a".into(), "b".into()][..], Some(SignalName::User1)),
                "{flag}"
            );
        }
        for config in ["--config=c.toml", "--config c.toml"] {
            let killed = parsed(&format!("exec-server {config} kill -10 a")).unwrap();
            assert_eq!(killed, (vec!["a".into()], Some(SignalName::User1)), "{config}");
        }
        assert!(killed("-s WINCH a").unwrap_err().to_string().contains("HUP, INT, QUIT"));
        for unknown in ["-WINCH", "-99", "-S"] {
            let error = killed(&format!("{unknown} a")).unwrap_err().to_string();
            assert!(error.contains("HUP, INT, QUIT") && !error.contains("-- -"), "{error}");
        }
    }

    #[test]
    fn a_name_may_look_like_a_signal() {
        assert_eq!(killed("9 KILL").unwrap(), (vec!["9".into(), "KILL".into()], None));
        assert_eq!(killed("-- -9").unwrap(), (vec!["-9".into()], None));
    }
}
