//! `exec-server http`: the server sends the request, the command prints the response.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::process::Signal;

use crate::support::{
    PROGRAM, Running, Server, ServerBuilder, command, run_program, run_with_input,
};

/// A web server that records its requests and selects the response by the path.
pub(crate) struct Web {
    url: String,
    asked: Receiver<Asked>,
    /// `/slow` waits for this between the parts of its body.
    go_on: SyncSender<()>,
}

#[derive(Debug)]
struct Asked {
    method: String,
    headers: String,
    body: Vec<u8>,
}

impl Web {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, asked) = sync_channel(100);
        let (go_on, gate) = sync_channel(1);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client may hang up early.
                let _ = answer(stream.unwrap(), &tell, &gate);
            }
        });
        Self { url, asked, go_on }
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

fn answer(stream: TcpStream, tell: &SyncSender<Asked>, gate: &Receiver<()>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut headers = String::new();
    while !headers.ends_with("\r\n\r\n") && reader.read_line(&mut headers)? > 2 {}
    let length = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let mut words = request.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    tell.send(Asked { method, headers, body }).map_err(std::io::Error::other)?;
    let mut stream = stream;
    let whole = |status: &str, more: &str, body: &str| {
        let len = body.len();
        format!(
            "HTTP/1.1 {status}\r\n{more}Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    match path.as_str() {
        "/moved" => {
            stream.write_all(whole("302 Found", "Location: /hello\r\n", "moved").as_bytes())
        }
        "/missing" => stream.write_all(whole("404 Not Found", "", "no such page").as_bytes()),
        "/broken" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"),
        "/slow" => {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n",
            )?;
            let _ = gate.recv();
            stream.write_all(b"5\r\nlast\n\r\n0\r\n\r\n")
        }
        _ => stream.write_all(whole("200 OK", "X-Odd: odd\r\n", "hello\n").as_bytes()),
    }
}

#[test]
fn a_response_is_printed_or_written_to_a_file() {
    let (server, web) = (Server::start(), Web::start());
    let outcome = server.run(&["http", &web.at("/hello")]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()),
        (Some(0), "hello\n", "")
    );
    assert_eq!(web.asked.recv().unwrap().method, "GET");

    let with_head = server.run(&["http", "-i", &web.at("/hello")]).stdout;
    let (head, body) = with_head.split_once("\n\n").unwrap();
    assert!(head.starts_with("HTTP 200\n") && head.contains("x-odd: odd"), "{with_head}");
    assert_eq!(body, "hello\n");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    let outcome = server.run(&["http", "-o", file.to_str().unwrap(), &web.at("/hello")]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert_eq!(fs::read(file).unwrap(), b"hello\n");
}

#[test]
fn a_file_is_replaced_only_by_a_complete_body() {
    let (server, web) = (Server::start(), Web::start());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    fs::write(&file, "before").unwrap();
    let path = file.to_str().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = format!("http://{nobody}/");
    for (arguments, code) in [
        (["-f", "-o", path, &web.at("/missing")], 22),
        (["-i", "-o", path, &web.at("/broken")], 1),
        (["-i", "-o", path, &nowhere], 1),
    ] {
        let outcome = server.run(&[&["http"], &arguments[..]].concat());
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("request \""), "{}", outcome.stderr);
        assert_eq!(fs::read(&file).unwrap(), b"before", "{arguments:?}");
    }
    assert_eq!(server.run(&["http", "-o", path, &web.at("/hello")]).code, Some(0));
    assert_eq!(fs::read(&file).unwrap(), b"hello\n");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    assert_eq!(server.run(&["http", "-o", "-", &web.at("/hello")]).stdout, "hello\n");
}

#[test]
fn a_body_is_printed_as_it_arrives() {
    let (server, web) = (Server::start(), Web::start());
    let mut slow = Running::start(server.command(&["http", &web.at("/slow")]));
    assert_eq!(slow.line(), "first\n");
    web.go_on.send(()).unwrap();
    assert_eq!(slow.line(), "last\n");
    assert_eq!(slow.finish().0.code(), Some(0));

    let mut abandoned = Running::start(server.command(&["http", &web.at("/slow")]));
    assert_eq!(abandoned.line(), "first\n");
    abandoned.signal(Signal::INT);
    assert_eq!(abandoned.finish().0.code(), Some(130));
    web.go_on.send(()).unwrap();
}

