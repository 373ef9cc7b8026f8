//! Reports the state of the service to the service manager (`sd_notify(3)`).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// How long a send may wait for a manager whose queue is full.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Does nothing if there is no service manager.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    socket: Option<Arc<NotifySocket>>,
}

#[derive(Debug)]
struct NotifySocket {
    name: OsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceState {
    /// The service accepts connections. Also sent at the end of a reload.
    Ready,
    Reloading,
    Stopping,
}

impl Notifier {
    /// `name` is a path, or `@` followed by the name of an abstract socket.
    pub(super) fn new(name: OsString) -> Self {
        Self { socket: Some(Arc::new(NotifySocket { name })) }
    }

    /// `status` is one line for people.
    pub fn notify(&self, state: ServiceState, status: &str) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.send(message(state, status).as_bytes())
    }
}

impl NotifySocket {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        let sent = self.address().and_then(|address| socket.send_to_addr(message, &address));
        sent.map(drop).map_err(|error| {
            io::Error::new(error.kind(), format!("NOTIFY_SOCKET {:?}: {error}", self.name))
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self.name.as_bytes() {
            #[cfg(target_os = "linux")]
            [b'@', name @ ..] => {
                use std::os::linux::net::SocketAddrExt as _;
                SocketAddr::from_abstract_name(name)
            }
            [b'/', ..] => SocketAddr::from_pathname(&self.name),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected an absolute path, or @ and the name of an abstract socket",
            )),
        }
    }
}

fn message(state: ServiceState, status: &str) -> String {
    let state = match state {
        ServiceState::Ready => "READY=1".to_owned(),
        // The timestamp lets the manager distinguish this reload from an earlier one.
        ServiceState::Reloading => {
            format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_microseconds())
        }
        ServiceState::Stopping => "STOPPING=1".to_owned(),
    };
    format!("{state}\nSTATUS={}", status.replace(char::is_control, " "))
}

fn monotonic_microseconds() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes only to `now`, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn a_state_is_sent_to_a_path_and_to_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.into());
        notifier.notify(ServiceState::Ready, "serving").unwrap();
        assert_eq!(received(&manager), "READY=1\nSTATUS=serving");
        notifier.notify(ServiceState::Reloading, "").unwrap();
        let text = received(&manager);
        let time = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.strip_suffix("\nSTATUS=").unwrap().parse::<u64>().unwrap() > 0);

        #[cfg(target_os = "linux")]
        {
            use std::os::linux::net::SocketAddrExt as _;
            let name = format!("exec-server-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let manager = UnixDatagram::bind_addr(&address).unwrap();
            let notifier = Notifier::new(format!("@{name}").into());
            notifier.notify(ServiceState::Stopping, "a\nREADY=1").unwrap();
            assert_eq!(received(&manager), "STOPPING=1\nSTATUS=a READY=1");
        }
    }

    #[test]
    fn without_a_manager_nothing_is_sent_and_an_unsupported_address_is_an_error() {
        assert!(Notifier::default().notify(ServiceState::Ready, "").is_ok());
        let error = Notifier::new("vsock:2:1".into()).notify(ServiceState::Ready, "").unwrap_err();
        let expected = "NOTIFY_SOCKET \"vsock:2:1\": expected an absolute path";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
