//! TLS, with the real binary and the Rust client.

use std::path::Path;
use std::time::Duration;

use exec_server::protocol::{Empty, PathUri, StartParams};
use exec_server::{
    ConnectionState, ExecProcessEvent, ExecServerClient, ExecServerError, Fingerprint,
    RemoteExecServerConnectArgs, ServerTrust, TlsOptions,
};
use exec_server_test_support::{Issued, TestAuthority, Validity};
use tempfile::TempDir;

use crate::support::tokens::{Issuer, write_secret};
use crate::support::{Server, ServerBuilder, eventually, run_command};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A server with a certificate and a token.
struct Secured {
    server: Server,
    directory: TempDir,
    authority: TestAuthority,
    token: String,
}

impl Secured {
    fn start() -> Self {
        Self::with(|builder| builder)
    }

    fn with(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        let Issued { certificate, key } = authority.issue(directory.path(), &NAMES, Validity::Now);
        let _ = authority.write(directory.path());
        let token = exec_server_transport::new_token();
        let file = directory.path().join("token");
        write_secret(&file, &token);
        let builder = ServerBuilder::new().arguments(&[
            "--listen",
            "wss://127.0.0.1:0",
            "--tls-cert",
            text(&certificate),
            "--tls-key",
            text(&key),
            "--ws-auth",
            "capability-token",
            "--ws-token-file",
            text(&file),
        ]);
        Self { server: change(builder).start(), directory, authority, token }
    }

    fn file(&self, name: &str) -> String {
        text(&self.directory.path().join(name)).to_owned()
    }

    fn args(&self, trust: ServerTrust) -> RemoteExecServerConnectArgs {
        let mut args = RemoteExecServerConnectArgs::new(self.server.url(), "end-to-end");
        args.bearer_token = Some(self.token.clone());
        args.tls = TlsOptions { trust, identity: None };
        args
    }

    /// Connects a client that trusts the authority.
    async fn client(&self) -> ExecServerClient {
        let trust = ServerTrust::Authorities(self.file("authority.pem").into());
        ExecServerClient::connect_websocket(self.args(trust)).await.unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

fn script(id: &str, script: &str) -> StartParams {
    let mut params =
        StartParams::new(id, ["/bin/sh", "-c", script], PathUri::from_path("/").unwrap());
    params.env.insert("PATH".into(), "/usr/bin:/bin".into());
    params
}

async fn output(client: &ExecServerClient, params: StartParams) -> usize {
    let process = client.start(params).await.unwrap();
    let mut events = process.subscribe_events();
    let mut bytes = 0;
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => bytes += chunk.chunk.len(),
            ExecProcessEvent::Failed(error) => panic!("{error}"),
            ExecProcessEvent::Gap { .. } => panic!("output is missing"),
            ExecProcessEvent::Exited(_) | ExecProcessEvent::Closed { .. } => {}
        }
    }
    bytes
}

#[tokio::test]
async fn processes_run_over_tls() {
    let secured = Secured::start();
    assert!(secured.server.url().starts_with("wss://127.0.0.1:"));
    let client = secured.client().await;
    let loud = script("loud", "head -c 20000000 /dev/zero");
    assert_eq!(output(&client, loud).await, 20_000_000);
    client.close().await.unwrap();

    let mut wrong = secured.args(ServerTrust::Authorities(secured.file("authority.pem").into()));
    wrong.bearer_token = Some("wrong".into());
    let error = ExecServerClient::connect_websocket(wrong).await.unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
    let other = ServerTrust::Fingerprint(Fingerprint::of(b"another"));
    let refused = ExecServerClient::connect_websocket(secured.args(other)).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, ExecServerError::ConnectFailed(_)));
    assert!(error.to_string().contains("the expected fingerprint"), "{error}");
}

