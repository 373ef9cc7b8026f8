//! A connection that ends at a call of a given method. The fault proxy cannot do that: it only
//! counts messages.

use std::sync::{Arc, Mutex};

use exec_server_client::{Connector, Dialing, ExecServerClient};
use exec_server_protocol::Method;
use exec_server_server::Server;
use exec_server_test_support::Served;
use exec_server_transport::{Connection, Received, memory};
use serde_json::Value;
use tokio::sync::watch;

use crate::support::options;

/// Connects to a server in memory, and inspects the messages.
#[derive(Clone)]
pub(crate) struct Tap {
    shared: Arc<Shared>,
}

/// The fault that a [`Tap`] injects into a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The connection ends before the server has the request.
    RequestLost,
    /// The server has executed the call, and the connection ends before its response.
    AnswerLost,
    /// The client loses the connection with its request; the server keeps its end open until
    /// [`Tap::let_go`].
    HalfOpen,
    /// The client receives this text instead of the response.
    Garbled(&'static str),
}

impl Fate {
    /// The faults that lose a call and both ends of its connection.
    pub(crate) const LOSSES: [Self; 2] = [Self::RequestLost, Self::AnswerLost];
}

struct Shared {
    server: Mutex<Server>,
    traps: Mutex<Vec<(Method, Fate)>>,
    dials: watch::Sender<usize>,
    half_open: Mutex<Vec<Connection>>,
}

impl Tap {
    pub(crate) fn on(server: &Server) -> Self {
        let shared = Shared {
            server: Mutex::new(server.clone()),
            traps: Mutex::default(),
            dials: watch::Sender::new(0),
            half_open: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) async fn client(&self) -> ExecServerClient {
        ExecServerClient::connect_by(self.clone(), options()).await.unwrap()
    }

    /// Sets a trap for a call of this method. Several traps are hit one after another.
    pub(crate) fn set_trap(&self, method: Method, fate: Fate) {
        self.shared.traps.lock().unwrap().push((method, fate));
    }

    pub(crate) fn has_sprung(&self) -> bool {
        self.shared.traps.lock().unwrap().is_empty()
    }

    pub(crate) fn let_go(&self) {
        self.shared.half_open.lock().unwrap().clear();
    }

    pub(crate) fn replace_server(&self, server: &Server) {
        *self.shared.server.lock().unwrap() = server.clone();
    }

    pub(crate) async fn wait_for_dials(&self, count: usize) {
        self.shared.dials.subscribe().wait_for(|dials| *dials >= count).await.unwrap();
    }
}

impl Connector for Tap {
    fn dial(&mut self) -> Dialing {
        self.shared.dials.send_modify(|dials| *dials += 1);
        let (client, client_side) = memory();
        let server = Served::by(&self.shared.server.lock().unwrap());
        tokio::spawn(relay(Arc::clone(&self.shared), client_side, server.connection));
        Box::pin(async move { Ok(client) })
    }
}

async fn relay(shared: Arc<Shared>, mut client: Connection, mut server: Connection) {
    let mut awaited = None;
    loop {
        tokio::select! {
            message = client.incoming.recv() => {
                let Some(Received::Message(message)) = message else { return };
                match shared.spring(&message) {
                    Some((Fate::RequestLost, _)) => return,
                    Some((Fate::HalfOpen, _)) => {
                        return shared.half_open.lock().unwrap().push(server);
                    }
                    Some(fate @ (Fate::AnswerLost | Fate::Garbled(_), _)) => awaited = Some(fate),
                    None => {}
                }
                send(&mut server, &message).await;
            }
            message = server.incoming.recv() => {
                let Some(Received::Message(message)) = message else { return };
                match &awaited {
                    Some((fate, id)) if json(&message)["id"] == *id => match fate {
                        Fate::Garbled(garbage) => send(&mut client, garbage.as_bytes()).await,
                        _ => return,
                    },
                    _ => send(&mut client, &message).await,
                }
            }
        }
    }
}

impl Shared {
    /// Takes the trap that this request hits, if any. Returns its fate and the id of the request.
    fn spring(&self, message: &[u8]) -> Option<(Fate, Value)> {
        let request = json(message);
        let mut traps = self.traps.lock().unwrap();
        let trap = traps.iter().position(|(method, _)| request["method"] == method.name())?;
        let (_, fate) = traps.remove(trap);
        Some((fate, request["id"].clone()))
    }
}

async fn send(connection: &mut Connection, message: &[u8]) {
    connection.outgoing.push(message);
    // The next read reports a peer that is gone.
    let _ = connection.outgoing.flush().await;
}

fn json(message: &[u8]) -> Value {
    serde_json::from_slice(message).expect("both sides speak JSON")
}
