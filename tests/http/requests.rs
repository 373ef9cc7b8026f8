//! Requests with buffered responses.

use serde_json::json;

use super::{INVALID_PARAMS, Web, get, header, streamed, with};
use crate::support::{Cut, Server, ServerBuilder, decoded, encoded, eventually};

#[test]
fn a_request_is_sent_as_specified() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let params = json!({
        "method": "PUT", "url": web.at("/echo?q=1&r=a%20b#fragment"), "requestId": "r",
        "headers": [{"name": "X-One", "value": "1"}, {"name": "X-Two", "value": "zwei"}],
        "bodyBase64": encoded("body"),
    });
    let response = client.call("http/request", params);
    assert_eq!(response["status"], 201);
    assert_eq!(header(&response, "x-kind"), Some("echo"));
    assert_eq!(decoded(&response["bodyBase64"]), b"PUT body");
    let asked = &web.asked()[0];
    assert_eq!(asked.uri, "/echo?q=1&r=a%20b");
    assert_eq!(asked.header("x-one"), Some("1"));
    assert_eq!(asked.header("x-two"), Some("zwei"));
    assert_eq!(asked.body, b"body");

    let missing = client.call("http/request", get(&web, "/nothing"));
    assert_eq!(missing["status"], 404);
    let pieces = client.call("http/request", get(&web, "/pieces"));
    assert_eq!(decoded(&pieces["bodyBase64"]), b"one,two,three");
    assert_eq!(header(&pieces, "content-length"), None, "it came in chunks");
}

#[test]
fn redirects_are_followed_or_returned() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let post = |path: &str| json!({"method": "POST", "url": web.at(path), "requestId": "r", "bodyBase64": encoded("b")});
    let seen = client.call("http/request", post("/see-other"));
    assert_eq!(decoded(&seen["bodyBase64"]), b"GET ");
    let kept = client.call("http/request", post("/temporary"));
    assert_eq!(decoded(&kept["bodyBase64"]), b"POST b");
    let stopped =
        client.call("http/request", with(post("/see-other"), &json!({"redirectPolicy": "stop"})));
    assert_eq!(stopped["status"], 303);
    assert_eq!(header(&stopped, "location"), Some("/echo"));
    let before = web.asked().len();
    client.refused("http/request", get(&web, "/loop"));
    assert_eq!(web.asked().len(), before + 11, "the first request and ten redirects");
}

#[test]
fn a_slow_response_times_out() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let soon = json!({"timeoutMs": 200});
    // Without headers; with headers but an incomplete body; without headers of a streamed body.
    for params in [get(&web, "/never"), get(&web, "/stall"), streamed(&web, "/never")] {
        let before = web.abandoned();
        // On a loaded machine the timeout may expire before the web server is reached. Then the
        // request is repeated.
        eventually("the request to the web server is cancelled", || {
            let refused = client.refused("http/request", with(params.clone(), &soon));
            assert_eq!(refused.kind.as_deref(), Some("timedOut"), "{refused:?}");
            assert!(!refused.message.contains("127.0.0.1"), "{refused:?}");
            web.abandoned() > before
        });
    }
}

#[test]
fn an_incomplete_download_is_an_error() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    let refused = client.refused("http/request", get(&web, "/short"));
    assert_eq!(refused.kind.as_deref(), Some("httpFailed"), "{refused:?}");
    let closed = {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/", nobody.local_addr().unwrap())
    };
    let params = json!({"method": "GET", "url": closed, "requestId": "r"});
    let refused = client.refused("http/request", params);
    assert_eq!(refused.kind.as_deref(), Some("httpFailed"), "{refused:?}");
    let large = client.refused("http/request", get(&web, &format!("/pattern?{}", 48 << 20)));
    assert_eq!(large.kind.as_deref(), Some("bodyTooLarge"), "{large:?}");
}

#[test]
fn an_invalid_request_is_refused() {
    let web = Web::start();
    let server = Server::start();
    let mut client = server.client();
    for wrong in [
        json!({"url": "file:///etc/passwd"}),
        json!({"url": "ftp://127.0.0.1/"}),
        json!({"url": "/hello"}),
        json!({"url": "http://"}),
        json!({"url": "http://a b/"}),
        json!({"method": "BAD METHOD"}),
        json!({"method": ""}),
        json!({"headers": [{"name": "a b", "value": ""}]}),
        json!({"headers": [{"name": "a", "value": "x\r\nb: y"}]}),
        json!({"headers": [{"name": "Transfer-Encoding", "value": "chunked"}]}),
        json!({"bodyBase64": "!"}),
        json!({"redirectPolicy": "sometimes"}),
        json!({"timeoutMs": -1}),
    ] {
        let refused = client.refused("http/request", with(get(&web, "/echo"), &wrong));
        assert_eq!(refused.code, INVALID_PARAMS, "{wrong}: {refused:?}");
    }
    assert!(web.asked().is_empty());
}