#[test]
fn commands_and_environments_connect_over_wss() {
    let secured = Secured::start();
    let server = &secured.server;
    let ca = secured.file("authority.pem");
    let token = secured.file("token");
    let direct = ["run", "--connect", server.url(), "--token-file", &token, "--tls-ca", &ca];
    let outcome = server.run(&[&direct[..], &["--", "echo", "hi"]].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "hi\n"), "{}", outcome.stderr);

    let environments = secured.directory.path().join("environments.toml");
    let url = server.url();
    std::fs::write(
        &environments,
        format!(
            "[[environments]]\nid = \"box\"\nurl = \"{url}\"\ntoken_file = \"token\"\n\
             tls_ca = \"authority.pem\"\n\
             [[environments]]\nid = \"by-variable\"\nurl = \"{url}\"\ntoken_env = \"BOX_TOKEN\"\n\
             tls_ca = \"authority.pem\"\n"
        ),
    )
    .unwrap();
    let on = |id: &str, variable: Option<&str>| {
        let mut command = server.command(&["run", "--on", id, "--", "echo", "hi"]);
        command.env("EXEC_SERVER_ENVIRONMENTS", &environments);
        command.envs(variable.map(|token| ("BOX_TOKEN", token)));
        run_command(command)
    };
    assert_eq!(on("box", None).stdout, "hi\n");
    assert_eq!(on("by-variable", Some(&secured.token)).stdout, "hi\n");
    let unset = on("by-variable", None);
    assert_eq!(unset.code, Some(125));
    assert!(unset.stderr.contains("BOX_TOKEN is unset or empty"), "{}", unset.stderr);
}

#[test]
fn a_client_certificate_can_be_given_by_flags_and_environments() {
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let ca = authority.write(directory.path());
    let Issued { certificate, key } = authority.issue(directory.path(), &NAMES, Validity::Now);
    let own = directory.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let client = authority.issue(&own, &["ci.example"], Validity::Now);
    let socket = format!("unix://{}", directory.path().join("server.sock").display());
    let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key)];
    let builder = ServerBuilder::new().arguments(&["--listen", "wss://127.0.0.1:0"]);
    let builder = builder.arguments(&["--listen", &socket, "--tls-client-ca", text(&ca)]);
    let mut server = builder.arguments(&tls).start();
    assert_eq!(server.next_line(), socket);
    let url = server.url().to_owned();
    let trust = ["--connect", &url, "--tls-ca", text(&ca)];
    let identity =
        ["--tls-client-cert", text(&client.certificate), "--tls-client-key", text(&client.key)];
    let hello = ["--", "echo", "hi"];
    let outcome = server.run(&[&["run"], &trust[..], &identity, &hello].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "hi\n"), "{}", outcome.stderr);
    let outcome = server.run(&[&["run"], &trust[..], &hello].concat());
    assert!(outcome.stderr.contains("401"), "{}", outcome.stderr);
    let half = server.run(&[&["run"], &trust[..], &identity[..2], &hello].concat());
    assert_eq!(half.code, Some(125));
    // A certificate of another authority is refused with the reason, without a retry.
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let foreign = TestAuthority::new().issue(&foreign, &["ci.example"], Validity::Now);
    let identity =
        ["--tls-client-cert", text(&foreign.certificate), "--tls-client-key", text(&foreign.key)];
    let outcome = server.run(&[&["run"], &trust[..], &identity, &hello].concat());
    assert!(outcome.stderr.contains("refused the TLS handshake"), "{}", outcome.stderr);

    let environments = directory.path().join("environments.toml");
    let entry = format!(
        "[[environments]]\nid = \"box\"\nurl = \"{url}\"\ntls_ca = \"authority.pem\"\n\
         tls_client_cert = \"own/certificate.pem\"\ntls_client_key = \"own/certificate.key\"\n"
    );
    std::fs::write(&environments, entry).unwrap();
    let mut command = server.command(&["run", "--on", "box", "--", "echo", "hi"]);
    command.env("EXEC_SERVER_ENVIRONMENTS", &environments);
    assert_eq!(run_command(command).stdout, "hi\n");
    // Local commands use the Unix socket, which needs no certificate.
    assert_eq!(server.run(&["run", "--", "echo", "hi"]).stdout, "hi\n");
}

#[test]
fn a_self_signed_server_prints_a_connect_command_and_keeps_its_certificate() {
    let state = tempfile::tempdir().unwrap();
    let token = state.path().join("token");
    write_secret(&token, &exec_server_transport::new_token());
    let start = || {
        let arguments =
            ["--listen", "wss://127.0.0.1:0", "--tls-self-signed", "--ws-auth", "capability-token"];
        let builder = ServerBuilder::new().arguments(&arguments);
        let builder = builder.arguments(&["--ws-token-file", text(&token)]);
        let mut server =
            builder.variable("XDG_STATE_HOME", text(state.path())).capture_stderr().start();
        let line = server.error_line();
        (server, line)
    };
    let (server, line) = start();
    // Passes the printed options to another subcommand.
    let words: Vec<_> = line.split(' ').collect();
    let ["exec-server", "shell", options @ ..] = &words[..] else { panic!("{line}") };
    let outcome = server.run(&[&["run"], options, &["--", "echo", "hi"]].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "hi\n"), "{}", outcome.stderr);
    drop(server);
    let (_server, again) = start();
    let fingerprint = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(fingerprint(&line), fingerprint(&again));
}

