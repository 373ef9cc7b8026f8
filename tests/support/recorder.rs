//! A TCP proxy that records the bytes of each direction of each connection.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) struct Recorder {
    listener: TcpListener,
    recorded: Recorded,
}

/// One entry for each direction of each connection.
type Recorded = Arc<Mutex<Vec<Vec<u8>>>>;

impl Recorder {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener, recorded: Recorded::default() }
    }

    /// Forwards connections to the service at this URL until the test ends. Returns the proxy's
    /// URL.
    pub(crate) fn pass_on_to(&self, url: &str) -> String {
        let target = url.strip_prefix("http://").unwrap().to_owned();
        let (listener, recorded) = (self.listener.try_clone().unwrap(), self.recorded.clone());
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                // While the service is down, the proxy closes connections too.
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let (from_near, from_far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(from_near, far), (from_far, near)] {
                    let recorded = Arc::clone(&recorded);
                    thread::spawn(move || copy(from, to, &recorded));
                }
            }
        });
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        let recorded = self.recorded.lock().unwrap();
        recorded.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, recorded: &Mutex<Vec<Vec<u8>>>) {
    let index = {
        let mut recorded = recorded.lock().unwrap();
        recorded.push(Vec::new());
        recorded.len() - 1
    };
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        recorded.lock().unwrap()[index].extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
