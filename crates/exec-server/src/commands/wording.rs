//! What failed, in the words of whoever typed the command: without what servers say for programs only, and without what
//! was said already.

use std::path::{Path, PathBuf};

use exec_server_client::ExecServerError;
use exec_server_protocol::PathUri;

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

/// Something has to be written otherwise on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Mistake(pub(super) String);

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

/// Servers call what they were asked for by the id that we made up.
pub(super) fn without_id(what: &str, error: ExecServerError) -> ExecServerError {
    with_message(error, |message| {
        let named = message.strip_prefix(what)?.strip_prefix(" \"")?;
        named.split_once("\": ").map(|(_, cause)| cause)
    })
}

/// Servers name the path that failed. If it is the very one that they were asked about, our caller names it as it was
/// written.
pub(super) fn without_path(path: &PathUri, error: ExecServerError) -> ExecServerError {
    with_message(error, |message| Some(reason(message, path.as_path())))
}

/// What a line says about `path`, if it begins by naming that.
pub(super) fn reason<'a>(line: &'a str, path: &Path) -> &'a str {
    let path = path.display().to_string();
    if let Some(is) = line.strip_prefix(&path).and_then(|rest| rest.strip_prefix(' ')) {
        return is;
    }
    match line.strip_prefix("cannot ").and_then(|what| what.split_once(&format!(" {path}: "))) {
        Some((action, cause)) if !action.contains('/') => cause,
        _ => line,
    }
}

fn with_message(
    error: ExecServerError,
    shorten: impl FnOnce(&str) -> Option<&str>,
) -> ExecServerError {
    match error {
        ExecServerError::Server(mut error) => {
            if let Some(shorter) = shorten(&error.message).map(str::to_owned) {
                error.message = shorter;
            }
            ExecServerError::Server(error)
        }
        other => other,
    }
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
    fn what_we_called_it_is_not_told() {
        let said = |what, message| said(without_id(what, server(message)));
        assert_eq!(said("http request", "http request \"1\": no route"), "no route");
        assert_eq!(said("http request", "http request refused"), "http request refused");
        assert_eq!(said("process", "process \"a1d0\": glob \"x\": no"), "glob \"x\": no");
    }

    #[test]
    fn only_the_path_itself_is_left_out() {
        for (message, expected) in [
            ("cannot open /a/b: no", "no"),
            ("/a/b is a directory, not a file", "is a directory, not a file"),
            ("cannot remove /a/b/c: no", "cannot remove /a/b/c: no"),
            ("cannot open /x /a/b: no", "cannot open /x /a/b: no"),
            ("/a/bc is a directory", "/a/bc is a directory"),
        ] {
            let path = PathUri::from_path("/a/b").unwrap();
            assert_eq!(said(without_path(&path, server(message))), expected);
        }
    }
}