/// Whether new connections get the certificate with this fingerprint.
async fn is_shown(secured: &Secured, fingerprint: Fingerprint) -> bool {
    let args = secured.args(ServerTrust::Fingerprint(fingerprint));
    match ExecServerClient::connect_websocket(args).await {
        Ok(client) => {
            client.close().await.unwrap();
            true
        }
        Err(_) => false,
    }
}

#[tokio::test]
async fn certificates_rotate_under_load_and_no_connection_is_dropped() {
    const CLIENTS: usize = 10;
    let secured = Secured::start();
    let mut clients = Vec::new();
    let mut counted = Vec::new();
    for _ in 0..CLIENTS {
        let client = secured.client().await;
        let endless = script("loud", "while :; do head -c 100000 /dev/zero; sleep 0.01; done");
        let process = client.start(endless).await.unwrap();
        let (bytes, count) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            let mut events = process.subscribe_events();
            while let Some(event) = events.next().await {
                match event {
                    ExecProcessEvent::Output(chunk) => {
                        bytes.send_modify(|bytes| *bytes += chunk.chunk.len());
                    }
                    ExecProcessEvent::Gap { .. } => panic!("output is missing"),
                    _ => {}
                }
            }
        });
        clients.push(client);
        counted.push(count);
    }
    let mut states: Vec<_> = clients.iter().map(ExecServerClient::connection_state).collect();
    for round in 0..4 {
        let Issued { certificate, .. } =
            secured.authority.issue(secured.directory.path(), &NAMES, Validity::Now);
        let fingerprint = fingerprint_of(&std::fs::read(&certificate).unwrap());
        if round % 2 == 0 {
            secured.server.signal(rustix::process::Signal::HUP);
        }
        while !is_shown(&secured, fingerprint).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Each connection continues.
        for (count, state) in counted.iter_mut().zip(&mut states) {
            let before = *count.borrow_and_update();
            count.wait_for(|bytes| *bytes > before).await.unwrap();
            assert!(!state.has_changed().unwrap(), "a connection was dropped");
            assert!(matches!(*state.borrow(), ConnectionState::Connected));
        }
    }
    for client in clients {
        client.close().await.unwrap();
    }
}

fn fingerprint_of(pem: &[u8]) -> Fingerprint {
    let text = std::str::from_utf8(pem).unwrap();
    let base64: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    Fingerprint::of(&base64_simd::STANDARD.decode_to_vec(base64).unwrap())
}

#[test]
fn a_broken_certificate_is_reported_and_the_old_one_stays_in_use() {
    let secured = Secured::with(ServerBuilder::capture_stderr);
    let Secured { mut server, directory, .. } = secured;
    std::fs::write(directory.path().join("certificate.pem"), "not a certificate").unwrap();
    let line = server.error_line();
    assert!(
        line.contains("contains no certificate") && line.contains("keeps the previous version"),
        "{line}"
    );
    let token = directory.path().join("token");
    let ca = directory.path().join("authority.pem");
    let url = server.url().to_owned();
    let arguments = ["run", "--connect", &url, "--token-file", text(&token), "--tls-ca", text(&ca)];
    eventually("a new client connects", || {
        server.run(&[&arguments[..], &["--", "true"]].concat()).code == Some(0)
    });
}

