//! A rendezvous under the test's control: it can cut each socket, and do anything to each frame.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, StreamId};
use exec_server_transport::{Connection, ListenUrl, Listener, ListenerOptions, Outgoing, Received};
use tokio::sync::{Mutex, Notify, mpsc, watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum To {
    Environment,
    Harness,
}

/// Replaces a frame with any number of frames, in either direction.
pub(crate) type Meddler = Box<dyn FnMut(To, Bytes) -> Vec<(To, Bytes)> + Send>;

pub(crate) struct Rendezvous {
    pub(crate) environment_url: String,
    pub(crate) harness_url: String,
    shared: Arc<Shared>,
    /// The number of sockets that the environment has opened so far.
    pub(crate) environments: watch::Receiver<u32>,
}

struct Shared {
    meddler: Mutex<Meddler>,
    to_environment: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// All harnesses get all frames, and select theirs by the stream id.
    to_harnesses: Mutex<Vec<mpsc::Sender<Bytes>>>,
    cut_environment: Notify,
    cut_harnesses: Notify,
}

impl Rendezvous {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            meddler: Mutex::new(Box::new(|to, frame| vec![(to, frame)])),
            to_environment: Mutex::new(None),
            to_harnesses: Mutex::new(Vec::new()),
            cut_environment: Notify::new(),
            cut_harnesses: Notify::new(),
        });
        let (environment_url, environments) = listen(To::Harness, &shared).await;
        let (harness_url, _) = listen(To::Environment, &shared).await;
        Self { environment_url, harness_url, shared, environments }
    }

    pub(crate) async fn meddle(
        &self,
        meddler: impl FnMut(To, Bytes) -> Vec<(To, Bytes)> + Send + 'static,
    ) {
        *self.shared.meddler.lock().await = Box::new(meddler);
    }

    /// Sends a frame to one end as if it came from the other.
    pub(crate) async fn inject(&self, to: To, frame: Bytes) {
        self.shared.send(to, frame).await;
    }

    /// Sends the environment a frame for a stream that neither end knows.
    pub(crate) async fn inject_new(&self, body: Body) -> StreamId {
        let stream_id = StreamId::random();
        let frame = Frame { stream_id, ack: 0, ack_bits: 0, body, trace: None };
        self.inject(To::Environment, frame.encode()).await;
        stream_id
    }

    pub(crate) fn cut(&self, to: To) {
        match to {
            To::Environment => self.shared.cut_environment.notify_waiters(),
            To::Harness => self.shared.cut_harnesses.notify_waiters(),
        }
    }
}

/// Accepts sockets of one end, whose frames go `to` the other.
async fn listen(to: To, shared: &Arc<Shared>) -> (String, watch::Receiver<u32>) {
    let any: ListenUrl = "ws://127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&any, ListenerOptions::default()).await.unwrap();
    let url = listener.local_url().to_string();
    let (count, counted) = watch::channel(0);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        loop {
            let connection = listener.accept().await;
            let (sender, frames) = mpsc::channel(1024);
            match to {
                To::Harness => *shared.to_environment.lock().await = Some(sender),
                To::Environment => shared.to_harnesses.lock().await.push(sender),
            }
            tokio::spawn(carry(connection, to, frames, Arc::clone(&shared)));
            count.send_modify(|count| *count += 1);
        }
    });
    (url, counted)
}

async fn carry(connection: Connection, to: To, frames: mpsc::Receiver<Bytes>, shared: Arc<Shared>) {
    let Connection { mut incoming, outgoing, .. } = connection;
    let cut = match to {
        To::Harness => &shared.cut_environment,
        To::Environment => &shared.cut_harnesses,
    };
    tokio::select! {
        () = cut.notified() => {}
        () = write(outgoing, frames) => {}
        () = async {
            while let Some(Received::Message(frame)) = incoming.recv().await {
                let frames = (shared.meddler.lock().await)(to, frame);
                for (to, frame) in frames {
                    shared.send(to, frame).await;
                }
            }
        } => {}
    }
}

impl Shared {
    async fn send(&self, to: To, frame: Bytes) {
        match to {
            To::Environment => {
                let sender = self.to_environment.lock().await.clone();
                if let Some(sender) = sender {
                    let _ = sender.send(frame).await;
                }
            }
            To::Harness => {
                let mut senders = self.to_harnesses.lock().await;
                senders.retain(|sender| !sender.is_closed());
                for sender in senders.iter() {
                    let _ = sender.send(frame.clone()).await;
                }
            }
        }
    }
}

async fn write(mut outgoing: Outgoing, mut frames: mpsc::Receiver<Bytes>) {
    outgoing.send_binary();
    loop {
        tokio::select! {
            frame = frames.recv() => match frame {
                Some(frame) => outgoing.push(&frame),
                None => return,
            },
            () = outgoing.control_pending() => {}
        }
        if outgoing.flush().await.is_err() {
            return;
        }
    }
}
