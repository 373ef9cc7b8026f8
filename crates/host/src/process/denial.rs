//! Guesses whether a sandboxed process failed because of a denial, from its exit and the end of its
//! output.
//!
//! The kernel reports a refused call only to the program, and the program reports it as text. This
//! module parses that text. The result is a hint for deciding whether to grant more rights; the
//! server never acts on it.

use super::log::Snapshot;
use crate::network::gate::RefusedHost;

/// The denied operation, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Denial {
    /// As printed by the program.
    pub path: Option<String>,
    pub call: Option<String>,
    pub host: Option<RefusedHost>,
}

/// How a process ended: its exit code as a shell reports it, and the signal that killed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub(super) code: i32,
    pub(super) signal: Option<i32>,
}

/// The number of bytes searched at the end of each stream.
const LAST_WORDS: usize = 16 << 10;
const BAD_CALL_CODE: i32 = 128 + libc::SIGSYS;

/// How common libraries word `EACCES`, `EPERM` and `EROFS`, in lower case.
const REFUSALS: [&str; 3] =
    ["permission denied", "operation not permitted", "read-only file system"];
/// Error names, recognised only as whole words.
const NAMES: [&str; 3] = ["EACCES", "EPERM", "EROFS"];
/// Messages of programs that could not use the network, without a word about permissions. They
/// indicate a denial only if the sandbox restricts the network.
const SILENT_NETWORK: [&str; 4] = [
    "could not resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
];

/// Returns `None` if the process succeeded or its failure does not look like a denial.
pub(super) fn recognise(
    ending: Ending,
    said: &Snapshot,
    network_is_restricted: bool,
) -> Option<Denial> {
    if ending.code == 0 {
        return None;
    }
    if ending.signal == Some(libc::SIGSYS) || ending.code == BAD_CALL_CODE {
        return Some(Denial::default());
    }
    [&said.stderr, &said.terminal, &said.stdout].into_iter().find_map(|bytes| {
        let tail = &bytes[bytes.len().saturating_sub(LAST_WORDS)..];
        let text = String::from_utf8_lossy(tail);
        let denial = text.lines().rev().find_map(|line| denial_in(line, network_is_restricted))?;
        // A program that was denied a socket says `socket` on the same line or in a backtrace
        // above. Bash names a path such as `/dev/tcp/HOST/PORT`.
        let wants_socket = match &denial.path {
            Some(path) => path.starts_with("/dev/tcp/") || path.starts_with("/dev/udp/"),
            None => denial.call.is_none() && find_word(&text, "socket").is_some(),
        };
        if network_is_restricted && wants_socket {
            return Some(Denial { call: Some("socket".to_owned()), ..Denial::default() });
        }
        Some(denial)
    })
}

fn denial_in(line: &str, network_is_restricted: bool) -> Option<Denial> {
    // ASCII only: other letters may change length, and an offset into `lower` is used in `line`.
    let lower = line.to_ascii_lowercase();
    let refusal = REFUSALS.iter().find_map(|refusal| lower.find(refusal));
    if let Some(at) = refusal.or_else(|| NAMES.iter().find_map(|name| find_word(line, name))) {
        return Some(Denial { path: path_in(line, at), call: call_in(line), host: None });
    }
    let is_silent = SILENT_NETWORK.iter().any(|words| lower.contains(words));
    (network_is_restricted && is_silent)
        .then(|| Denial { call: Some("socket".to_owned()), ..Denial::default() })
}

fn find_word(line: &str, word: &str) -> Option<usize> {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).map(|(at, _)| at).find(|&at| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_letter) && !after.starts_with(is_letter)
    })
}

/// Returns the quoted text nearest to the refusal, preferably before it; otherwise the last
/// path-like word between the refusal and the colon before it.
fn path_in(line: &str, refusal_at: usize) -> Option<String> {
    let (before, after) = line.split_at_checked(refusal_at)?;
    if let Some(text) = quoted(before).last().or_else(|| quoted(after).next()) {
        return Some(text.to_owned());
    }
    let before = before.trim_end_matches([' ', ':', '(', '[']);
    let part = before.rsplit(": ").next()?;
    // `cat: key.pem: …` names a file, `ping: socket: …` does not.
    let is_path = |word: &&str| word.contains('/') || (*word == part && word.contains('.'));
    let word = part.rsplit(' ').find(is_path)?;
    Some(word.trim_end_matches([',', ';']).to_owned())
}