/// A session survives a cut over TLS too, and the client rereads a renewed token file.
#[tokio::test]
async fn a_session_is_resumed_over_tls_with_a_renewed_token() {
    use exec_server_test_support::{Cut, FaultProxy};

    let issuer = Issuer::new();
    let directory = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let Issued { certificate, key } = authority.issue(directory.path(), &NAMES, Validity::Now);
    let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key)];
    let builder = issuer.server().arguments(&["--listen", "wss://127.0.0.1:0"]).arguments(&tls);
    let server = builder.start();
    let upstream = server.url().strip_prefix("wss://").unwrap().parse().unwrap();
    let proxy = FaultProxy::start(upstream).await;
    let claims = serde_json::json!({ "sub": "alice" });
    let token_file = issuer.token_file("token", &claims);
    let url = proxy.url().replace("ws://", "wss://");
    let mut args = RemoteExecServerConnectArgs::new(url, "end-to-end");
    args.token_file = Some(token_file.clone());
    let trust = ServerTrust::Authorities(authority.write(directory.path()));
    args.tls = TlsOptions { trust, identity: None };
    let client = ExecServerClient::connect_websocket(args.clone()).await.unwrap();
    let mut params = script("p", "read line; echo $line; exit 3");
    params.pipe_stdin = true;
    let process = client.start(params).await.unwrap();
    // With another secret, the old token is invalid.
    let renewed = Issuer::new();
    std::fs::copy(renewed.secret_file(), issuer.secret_file()).unwrap();
    server.signal(rustix::process::Signal::HUP);
    let mut old = args.clone();
    old.token_file = Some(issuer.token_file("old", &claims));
    while ExecServerClient::connect_websocket(old.clone()).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::write(&token_file, renewed.token(&claims)).unwrap();
    proxy.cut(Cut::Rst).await;
    process.write(b"hello\n".to_vec()).await.unwrap();
    let mut events = process.subscribe_events();
    let mut said = Vec::new();
    while let Some(event) = events.next().await {
        if let ExecProcessEvent::Output(chunk) = event {
            said.extend_from_slice(&chunk.chunk);
        }
    }
    assert_eq!(said, b"hello\n");
}

/// Returns the resident memory of a process in MiB and its CPU time in seconds.
fn usage(pid: u32) -> (f64, f64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    (resident / 1024.0, ticks / 100.0)
}

/// To see the figures: `cargo nextest run --profile soak --release -p exec-server --run-ignored
/// only --no-capture -E 'test(soak_a_thousand)'`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the whole machine and prints figures: just soak-counts"]
async fn soak_a_thousand_sessions_with_tls_and_tokens() {
    const SESSIONS: usize = 1000;
    const PROCESSES: usize = 200;
    const STREAMS: usize = 50;
    const STREAMED: usize = 20 << 20;
    const ASKED: usize = 2000;
    let secured = Secured::start();
    let pid = secured.server.pid();
    println!("idle: {:.1} MiB", usage(pid).0);
    let began = std::time::Instant::now();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(secured.client().await);
    }
    let (memory, _) = usage(pid);
    println!("{SESSIONS} sessions in {:?}, server {memory:.1} MiB", began.elapsed());
    let mut processes = Vec::new();
    for client in &sessions[..PROCESSES] {
        processes.push(client.start(script("live", "exec sleep 1000")).await.unwrap());
    }
    println!("{PROCESSES} live processes: {:.1} MiB", usage(pid).0);
    let (began, before) = (std::time::Instant::now(), usage(pid).1);
    let streams: Vec<_> = sessions[..STREAMS]
        .iter()
        .map(|client| {
            let client = client.clone();
            tokio::spawn(async move {
                let loud = script("loud", &format!("head -c {STREAMED} /dev/zero"));
                assert_eq!(output(&client, loud).await, STREAMED);
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for client in sessions.iter().cycle().take(ASKED) {
        let asked = std::time::Instant::now();
        client.environment_status(Empty {}).await.unwrap();
        latencies.push(asked.elapsed());
    }
    for stream in streams {
        stream.await.unwrap();
    }
    let (elapsed, (memory, cpu)) = (began.elapsed(), usage(pid));
    latencies.sort_unstable();
    let megabytes = (STREAMS * STREAMED) as f64 / f64::from(1 << 20);
    println!(
        "{STREAMS} streams: {:.0} MiB/s together, server {memory:.1} MiB, {:.1} s of processor; \
         a request under this load p50 {:?}, p99 {:?}",
        megabytes / elapsed.as_secs_f64(),
        cpu - before,
        latencies[ASKED / 2],
        latencies[ASKED * 99 / 100],
    );
    for client in sessions {
        client.close().await.unwrap();
    }
    eventually("the server has released the sessions", || usage(pid).0 < memory);
    println!("afterwards: {:.1} MiB", usage(pid).0);
}
