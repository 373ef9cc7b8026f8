//! Translates the errors of the HTTP and TLS libraries into facts that may be shown.
//!
//! The texts of these errors contain URLs, hosts and certificates. Only kinds and numbers leave
//! this file, except for errors of the set-up.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use super::error::{HttpError, TlsProblem};

/// The time limit of each connection attempt: name resolution, TCP, a proxy's tunnel and TLS
/// together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps the texts of an error that occurred before any request, and so knows no URL. The URLs of
/// proxies are parsed before.
pub(super) fn of_setup(error: &dyn Error) -> HttpError {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let cause = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    HttpError::Setup { cause }
}

/// Classifies an error that occurred before the response headers were received.
pub(super) fn of_request(error: &reqwest::Error) -> HttpError {
    if let Some(problem) = find(error, tls_problem) {
        return HttpError::Tls { problem };
    }
    if error.is_dns() {
        return HttpError::Resolve;
    }
    let io = find(error, io_error);
    if error.is_connect() {
        return match io {
            Some(source) => HttpError::Connect { source },
            None if error.is_timeout() => HttpError::ConnectTimedOut { after: CONNECT_TIMEOUT },
            None => HttpError::Proxy,
        };
    }
    if find(error, |cause| cause.downcast_ref().map(hyper::Error::is_parse)) == Some(true) {
        return HttpError::Malformed;
    }
    match io {
        Some(source) if !is_cut(&source) => HttpError::Exchange { source },
        _ => HttpError::NoResponse,
    }
}

/// Classifies an error that occurred after the response headers were received.
pub(super) fn of_body(error: &reqwest::Error) -> HttpError {
    match find(error, io_error) {
        Some(source) if !is_cut(&source) => HttpError::Exchange { source },
        _ => HttpError::BodyCutOff,
    }
}

/// Returns the first result of `ask` along the chain of causes.
fn find<'a, T>(
    error: &'a (dyn Error + 'static),
    ask: impl Fn(&'a (dyn Error + 'static)) -> Option<T>,
) -> Option<T> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(answer) = ask(cause) {
            return Some(answer);
        }
        // `io::Error::source` skips the error that the I/O error wraps.
        let wrapped = cause.downcast_ref().and_then(io::Error::get_ref);
        next = wrapped.map(|wrapped| wrapped as _).or_else(|| cause.source());
    }
    None
}

/// Rebuilds an I/O error from its number or kind, because the text of a wrapped error may contain
/// anything.
fn io_error(cause: &(dyn Error + 'static)) -> Option<io::Error> {
    let error: &io::Error = cause.downcast_ref()?;
    match error.raw_os_error() {
        Some(number) => Some(io::Error::from_raw_os_error(number)),
        // The wrapped error says more than its wrapper.
        None if error.kind() == io::ErrorKind::Other => None,
        None => Some(error.kind().into()),
    }
}

fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

fn tls_problem(cause: &(dyn Error + 'static)) -> Option<TlsProblem> {
    Some(match cause.downcast_ref()? {
        rustls::Error::InvalidCertificate(problem) => certificate_problem(problem),
        rustls::Error::AlertReceived(alert) => TlsProblem::Refused { alert: *alert },
        rustls::Error::InvalidMessage(_) => TlsProblem::NotTls,
        rustls::Error::PeerIncompatible(_) => TlsProblem::Incompatible,
        _ => TlsProblem::Handshake,
    })
}

fn certificate_problem(problem: &CertificateError) -> TlsProblem {
    let invalid = |flaw| TlsProblem::InvalidCertificate { flaw };
    match problem {
        CertificateError::UnknownIssuer => TlsProblem::UnknownAuthority,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsProblem::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsProblem::NotValidYet
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsProblem::OtherName
        }
        CertificateError::Revoked => TlsProblem::Revoked,
        CertificateError::BadEncoding => invalid("it is malformed"),
        CertificateError::BadSignature => invalid("its signature is wrong"),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            invalid("it is not for servers")
        }
        CertificateError::UnhandledCriticalExtension => {
            invalid("it has a critical extension that is not supported")
        }
        _ => invalid("it cannot be verified"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("builder error")]
    struct BuilderError(#[source] io::Error);

    #[test]
    fn an_error_of_the_setup_names_its_causes() {
        let error = BuilderError(io::Error::other("no cipher suites"));
        assert_eq!(
            of_setup(&error).to_string(),
            "cannot set up the HTTP client: builder error: no cipher suites"
        );
    }
}