#[test]
fn a_header_takes_its_value_from_the_servers_environment() {
    let (web, other) = (Web::start(), Web::start());
    let server = ServerBuilder::new()
        .variable("SERVICE_TOKEN", "s3cret")
        .variable("EMPTY_TOKEN", "")
        .variable("OPENAI_API_KEY", "protected-value")
        .variable("AWS_SECRET_ACCESS_KEY", "protected-value")
        .variable("EXEC_SERVER_PRIVATE", "protected-value")
        .start();
    let mut client = server.client();
    let with_variable = |path: &str, variable: &str| {
        let header = json!({"name": "Authorization", "value": "Bearer ", "valueEnvVar": variable});
        with(get(&web, path), &json!({"headers": [header]}))
    };
    client.call("http/request", with_variable("/echo", "SERVICE_TOKEN"));
    assert_eq!(web.asked()[0].header("authorization"), Some("Bearer s3cret"));

    for variable in [
        "NO_SUCH_VARIABLE",
        "EMPTY_TOKEN",
        "",
        "OPENAI_API_KEY",
        "openai_api_key",
        "AWS_SECRET_ACCESS_KEY",
        "EXEC_SERVER_PRIVATE",
    ] {
        let refused = client.refused("http/request", with_variable("/echo", variable));
        assert_eq!(refused.code, INVALID_PARAMS, "{variable}: {refused:?}");
        assert!(!refused.message.contains("s3cret"), "{refused:?}");
        assert!(!refused.message.contains("protected-value"), "{refused:?}");
    }
    assert_eq!(web.asked().len(), 1);

    // A redirect must not send the value to another server.
    let away = with_variable(&format!("/to?{}", other.at("/echo")), "SERVICE_TOKEN");
    let response = client.call("http/request", away);
    assert_eq!(response["status"], 302);
    assert!(other.asked().is_empty());
    let info = client.call("environment/info", json!({}));
    assert_eq!(info["capabilities"]["httpHeaderEnvVars"], true);
}

#[test]
fn an_operator_adds_and_removes_protected_variables() {
    let web = Web::start();
    let names = ["LINEAR_API_KEY", "GITHUB_TOKEN", "NOTION_TOKEN", "SLACK_BOT_TOKEN", "FLY_ONE"];
    let with_all = |arguments: &[&str]| {
        let builder = ServerBuilder::new().arguments(arguments);
        names.iter().fold(builder, |builder, name| builder.variable(name, "s3cret")).start()
    };
    let usable = |server: &Server| -> Vec<&str> {
        let mut client = server.client();
        let is_usable = |name: &&str| {
            let header = json!({"name": "Authorization", "value": "", "valueEnvVar": name});
            let params = with(get(&web, "/echo"), &json!({"headers": [header]}));
            client.try_call("http/request", params).is_ok()
        };
        names.into_iter().filter(is_usable).collect()
    };
    assert_eq!(usable(&with_all(&[])), names[..4]);
    let changed = ["--http-protected-variable", "SLACK_*", "--http-allowed-variable", "FLY_ONE"];
    assert_eq!(usable(&with_all(&changed)), [&names[..3], &names[4..]].concat());
}

#[test]
fn international_hosts_are_normalised_and_sent_to_proxies() {
    let proxy = Web::start();
    let server = ServerBuilder::new().variable("HTTP_PROXY", &proxy.url()).start();
    let mut client = server.client();
    for url in
        ["http://bücher.example/a", "http://BÜCHER.example/a", "http://xn--bcher-kva.example/a"]
    {
        let params = json!({"method": "GET", "url": url, "requestId": "r"});
        client.call("http/request", params);
        let asked = proxy.asked().pop().unwrap();
        assert_eq!(asked.uri, "http://xn--bcher-kva.example/a", "{url}");
        assert_eq!(asked.header("host"), Some("xn--bcher-kva.example"), "{url}");
    }
}

#[test]
fn a_request_ends_with_its_connection() {
    let web = Web::start();
    let server = Server::start();
    for (index, cut) in Cut::ALL.into_iter().enumerate() {
        let mut client = server.client();
        client.request("http/request", get(&web, "/never"));
        eventually("the web server received the request", || web.asked().len() == index + 1);
        client.cut(cut);
        eventually("the request to the web server is cancelled", || web.abandoned() == index + 1);
    }
}

/// A request that only waits takes no slot from other requests.
#[test]
fn many_slow_requests_do_not_delay_others() {
    let web = Web::start();
    let server = Server::with(&["--concurrent-requests", "2"]);
    let mut client = server.client();
    for _ in 0..50 {
        client.request("http/request", get(&web, "/never"));
    }
    eventually("all requests have arrived", || web.asked().len() == 50);
    client.call("fs/getMetadata", json!({"path": "/"}));
    client.call("http/request", get(&web, "/echo"));
}