#[test]
fn a_request_has_the_given_method_headers_and_body() {
    let server = ServerBuilder::new().variable("GREETING", "from the server").start();
    let web = Web::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    fs::write(&file, b"\xff\x00 bytes").unwrap();

    let arguments =
        ["http", "-d", "a=b", "-H", "X-Kind: test", "--header-env", "X-Greeting: {GREETING}"];
    let outcome = server.run(&[&arguments[..], &[&web.at("/")]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let asked = web.asked.recv().unwrap();
    assert_eq!((asked.method.as_str(), asked.body.as_slice()), ("POST", &b"a=b"[..]));
    let headers = asked.headers.to_lowercase();
    assert!(headers.contains("x-kind: test\r\n"), "{headers}");
    assert!(headers.contains("x-greeting: from the server\r\n"), "{headers}");

    let data = format!("@{}", file.display());
    assert_eq!(server.run(&["http", "PUT", &web.at("/"), "-d", &data]).code, Some(0));
    let asked = web.asked.recv().unwrap();
    assert_eq!((asked.method.as_str(), asked.body.as_slice()), ("PUT", &b"\xff\x00 bytes"[..]));

    let from_input = server.command(&["http", &web.at("/"), "-d", "-"]);
    assert_eq!(run_with_input(from_input, b"typed").status.code(), Some(0));
    assert_eq!(web.asked.recv().unwrap().body, b"typed");

    let missing = server.run(&["http", "--header-env", "X-A: {NO_SUCH}", &web.at("/")]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("NO_SUCH"), "{}", missing.stderr);
}

#[test]
fn redirects_are_followed_unless_disabled() {
    let (server, web) = (Server::start(), Web::start());
    assert_eq!(server.run(&["http", &web.at("/moved")]).stdout, "hello\n");
    let stopped = server.run(&["http", "-i", "--no-redirect", &web.at("/moved")]).stdout;
    assert!(stopped.starts_with("HTTP 302\n") && stopped.ends_with("\n\nmoved"), "{stopped}");
}

#[test]
fn failures_have_distinct_exit_codes() {
    let (server, web) = (Server::start(), Web::start());
    let answered = server.run(&["http", &web.at("/missing")]);
    assert_eq!((answered.code, answered.stdout.as_str()), (Some(0), "no such page"));
    let failed = server.run(&["http", "-f", &web.at("/missing")]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(22), ""));
    assert!(failed.stderr.contains("404"), "{}", failed.stderr);

    let broken = server.run(&["http", &web.at("/broken")]);
    assert_eq!((broken.code, broken.stdout.as_str()), (Some(1), "part"));
    assert_eq!(broken.stderr.lines().count(), 1, "{}", broken.stderr);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = server.run(&["http", &format!("http://{nobody}/")]);
    assert_eq!((refused.code, refused.stderr.lines().count()), (Some(1), 1), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!(" from {nobody}: ")), "{}", refused.stderr);
    let secret = server.run(&["http", &format!("http://me:SECRET@{nobody}/?SECRET")]);
    assert_eq!(secret.stderr, refused.stderr);
    let waited = server.run(&["http", "--timeout", "100ms", &web.at("/slow")]);
    assert_eq!(waited.code, Some(1), "{}", waited.stderr);
    web.go_on.send(()).unwrap();
    assert_eq!(server.run(&["http"]).code, Some(2));
    for (url, named) in [
        ("exmaple", "the URL \"exmaple\" is "),
        ("gopher://host/?token=SECRET", "the URL \"gopher://host/\" is neither http nor https"),
        ("http://user:SECRET@:x/", "the URL \":x/\" is not valid"),
    ] {
        let mistake = server.run(&["http", url]);
        assert_eq!(mistake.code, Some(2), "{}", mistake.stderr);
        assert!(mistake.stderr.contains(named), "{}", mistake.stderr);
        assert!(!mistake.stderr.contains("SECRET"), "{}", mistake.stderr);
    }
}

#[test]
fn options_may_stand_before_or_after_the_method() {
    let (server, web) = (Server::start(), Web::start());
    let url = web.at("/");
    for words in [
        &["DELETE", "-i", "-d", "x", &url][..],
        &["-i", "DELETE", "-d", "x", &url],
        &["DELETE", &url, "-i", "-d", "x"],
    ] {
        let outcome = server.run(&[&["http"], words].concat());
        assert!(outcome.stdout.starts_with("HTTP "), "{words:?}: {}", outcome.stderr);
        let asked = web.asked.recv().unwrap();
        assert_eq!((asked.method.as_str(), asked.body.as_slice()), ("DELETE", &b"x"[..]));
    }
}

#[test]
fn the_example_in_the_help_works() {
    let help =
        run_program(&["http", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let example = help.split('\'').find(|text| text.ends_with('}') && text.contains(": ")).unwrap();
    let (name, rest) = example.split_once(": ").unwrap();
    let (value, variable) = rest.strip_suffix('}').unwrap().split_once('{').unwrap();
    let server = ServerBuilder::new().variable(variable, "of-the-server").start();
    let web = Web::start();
    let outcome = server.run(&["http", "--header-env", example, &web.at("/")]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let headers = web.asked.recv().unwrap().headers.to_ascii_lowercase();
    let expected = format!("{name}: {value}of-the-server\r\n").to_ascii_lowercase();
    assert!(headers.contains(&expected), "{headers}");
}

#[test]
fn http_needs_no_running_server() {
    let web = Web::start();
    let mut http = command(PROGRAM);
    http.args(["http", &web.at("/hello")]);
    assert_eq!(crate::support::run_command(http).stdout, "hello\n");
}
