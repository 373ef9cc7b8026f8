//! A page in a real browser: it gets in with a token from an origin that is allowed, and not without either.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use exec_server_test_support::skipped;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::support::tokens::Issuer;
use crate::support::{HANG, command};

/// Tries to open a session twice, with the token and without, and reports how far it came.
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

/// A web server for one page; its origin is its address.
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

    /// Serves the page until a browser reports what came of it. A browser also opens connections that
    /// it does not use, so each has a thread.
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

/// Answers one request; returns what it reports.
fn serve(mut stream: TcpStream, page: &str) -> Option<Value> {
    let target = request_target(&stream)?;
    let (status, body) = match target.as_str() {
        "/" => ("200 OK", page),
        _ if target.starts_with("/result?") => ("200 OK", ""),
        _ => ("404 Not Found", ""),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\
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
    fn open(mut chromium: Command, profile: &std::path::Path, url: &str) -> Self {
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
            // It stays until it is killed.
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

#[test]
fn a_page_needs_a_token_and_an_allowed_origin() {
    if !std::path::Path::new("/usr/bin/chromium").exists() {
        return skipped("chromium is missing (Debian: apt-get install chromium)");
    }
    let (site, foreign) = (Site::new(), Site::new());
    let issuer = Issuer::new();
    let server = issuer.server().arguments(&["--allow-origin", &site.origin()]).start();
    let token = issuer.token(&json!({ "sub": "page" }));
    let page = PAGE.replace("SERVER", server.url()).replace("TOKEN", &token);
    let look = |site: &Site| {
        let profile = tempfile::tempdir().unwrap();
        let _browser = Browser::open(command("/usr/bin/chromium"), profile.path(), &site.origin());
        site.result(&page)
    };
    let result = look(&site);
    assert_eq!(result["token"], json!(["open exec-server.v1", "hello from a page"]));
    assert_eq!(result["nothing"], json!([]));
    let result = look(&foreign);
    assert_eq!(result, json!({ "token": [], "nothing": [] }));
}
