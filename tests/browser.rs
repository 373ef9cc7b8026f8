//! A page in a real browser needs both a token and an allowed origin to open a session. One page
//! runs the TypeScript client.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use exec_server_test_support::{Cut, FaultProxy, PlannedCut, Way, skipped};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::support::tokens::Issuer;
use crate::support::{HANG, command};

/// Tries to open a session with the token and without, and reports how far each attempt got.
const PAGE: &str = r#"<!doctype html><script>
const attempt = (protocols) => new Promise((resolve) => {
  const socket = new WebSocket("SERVER", protocols);
  const steps = [];
  socket.onopen = () => {
    steps.push("open " + socket.protocol);
    socket.send(JSON.stringify({id: 1, method: "initialize", params: {clientName: "page"}}));
    socket.send(JSON.stringify({method: "initialized"}));
    socket.send(JSON.stringify({id: 2, method: "process/start", params: {
      processId: "p", argv: ["/bin/echo", "hello from a page"], cwd: "file:///"}}));
  };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.method === "process/output") steps.push(atob(message.params.chunk).trim());
    if (message.method === "process/closed") socket.close();
  };
  socket.onclose = () => resolve(steps);
});
(async () => {
  const result = {
    token: await attempt(["exec-server.v1", "bearer.TOKEN"]),
    nothing: await attempt(["exec-server.v1"]),
  };
  await fetch("/result?" + encodeURIComponent(JSON.stringify(result)));
})();
</script>"#;

/// Runs the smoke test of the TypeScript client, whose built modules are loaded without a bundler.
const CLIENT_PAGE: &str = r#"<!doctype html><script type="module">
import { EXPECTED, smoke } from "/test/smoke.mjs";
const result = await smoke("SERVER", "TOKEN").catch(String);
await fetch("/result?" + encodeURIComponent(JSON.stringify({ result, expected: EXPECTED })));
</script>"#;

fn typescript_client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/typescript")
}

/// A web server for one page and the modules of the TypeScript client; its origin is its address.
struct Site {
    listener: TcpListener,
}

impl Site {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn origin(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// Serves the page until a browser reports its result. A browser also opens connections that it
    /// does not use, so each connection has a thread.
    fn result(&self, page: &str) -> Value {
        let (report, reported) = mpsc::sync_channel(1);
        let listener = self.listener.try_clone().unwrap();
        let page = page.to_owned();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (report, page) = (report.clone(), page.clone());
                thread::spawn(move || {
                    if let Some(result) = serve(stream, &page) {
                        let _ = report.try_send(result);
                    }
                });
            }
        });
        reported.recv_timeout(HANG).expect("the browser reports")
    }
}

/// Answers one request. Returns the result of a page, if the request reports one.
fn serve(mut stream: TcpStream, page: &str) -> Option<Value> {
    let target = request_target(&stream)?;
    let module = || std::fs::read_to_string(typescript_client().join(&target[1..])).ok();
    let (status, kind, body) = match target.as_str() {
        "/" => ("200 OK", "html", page.to_owned()),
        _ if target.starts_with("/result?") => ("200 OK", "html", String::new()),
        _ => match module() {
            Some(text) => ("200 OK", "javascript", text),
            None => ("404 Not Found", "html", String::new()),
        },
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/{kind}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).ok()?;
    let result = target.strip_prefix("/result?")?;
    let text = percent_decode_str(result).decode_utf8().ok()?;
    serde_json::from_str(&text).ok()
}

fn request_target(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    while !lines.next()?.ok()?.is_empty() {}
    first.split(' ').nth(1).map(str::to_owned)
}

struct Browser(Child);

impl Browser {
    fn open(mut chromium: Command, profile: &Path, url: &str) -> Self {
        chromium
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            // Keeps the browser running until it is killed.
            .arg("--remote-debugging-port=0")
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(chromium.spawn().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const CHROMIUM: &str = "/usr/bin/chromium";

/// Opens the page in a new browser, and returns its report.
fn look(site: &Site, page: &str) -> Value {
    let profile = tempfile::tempdir().unwrap();
    let _browser = Browser::open(command(CHROMIUM), profile.path(), &site.origin());
    site.result(page)
}

/// The reason why this machine cannot run these tests.
fn missing_browser() -> Option<&'static str> {
    let missing = "chromium is missing (Debian: apt-get install chromium)";
    (!Path::new(CHROMIUM).exists()).then_some(missing)
}

#[test]
fn a_page_needs_a_token_and_an_allowed_origin() {
    if let Some(reason) = missing_browser() {
        return skipped(reason);
    }
    let (site, foreign) = (Site::new(), Site::new());
    let issuer = Issuer::new();
    let server = issuer.server().arguments(&["--allow-origin", &site.origin()]).start();
    let token = issuer.token(&json!({ "sub": "page" }));
    let page = PAGE.replace("SERVER", server.url()).replace("TOKEN", &token);
    let result = look(&site, &page);
    assert_eq!(result["token"], json!(["open exec-server.v1", "hello from a page"]));
    assert_eq!(result["nothing"], json!([]));
    let result = look(&foreign, &page);
    assert_eq!(result, json!({ "token": [], "nothing": [] }));
}

#[test]
fn the_typescript_client_works_in_a_browser_and_survives_a_cut() {
    if let Some(reason) = missing_browser() {
        return skipped(reason);
    }
    if !typescript_client().join("dist/index.js").exists() {
        return skipped("the TypeScript client is not built: run clients/typescript/scripts/build");
    }
    let (site, foreign) = (Site::new(), Site::new());
    let issuer = Issuer::new();
    let server = issuer.server().arguments(&["--allow-origin", &site.origin()]).start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = server.url().strip_prefix("ws://").unwrap().parse().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(upstream));
    // Cuts the first write, which follows the HTTP head, the two messages of the handshake,
    // `environment/info` and the start.
    proxy.plan_cuts([PlannedCut { way: Way::ToServer, after: 5, how: Cut::MidFrameRst }]);
    let token = issuer.token(&json!({ "sub": "page" }));
    let page = CLIENT_PAGE.replace("SERVER", &proxy.url()).replace("TOKEN", &token);
    let report = look(&site, &page);
    assert_eq!(report["result"], report["expected"]);
    assert_eq!(proxy.planned_cuts_done(), 1);
    let report = look(&foreign, &page);
    let refusal = report["result"].as_str().unwrap_or_default();
    assert!(refusal.starts_with("ConnectError: cannot connect"), "{report}");
}
