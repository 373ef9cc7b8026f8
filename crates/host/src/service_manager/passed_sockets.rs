//! Sockets that the service manager has bound and passed to this process (`sd_listen_fds(3)`).

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::Variables;

const FIRST_DESCRIPTOR: RawFd = 3;
/// The name of unnamed sockets, as in `sd_listen_fds_with_names`.
const NO_NAME: &str = "unknown";

#[derive(Debug)]
pub struct PassedSocket {
    /// The value of `FileDescriptorName=`; by default the name of the socket unit. `unknown` if the
    /// service manager passes no names.
    pub name: String,
    pub socket: ListeningSocket,
}

/// Non-blocking, and close-on-exec.
#[derive(Debug)]
pub enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassedSocketsError {
    #[error("no sockets were passed to this process (LISTEN_FDS is not set)")]
    NonePassed,
    #[error("LISTEN_PID is not set, so the sockets of LISTEN_FDS may be meant for another process")]
    NoProcess,
    #[error("{variable} is {value:?}, which is not a valid number")]
    NotANumber { variable: &'static str, value: String },
    #[error(
        "the sockets were passed to process {intended} (LISTEN_PID), but this is process {own}"
    )]
    OtherProcess { intended: u32, own: u32 },
    #[error("LISTEN_FDS is {count}, but descriptor {descriptor} is not open")]
    NotOpen { count: RawFd, descriptor: RawFd },
    #[error("LISTEN_FDNAMES has {names} names for {count} sockets")]
    Names { names: usize, count: RawFd },
    #[error("cannot accept connections on descriptor {descriptor} ({name:?}): it is {found}")]
    NotListening { descriptor: RawFd, name: String, found: &'static str },
}

pub(super) fn take(variable: impl Variables) -> Result<Vec<PassedSocket>, PassedSocketsError> {
    let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
    let Some(count) = text("LISTEN_FDS") else { return Err(PassedSocketsError::NonePassed) };
    let own = std::process::id();
    let intended = text("LISTEN_PID").ok_or(PassedSocketsError::NoProcess)?;
    let intended = number("LISTEN_PID", intended)?;
    if intended != own {
        return Err(PassedSocketsError::OtherProcess { intended, own });
    }
    let count = i32::from(number::<u16>("LISTEN_FDS", count)?);
    let mut descriptors = Vec::new();
    for descriptor in FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + count {
        let not_open = PassedSocketsError::NotOpen { count, descriptor };
        descriptors.push((descriptor, own_descriptor(descriptor).ok_or(not_open)?));
    }
    let names = match text("LISTEN_FDNAMES") {
        Some(names) => names.split(':').map(str::to_owned).collect(),
        None => vec![NO_NAME.to_owned(); descriptors.len()],
    };
    if names.len() != descriptors.len() {
        return Err(PassedSocketsError::Names { names: names.len(), count });
    }
    let sockets = descriptors.into_iter().zip(names);
    sockets.map(|((number, descriptor), name)| check(number, descriptor, name)).collect()
}

fn number<N: std::str::FromStr>(
    variable: &'static str,
    value: String,
) -> Result<N, PassedSocketsError> {
    value.parse().map_err(|_| PassedSocketsError::NotANumber { variable, value })
}

/// Returns `None` if the descriptor is not open.
fn own_descriptor(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD only reads the descriptor's flags, and fails if the number is not open.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open. The service manager passed it to this process, which has
    // opened nothing else yet, so it has no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC).ok()?;
    Some(descriptor)
}

fn check(
    descriptor: RawFd,
    socket: OwnedFd,
    name: String,
) -> Result<PassedSocket, PassedSocketsError> {
    let is_tcp = match kind(socket.as_fd()) {
        Ok(family) => family != AddressFamily::UNIX,
        Err(found) => {
            return Err(PassedSocketsError::NotListening { descriptor, name, found });
        }
    };
    let socket = match is_tcp {
        true => ListeningSocket::Tcp(socket.into()),
        false => ListeningSocket::Unix(socket.into()),
    };
    let prepared = match &socket {
        ListeningSocket::Tcp(socket) => socket.set_nonblocking(true),
        ListeningSocket::Unix(socket) => socket.set_nonblocking(true),
    };
    match prepared {
        Ok(()) => Ok(PassedSocket { name, socket }),
        Err(_) => {
            let found = "a socket that cannot be made non-blocking";
            Err(PassedSocketsError::NotListening { descriptor, name, found })
        }
    }
}

/// Returns the family of a listening socket, or says what the descriptor is instead.
fn kind(socket: BorrowedFd<'_>) -> Result<AddressFamily, &'static str> {
    let kind = sockopt::socket_type(socket).map_err(|_| "not a socket")?;
    if kind != SocketType::STREAM {
        return Err("a datagram or packet socket");
    }
    if !sockopt::socket_acceptconn(socket).is_ok_and(|is_listening| is_listening) {
        return Err("a connection (socket units need Accept=no)");
    }
    let family = sockopt::socket_domain(socket).map_err(|_| "a socket of unknown family")?;
    match family {
        AddressFamily::UNIX | AddressFamily::INET | AddressFamily::INET6 => Ok(family),
        _ => Err("neither a TCP nor a Unix socket"),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Vec<PassedSocket>, PassedSocketsError> {
        take(|name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn sockets_of_another_process_are_not_taken() {
        assert_eq!(with(&[]).unwrap_err(), PassedSocketsError::NonePassed);
        assert_eq!(with(&[("LISTEN_FDS", "1")]).unwrap_err(), PassedSocketsError::NoProcess);
        let error = with(&[("LISTEN_FDS", "1"), ("LISTEN_PID", "1")]).unwrap_err();
        assert!(matches!(error, PassedSocketsError::OtherProcess { intended: 1, .. }), "{error}");
        let own = std::process::id().to_string();
        for (variable, variables) in [
            ("LISTEN_PID", [("LISTEN_FDS", "1"), ("LISTEN_PID", "x")]),
            ("LISTEN_PID", [("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "a")]),
            ("LISTEN_FDS", [("LISTEN_FDS", "-1"), ("LISTEN_PID", &own)]),
            ("LISTEN_FDS", [("LISTEN_FDS", "99999"), ("LISTEN_PID", &own)]),
        ] {
            let error = with(&variables).unwrap_err().to_string();
            assert!(error.starts_with(variable), "{error}");
        }
    }

    #[test]
    fn only_listening_stream_sockets_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (stream, _other) = UnixStream::pair().unwrap();
        assert!(kind(stream.as_fd()).unwrap_err().contains("Accept=no"));
        assert!(kind(UnixDatagram::unbound().unwrap().as_fd()).unwrap_err().contains("datagram"));
        let file = std::fs::File::open(directory.path()).unwrap();
        assert_eq!(kind(file.as_fd()), Err("not a socket"));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(kind(tcp.as_fd()), Ok(AddressFamily::INET));
        let unix = UnixListener::bind(directory.path().join("s")).unwrap();
        assert_eq!(kind(unix.as_fd()), Ok(AddressFamily::UNIX));
    }
}