/// An apostrophe inside a word is not a quote.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    const QUOTES: [(char, char); 4] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '\'')];
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find(|letter| QUOTES.iter().any(|(open, _)| *open == letter))?;
            let begins_word = !rest[..at].ends_with(char::is_alphanumeric);
            let mut inside = rest[at..].chars();
            let open = inside.next()?;
            rest = inside.as_str();
            let close = QUOTES.iter().find(|quotes| quotes.0 == open)?.1;
            if begins_word && let Some((text, after)) = rest.split_once(close) {
                rest = after;
                if !text.is_empty() {
                    return Some(text);
                }
            }
        }
    })
}

/// Parses the Node.js form: `EACCES: permission denied, open '/etc/x'`.
fn call_in(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("denied, ").or_else(|| line.split_once("permitted, "))?;
    let call = rest.split([' ', '\'']).next()?;
    let is_name = !call.is_empty() && call.bytes().all(|byte| byte.is_ascii_lowercase());
    is_name.then(|| call.to_owned())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn said(stderr: &str) -> Snapshot {
        Snapshot {
            stdout: Bytes::new(),
            stderr: Bytes::copy_from_slice(stderr.as_bytes()),
            terminal: Bytes::new(),
            truncated: false,
            exit: None,
        }
    }

    fn failed(stderr: &str) -> Option<Denial> {
        recognise(Ending { code: 1, signal: None }, &said(stderr), true)
    }

    #[test]
    fn refusals_in_common_formats_are_recognised() {
        for (words, path, call) in [
            ("touch: cannot touch '/etc/x': Permission denied", Some("/etc/x"), None),
            (
                "mkdir: cannot create directory ‘.git/x’: Read-only file system",
                Some(".git/x"),
                None,
            ),
            ("bash: line 1: /etc/x: Permission denied", Some("/etc/x"), None),
            ("open /etc/x: permission denied", Some("/etc/x"), None),
            ("cat: key.pem: Permission denied", Some("key.pem"), None),
            ("ping: socket: Operation not permitted", None, Some("socket")),
            (
                "  File \"socket.py\", line 1\nPermissionError: [Errno 1] Operation not permitted",
                None,
                Some("socket"),
            ),
            ("PermissionError: [Errno 13] Permission denied: '/etc/x'", Some("/etc/x"), None),
            ("Error: EACCES: permission denied, open '/etc/x'", Some("/etc/x"), Some("open")),
            ("Os { code: 1, message: \"Operation not permitted\" }", None, None),
            ("socket: Operation not permitted", None, Some("socket")),
            ("bash: line 1: /dev/tcp/127.0.0.1/9: Operation not permitted", None, Some("socket")),
            ("sh: 1: can't open '/etc/x': Permission denied", Some("/etc/x"), None),
            ("install: 'a' -> '/etc/b': Operation not permitted", Some("/etc/b"), None),
            ("open failed with EROFS", None, None),
            ("curl: (6) Could not resolve host: example.org", None, Some("socket")),
        ] {
            let denial = failed(&format!("working\n{words}\n")).expect(words);
            assert_eq!(denial.path.as_deref(), path, "{words}");
            assert_eq!(denial.call.as_deref(), call, "{words}");
        }
    }

    #[test]
    fn other_failures_are_not_denials() {
        assert_eq!(failed("error[E0308]: mismatched types"), None);
        assert_eq!(failed(""), None);
        assert_eq!(failed("error: cannot find FileAccess, removePermission in this scope"), None);
        assert_eq!(failed("REPERMIT_EACCES_X"), None);
        let fine = Ending { code: 0, signal: None };
        assert_eq!(recognise(fine, &said("x: Permission denied"), true), None);
        let failed = Ending { code: 6, signal: None };
        assert_eq!(recognise(failed, &said("Could not resolve host: x"), false), None);
    }

    #[test]
    fn a_forbidden_call_that_kills_is_a_denial() {
        for ending in
            [Ending { code: 159, signal: Some(libc::SIGSYS) }, Ending { code: 159, signal: None }]
        {
            assert_eq!(recognise(ending, &said(""), false), Some(Denial::default()));
        }
    }
}
