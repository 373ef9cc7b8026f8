//! `exec-server http`: makes a request from the server and streams the response.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context as _;
use bytes::Bytes;
use exec_server_client::{ExecServerError, HttpBody};
use exec_server_protocol::{
    ErrorCode, HttpRequestParams, HttpResponse, MAX_FILE_BYTES, OutputStream, RedirectPolicy,
};

use super::download::Download;
use super::servers::Servers;
use super::wording::{UsageError, without_id};
use crate::cli::http::{Body, Http};
use crate::cli::values::limit;
use crate::foreground::{OutputError, Outputs};
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::terminal::printable;

pub(super) async fn run(servers: &Servers<'_>, request: &Http) -> anyhow::Result<ExitStatus> {
    let Some(limit) = limit(request.timeout) else { return perform(servers, request).await };
    // The server's timeout covers only the head: a streamed body may take forever.
    match tokio::time::timeout(limit, perform(servers, request)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let host = request.method_and_url().map_or("the host", |(_, url)| host_of(url));
            anyhow::bail!("no complete response from {host} within {limit:?}")
        }
    }
}

async fn perform(servers: &Servers<'_>, request: &Http) -> anyhow::Result<ExitStatus> {
    let (head, body) = ask(servers, request).await?;
    let mut outputs = Outputs::open();
    let delivered = deliver(request, &head, body, &mut outputs).await;
    if delivered.as_ref().is_err_and(anyhow::Error::is::<OutputError>) {
        return delivered;
    }
    // Prints the received part even if the response was cut short.
    let printed = outputs.finish().await;
    let status = delivered?;
    printed?;
    Ok(status)
}

async fn ask(servers: &Servers<'_>, request: &Http) -> anyhow::Result<(HttpResponse, HttpBody)> {
    let (method, url) = request.method_and_url().map_err(UsageError)?;
    let body_base64 = match &request.data {
        Some(body) => Some(read(body).await?.into()),
        None => None,
    };
    let (_, client) = servers.reach(None).await?;
    let timeout = limit(request.timeout).map(|timeout| timeout.as_millis());
    let params = HttpRequestParams {
        headers: request.headers(),
        body_base64,
        timeout_ms: timeout.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
        redirect_policy: match request.no_redirect {
            true => RedirectPolicy::Stop,
            false => RedirectPolicy::Follow,
        },
        ..HttpRequestParams::new(method, url.to_owned())
    };
    let answer = client.http_stream(params).await.map_err(without_id);
    answer.map_err(|error| match error {
        ExecServerError::Server(error) if error.code == ErrorCode::InvalidParams.value() => {
            UsageError(naming_url(&error.message, url)).into()
        }
        error => {
            let failure = format!("cannot get a response from {}", host_of(url));
            anyhow::Error::new(error).context(failure)
        }
    })
}

/// Returns the host and port of a URL, without the user name and the password.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

/// Adds the URL to an error of the server, without the user name and the query, which may be
/// secret. Servers omit the whole URL for that reason.
fn naming_url(message: &str, url: &str) -> String {
    let Some(problem) = message.strip_prefix("the URL ") else { return message.to_owned() };
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    let shown = match shown.rsplit_once('@') {
        Some((_, host)) => host,
        // The `?` or `#` may be part of a password.
        None if url.contains('@') => return message.to_owned(),
        None => shown,
    };
    let shown: String = shown.chars().take(200).collect();
    format!("the URL {shown:?} {problem}")
}

async fn deliver(
    request: &Http,
    head: &HttpResponse,
    mut body: HttpBody,
    outputs: &mut Outputs,
) -> anyhow::Result<ExitStatus> {
    if request.include {
        outputs.write(OutputStream::Stdout, text_of(head)).await?;
    }
    if request.fail && head.status >= 400 {
        say(&format!("the response has status {}", head.status));
        return Ok(ExitStatus::HTTP_FAILURE);
    }
    let mut file = match request.output_file() {
        Some(path) => Some((open(path).await.with_context(|| cannot_write(path))?, path)),
        None => None,
    };
    loop {
        let piece = tokio::select! {
            piece = body.next() => piece,
            error = outputs.failed() => return Err(error.into()),
        };
        let Some(piece) = piece else { break };
        let piece = piece.map_err(without_id);
        let piece = piece.with_context(|| {
            let host = request.method_and_url().map_or("the host", |(_, url)| host_of(url));
            format!("the response from {host} was cut short")
        })?;
        match &mut file {
            Some((file, path)) => file.write(&piece).with_context(|| cannot_write(path))?,
            None => outputs.write(OutputStream::Stdout, piece).await?,
        }
    }
    if let Some((file, path)) = file {
        file.finish().with_context(|| cannot_write(path))?;
    }
    Ok(ExitStatus::SUCCESS)
}

async fn open(path: &Path) -> io::Result<Download> {
    let path = path.to_owned();
    let opening = tokio::task::spawn_blocking(move || Download::open(&path));
    opening.await.map_err(io::Error::other)?
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn text_of(head: &HttpResponse) -> Bytes {
    let mut text = format!("HTTP {}\n", head.status);
    for header in &head.headers {
        text += &format!("{}: {}\n", printable(&header.name), printable(&header.value));
    }
    text.push('\n');
    text.into()
}

async fn read(body: &Body) -> anyhow::Result<Bytes> {
    let (name, bytes) = match body {
        Body::Text(bytes) => ("the body".to_owned(), Ok(bytes.clone())),
        Body::File(path) => {
            let name = path.display().to_string();
            let path = path.clone();
            (name, read_blocking(move || File::open(path).and_then(read_limited)).await)
        }
        Body::Stdin => {
            let read = || read_limited(io::stdin().lock());
            ("standard input".to_owned(), read_blocking(read).await)
        }
    };
    let bytes = bytes.with_context(|| format!("cannot read {name}"))?;
    anyhow::ensure!(
        bytes.len() as u64 <= MAX_FILE_BYTES,
        "{name} exceeds {} MiB, the limit for a request body",
        MAX_FILE_BYTES >> 20
    );
    Ok(bytes.into())
}

/// Reads on a blocking thread: terminal input or a FIFO may block forever.
async fn read_blocking(
    read: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
) -> io::Result<Vec<u8>> {
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

/// Reads at most one byte more than allowed, enough to detect the excess.
fn read_limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let named = |url: &str| naming_url("the URL is not valid", url);
        assert_eq!(named("exmaple"), "the URL \"exmaple\" is not valid");
        for url in ["http://me:SECRET@h:x/p?token=SECRET", "h:x/p#SECRET", "SECRET@h:x/p"] {
            assert!(named(url).contains("h:x/p") && !named(url).contains("SECRET"), "{url}");
        }
        assert_eq!(named("http://me:SEC#RET@h/"), "the URL is not valid");
        assert_eq!(naming_url("header x: no", "u"), "header x: no");
    }

    #[tokio::test]
    async fn a_body_has_a_limit() {
        let error = read(&Body::File("/dev/zero".into())).await.unwrap_err().to_string();
        assert_eq!(error, "/dev/zero exceeds 47 MiB, the limit for a request body");
    }
}
