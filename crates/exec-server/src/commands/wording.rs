//! Formats errors for people: on one line, without error numbers, and without repetition.

use std::path::{Path, PathBuf};

use exec_server_client::ExecServerError;
use exec_server_protocol::{ErrorData, ErrorSubject, PathUri};

/// Formats the whole chain of causes. A cause that its error already quotes is not repeated.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(|cause| without_errno(&cause.to_string()));
    let mut line = causes.next().unwrap_or_default();
    for cause in causes {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.replace(['\n', '\r'], " ")
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// Returns a server path with the prefix `root` replaced by `written`, the user's text for it.
pub(super) fn as_written(path: &Path, root: &Path, written: &Path) -> PathBuf {
    match path.strip_prefix(root) {
        Ok(rest) if rest.as_os_str().is_empty() => written.to_owned(),
        // `box:` is complete; a slash would make the path absolute.
        Ok(rest) if written.as_os_str().as_encoded_bytes().ends_with(b":") => {
            let mut name = written.as_os_str().to_owned();
            name.push(rest);
            name.into()
        }
        Ok(rest) => written.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Removes the number that the standard library appends to the message: ` (os error 2)`.
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

/// Reduces the error to its reason if it is about `path`, which the caller prints itself as the
/// user wrote it. An older server does not report the subject of an error; then the path appears
/// twice.
pub(super) fn without_path(path: &PathUri, error: ExecServerError) -> ExecServerError {
    without_subject(error, |subject| *subject == ErrorSubject::Path(path.clone()))
}

/// Reduces the error to its reason if it is about a process or request: this program generates most
/// of their ids, which say nothing to the user.
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
    fn causes_appear_once_and_without_numbers() {
        let error: anyhow::Result<()> = Err(std::io::Error::from_raw_os_error(2).into());
        let error = error.context("cannot open a: No such file or directory (os error 2)");
        assert_eq!(one_line(&error.unwrap_err()), "cannot open a: No such file or directory");
        assert_eq!(said(server("no (os error 13), twice (os error 2)")), "no, twice");
        assert_eq!(said(server("no (os error x)")), "no (os error x)");
    }

    #[test]
    fn paths_are_shown_as_written() {
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
    fn only_the_subject_of_the_caller_is_omitted() {
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
