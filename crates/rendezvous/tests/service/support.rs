//! A service on loopback, and peers that speak raw frames.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, StreamId};
use exec_server_rendezvous::{
    AdminRequest, AdminResponse, CredentialKind, Directory, NewCredential, RedbDirectory,
    Rendezvous, RendezvousConfig, Role, administer,
};
use exec_server_transport::{Connection, DialError, DialOptions, Received, dial};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any step takes unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Service {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) data: PathBuf,
    _scratch: Option<tempfile::TempDir>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Service {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut RendezvousConfig)) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut service = Self::start_in(scratch.path(), "127.0.0.1:0", change).await;
        service._scratch = Some(scratch);
        service
    }

    pub(crate) async fn start_in(
        data: &Path,
        listen: &str,
        change: impl FnOnce(&mut RendezvousConfig),
    ) -> Self {
        let directory: Arc<dyn Directory> = Arc::new(RedbDirectory::open(data).unwrap());
        Self::start_on(directory, data, listen, change).await
    }

    /// Starts a node with a directory that others may share.
    pub(crate) async fn start_on(
        directory: Arc<dyn Directory>,
        data: &Path,
        listen: &str,
        change: impl FnOnce(&mut RendezvousConfig),
    ) -> Self {
        let mut config = RendezvousConfig::new(listen.parse().unwrap());
        config.admin_socket = Some(data.join("admin.sock"));
        // Most peers here do not respond to a close frame.
        config.keep_alive.close_timeout = Duration::from_millis(100);
        change(&mut config);
        let service = Rendezvous::bind(config, directory).await.unwrap();
        let (url, address) = (service.url().to_owned(), service.local_address());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(service.serve_until(async { drop(stopped.await) }));
        Self { url, address, data: data.to_owned(), _scratch: None, stop, task }
    }

    /// Asks the service to end. Returns its task.
    pub(crate) fn begin_stop(&mut self) -> JoinHandle<()> {
        let (stop, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.stop, stop).send(());
        std::mem::replace(&mut self.task, tokio::spawn(async {}))
    }

    /// Ends the service. Returns its data directory, if that was made for it.
    pub(crate) async fn stop(self) -> Option<tempfile::TempDir> {
        let _ = self.stop.send(());
        timeout(LIMIT, self.task).await.expect("the service ends").unwrap();
        self._scratch
    }

    /// Ends the service like a crash: its peers are not notified.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) async fn create(
        &self,
        kind: CredentialKind,
        role: Role,
        environment: &str,
    ) -> (String, String) {
        let environments = BTreeSet::from([environment.parse().unwrap()]);
        let new = NewCredential { kind, role, environments, lifetime: None, name: None };
        self.create_new(new).await
    }

    pub(crate) async fn create_new(&self, new: NewCredential) -> (String, String) {
        match administer(&self.data, &AdminRequest::Create(new)).await.unwrap() {
            AdminResponse::Created { id, secret } => (id.to_string(), secret.0),
            other => panic!("{other:?} instead of a credential"),
        }
    }

    pub(crate) async fn token(&self, role: Role, environment: &str) -> String {
        self.create(CredentialKind::Token, role, environment).await.1
    }

    pub(crate) async fn revoke(&self, id: &str) {
        let request = AdminRequest::Revoke { id: id.to_owned() };
        let response = administer(&self.data, &request).await.unwrap();
        assert!(matches!(response, AdminResponse::Revoked { existed: true }));
    }

    pub(crate) async fn call(
        &self,
        environment: &str,
        call: &str,
        authorization: &str,
        body: &Value,
    ) -> (u16, Value) {
        let path = format!("/cloud/environment/{environment}/{call}");
        self.post(&path, authorization, body.to_string()).await
    }

    pub(crate) async fn post(&self, path: &str, authorization: &str, body: String) -> (u16, Value) {
        let (status, _, text) =
            self.request(Method::POST, path, &[("authorization", authorization)], body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> (u16, hyper::HeaderMap, String) {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = timeout(LIMIT, sender.send_request(request)).await.unwrap().unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(crate) async fn register(&self, environment: &str, token: &str) -> Value {
        let body =
            json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key("e")});
        let (status, answer) = self.call(environment, "register", &bearer(token), &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn connect(&self, environment: &str, token: &str) -> Value {
        let body = json!({"harness_public_key": key("h")});
        let (status, answer) = self.call(environment, "connect", &bearer(token), &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn environment(&self, environment: &str) -> (Peer, Value) {
        let token = self.token(Role::Environment, environment).await;
        let registered = self.register(environment, &token).await;
        let peer = Peer::dial(&registered["url"]).await;
        self.wait_online(environment).await;
        (peer, registered)
    }

    pub(crate) async fn harness(&self, environment: &str, token: &str) -> Peer {
        Peer::dial(&self.connect(environment, token).await["url"]).await
    }

    /// Waits for the router: the upgrade is answered a moment before the router has the socket.
    pub(crate) async fn wait_online(&self, environment: &str) {
        let online = format!("<td>{environment}</td><td>online</td>");
        let wait = async {
            while !self.status_page().await.contains(&online) {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, wait).await.expect("the environment is online");
    }

    pub(crate) async fn status_page(&self) -> String {
        self.request(Method::GET, "/", &[], String::new()).await.2
    }
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

pub(crate) fn key(name: &str) -> Value {
    json!({"suite": "s", "x25519_public_key": name, "mlkem768_public_key": "m"})
}

pub(crate) struct Peer(pub(crate) Connection);

impl Peer {
    pub(crate) async fn dial(url: &Value) -> Self {
        Self::try_dial(url).await.unwrap()
    }

    pub(crate) async fn try_dial(url: &Value) -> Result<Self, DialError> {
        let url = url.as_str().unwrap();
        let mut connection = timeout(LIMIT, dial(url, &DialOptions::default())).await.unwrap()?;
        connection.outgoing.send_binary();
        Ok(Self(connection))
    }

    /// Returns the status with which a dial is refused.
    pub(crate) async fn refusal(url: &Value) -> u16 {
        match Self::try_dial(url).await.map(drop) {
            Err(DialError::Refused { status, .. }) => status.as_u16(),
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    pub(crate) async fn send(&mut self, stream: StreamId, payload: &[u8]) {
        self.send_bytes(&data(stream, payload)).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.outgoing.push(bytes);
        self.0.outgoing.flush().await.unwrap();
    }

    /// Returns the next frame; `None` when the socket was closed.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let received =
            timeout(LIMIT, self.0.incoming.recv()).await.expect("a frame or the end arrives");
        match received? {
            Received::Message(bytes) => Some(Frame::decode(bytes).unwrap()),
            other @ Received::Malformed(_) => panic!("{other:?} instead of a frame"),
        }
    }

    pub(crate) async fn payload(&mut self) -> (StreamId, Bytes) {
        let frame = self.next().await.expect("the socket is open");
        match frame.body {
            Body::Data { payload, .. } => (frame.stream_id, payload),
            other => panic!("{other:?} instead of data"),
        }
    }

    pub(crate) async fn closed(&mut self) {
        while self.next().await.is_some() {}
    }
}

pub(crate) fn data(stream_id: StreamId, payload: &[u8]) -> Bytes {
    let payload = Bytes::copy_from_slice(payload);
    let body = Body::Data { seq: 0, segment_index: 0, segment_count: 1, payload };
    Frame { stream_id, ack: 0, ack_bits: 0, body, trace: None }.encode()
}

/// Dials a WebSocket by hand, for raw bytes. Reads only the first 12 bytes of the response.
pub(crate) async fn raw_socket(address: SocketAddr, url: &str) -> TcpStream {
    let path = url.split_once("/relay").unwrap().1;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /relay{path} HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\
         connection: upgrade\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 101");
    socket
}
