//! Errors for people: in one line, without numbers that are for programs, and without what was said already.

use std::path::{Path, PathBuf};

use exec_server_client::ExecServerError;
use exec_server_protocol::{ErrorData, ErrorSubject, PathUri};

/// The whole chain of causes. Our own errors name their cause already: it is not said twice.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(in_words);
    let mut line = causes.next().unwrap_or_default();
    for cause in causes {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace(['\n', '\r'], " ")
}

/// The command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// A path of a server, named as the user wrote the directory that it is in.
pub(super) fn as_written(path: &Path, root: &Path, written: &Path) -> PathBuf {
    match path.strip_prefix(root) {
        Ok(rest) if rest.as_os_str().is_empty() => written.to_owned(),
        // `box:` is a whole name, to which a slash would add a root.
        Ok(rest) if written.as_os_str().as_encoded_bytes().ends_with(b":") => {
            let mut name = written.as_os_str().to_owned();
            name.push(rest);
            name.into()
        }
        Ok(rest) => written.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Numbers of errors are for programs.
fn in_words(cause: &(dyn std::error::Error + 'static)) -> String {
    let text = match cause.downcast_ref() {
        Some(ExecServerError::Server(error)) => error.message.clone(),
        _ => cause.to_string(),
    };
    without_errno(&text)
}

/// Without the number that the standard library puts behind the kernel's words: ` (os error 2)`.
fn without_errno(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                words += rest;
            }
            _ => words = format!("{words} (os error {part}"),
        }
    }
    words
}

/// The reason alone, if the error is about the path that the caller names itself, as the user wrote it. An older server
/// does not say what an error is about; then the path is named twice.
pub(super) fn without_path(path: &PathUri, error: ExecServerError) -> ExecServerError {
    without_subject(error, |subject| *subject == ErrorSubject::Path(path.clone()))
}

/// The reason alone, if the error is about a process or a request: its id was made up by this program.
pub(super) fn without_id(error: ExecServerError) -> ExecServerError {
    without_subject(error, |subject| {
        matches!(subject, ErrorSubject::Process(_) | ErrorSubject::Request(_))
    })
}

fn without_subject(
    error: ExecServerError,
    is_named: impl FnOnce(&ErrorSubject) -> bool,
) -> ExecServerError {
    let ExecServerError::Server(mut error) = error else { return error };
    if let Some(ErrorData { subject: Some(subject), reason: Some(reason), .. }) = &error.data
        && is_named(subject)
    {
        error.message = reason.clone();
    }
    ExecServerError::Server(error)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use exec_server_protocol::RpcError;

    use super::*;

    fn server(message: &str) -> ExecServerError {
        ExecServerError::Server(RpcError::internal(message))
    }

    fn said(error: ExecServerError) -> String {
        one_line(&error.into())
    }

    #[test]
    fn causes_are_told_once_and_without_numbers() {
        let error: anyhow::Result<()> = Err(std::io::Error::from_raw_os_error(2).into());
        let error = error.context("cannot open a: No such file or directory (os error 2)");
        assert_eq!(one_line(&error.unwrap_err()), "cannot open a: No such file or directory");
        assert_eq!(said(server("no (os error 13), twice (os error 2)")), "no, twice");
        assert_eq!(said(server("no (os error x)")), "no (os error x)");
    }

    #[test]
    fn paths_are_named_as_they_were_written() {
        let named = |path: &str, written: &str| {
            as_written(Path::new(path), Path::new("/r"), Path::new(written))
        };
        for (path, written, expected) in [
            ("/r/a/b", "src", "src/a/b"),
            ("/r", "src", "src"),
            ("/r/a", "box:src", "box:src/a"),
            ("/r/a", "box:", "box:a"),
            ("/r/a", "", "a"),
            ("/other", "src", "/other"),
        ] {
            assert_eq!(named(path, written), Path::new(expected));
        }
    }

    #[test]
    fn only_what_the_caller_names_is_left_out() {
        let path = |path: &str| PathUri::from_path(path).unwrap();
        let about = |subject: &str| {
            let subject = ErrorSubject::Path(path(subject));
            let error = RpcError::internal("cannot open /a/b: no").with_subject(subject, "no");
            ExecServerError::Server(error)
        };
        assert_eq!(said(without_path(&path("/a/b"), about("/a/b"))), "no");
        assert_eq!(said(without_path(&path("/a/b"), about("/a"))), "cannot open /a/b: no");
        let of_an_older_server = without_path(&path("/a/b"), server("cannot open /a/b: no"));
        assert_eq!(said(of_an_older_server), "cannot open /a/b: no");
        let error = RpcError::internal("no route").about(ErrorSubject::Request("1".to_owned()));
        assert_eq!(error.message, "http request \"1\": no route");
        assert_eq!(said(without_id(ExecServerError::Server(error))), "no route");
    }
}
