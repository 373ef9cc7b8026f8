//! `exec-server forward`: an environment whose streams are forwarded to another server.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use exec_server_relay::environment::{RemoteEnvironmentConfig, Serve};
use exec_server_relay::registry::RegistryClient;
use exec_server_transport::{
    CloseCode, Connection, DialOptions, Holding, Incoming, MemoryBudget, MemoryShare, Outgoing,
    Received, dial, read_token_file,
};
use tokio::sync::watch;

use super::remote::RunningRemote;
use super::serve::Signals;
use crate::cli::remote::{Forward, RegistryFlags};
use crate::config::remote::trusting;
use crate::registry_credentials::CredentialChoice;

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bound on partially received and undelivered messages of all streams. When it is exceeded, the
/// stream that holds the most is closed.
const MAX_BUFFERED_BYTES: usize = 256 << 20;
/// How long streams may take to close at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn forward(options: &Forward) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot create the event loop")?;
    runtime.block_on(run(options))
}

async fn run(options: &Forward) -> anyhow::Result<ExitCode> {
    let Forward { environment_id, name, use_agent_identity_auth, remote_token_file, .. } = options;
    let RegistryFlags { remote, remote_tls_ca, remote_tls_fingerprint } = &options.registry;
    RegistryClient::check_address(remote, environment_id)?;
    let choice = CredentialChoice {
        token_file: remote_token_file.clone(),
        token_variable: None,
        use_agent_identity: *use_agent_identity_auth,
    };
    let config = RemoteEnvironmentConfig {
        base_url: remote.clone(),
        environment_id: environment_id.clone(),
        name: name.clone(),
        credentials: choice.find(remote)?.credentials,
        tls: trusting(remote_tls_ca.clone(), *remote_tls_fingerprint),
    };
    let mut signals = Signals::new().context("cannot handle signals")?;
    let (stop, stopped) = watch::channel(false);
    let mut remote = RunningRemote::start(config, forwarding(options, stopped)).await?;
    tokio::select! {
        refused = remote.ended() => refused?,
        _ = signals.next() => {
            remote.stop();
            stop.send_replace(true);
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, remote.ended()).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All streams end when `stopped` becomes true.
fn forwarding(options: &Forward, stopped: watch::Receiver<bool>) -> Serve {
    let url: Arc<str> = options.connect.as_written().into();
    let shown_url: Arc<str> = options.connect.to_string().into();
    let tls = trusting(options.tls_ca.clone(), options.tls_fingerprint);
    let dial_options = DialOptions { tls, ..DialOptions::default() };
    let token_file = options.token_file.clone();
    let memory = MemoryBudget::new(MAX_BUFFERED_BYTES);
    Arc::new(move |stream| {
        let (url, mut options, token_file) =
            (Arc::clone(&url), dial_options.clone(), token_file.clone());
        let shown_url = Arc::clone(&shown_url);
        let memory = memory.share();
        let mut stopped = stopped.clone();
        Box::pin(async move {
            let dialling = async {
                if let Some(path) = token_file {
                    let read = tokio::task::spawn_blocking(move || read_token_file(&path)).await;
                    options.bearer_token = Some(read??);
                }
                anyhow::Ok(dial(&url, &options).await?)
            };
            match tokio::time::timeout(DIAL_TIMEOUT, dialling).await {
                Ok(Ok(server)) => {
                    // Cannot fail: the sender lives as long as the program.
                    let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
                    tokio::select! {
                        () = bridge(stream, server, &memory, stop) => {}
                        () = memory.exceeded() => {
                            tracing::warn!(
                                server = %shown_url,
                                limit = MAX_BUFFERED_BYTES,
                                "streams exceed the memory limit; closing the one that buffers the most"
                            );
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(server = %shown_url, "cannot forward a stream: {error:#}");
                }
                Err(_) => tracing::warn!(
                    server = %shown_url,
                    "cannot forward a stream: no connection within {DIAL_TIMEOUT:?}"
                ),
            }
        })
    })
}

/// Relays messages in both directions until one side ends or `stop` resolves. Then flushes the
/// messages that preceded the end, and closes both sides.
async fn bridge(
    left: Connection,
    right: Connection,
    memory: &MemoryShare,
    stop: impl Future<Output = ()>,
) {
    let Connection { incoming: mut from_left, outgoing: mut to_left, .. } = left;
    let Connection { incoming: mut from_right, outgoing: mut to_right, .. } = right;
    let [mut held_right, mut held_left] = [memory.hold(), memory.hold()];
    from_left.charge_to(memory);
    from_right.charge_to(memory);
    let pass_both_ways = async {
        // A side that accepts no more messages has closed, but its last messages may still be
        // unread.
        tokio::select! {
            passed = pass_on(&mut from_left, &mut to_right, &mut held_right) => {
                if passed.is_err() {
                    let _ = pass_on(&mut from_right, &mut to_left, &mut held_left).await;
                }
            }
            passed = pass_on(&mut from_right, &mut to_left, &mut held_left) => {
                if passed.is_err() {
                    let _ = pass_on(&mut from_left, &mut to_right, &mut held_right).await;
                }
            }
        }
    };
    let reason = tokio::select! {
        () = pass_both_ways => "the other side closed",
        () = stop => "exec-server forward is shutting down",
    };
    tokio::join!(
        to_left.close(CloseCode::Normal, reason),
        to_right.close(CloseCode::Normal, reason),
    );
}

/// Forwards messages until `incoming` ends, or fails if `outgoing` accepts no more.
async fn pass_on(
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
    held: &mut Holding,
) -> io::Result<()> {
    loop {
        held.set(outgoing.buffered());
        outgoing.flush().await?;
        held.set(0);
        tokio::select! {
            received = incoming.recv() => match received {
                // A stream cannot carry an empty message.
                Some(Received::Message(message)) if message.is_empty() => {}
                Some(Received::Message(message)) => outgoing.push_owned(message),
                Some(Received::Malformed(_)) => {}
                None => return Ok(()),
            },
            () = outgoing.control_pending() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_server_transport::memory;

    use super::*;

    async fn bridge_for_ever(left: Connection, right: Connection) {
        let memory = MemoryBudget::new(MAX_BUFFERED_BYTES).share();
        bridge(left, right, &memory, std::future::pending()).await;
    }

    async fn send(connection: &mut Connection, message: &[u8]) {
        connection.outgoing.push(message);
        connection.outgoing.flush().await.unwrap();
    }

    #[tokio::test]
    async fn messages_are_relayed_and_the_end_of_one_side_ends_the_other() {
        let ((mut client, left), (right, mut server)) = (memory(), memory());
        let bridging = tokio::spawn(bridge_for_ever(left, right));
        send(&mut client, b"not even JSON").await;
        let received = server.incoming.recv().await;
        assert_eq!(received, Some(Received::Message("not even JSON".into())));
        send(&mut server, b"one").await;
        send(&mut server, b"two").await;
        drop(server);
        for expected in ["one", "two"] {
            let received = client.incoming.recv().await;
            assert_eq!(received, Some(Received::Message(expected.into())));
        }
        assert_eq!(client.incoming.recv().await, None);
        bridging.await.unwrap();
    }

    #[tokio::test]
    async fn the_last_messages_of_a_server_arrive_after_it_closed() {
        let ((mut client, left), (right, mut server)) = (memory(), memory());
        let bridging = tokio::spawn(bridge_for_ever(left, right));
        // More messages than one connection can buffer.
        for number in 0..100_u8 {
            send(&mut server, &[number]).await;
        }
        drop(server);
        send(&mut client, b"unread").await;
        // The bridge fails to relay that message.
        tokio::task::yield_now().await;
        for number in 0..100_u8 {
            let received = client.incoming.recv().await;
            assert_eq!(received, Some(Received::Message(vec![number].into())));
        }
        assert_eq!(client.incoming.recv().await, None);
        bridging.await.unwrap();
    }
}
