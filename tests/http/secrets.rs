//! Neither URLs nor values of requests appear in the log or in error messages.

use serde_json::{Value, json};

use super::{Web, rest_of_body, with};
use crate::support::{Server, ServerBuilder, encoded};

const SECRETS: [&str; 8] = [
    "secret-host",
    "secret-path",
    "secret-query",
    "secret-user",
    "secret-password",
    "secret-header-value",
    "secret-variable-value",
    "secret-body",
];

#[test]
fn neither_urls_nor_values_are_in_the_log_at_any_level() {
    let web = Web::start();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    // Logs to a file: an unread pipe would fill up and block the server.
    let script = format!("exec \"$@\" 2> {}", log.display());
    let server = ServerBuilder::new()
        .through(&["sh", "-c", &script, "sh"])
        .arguments(&["--log", "trace"])
        .variable("SERVICE_TOKEN", "secret-variable-value")
        .variable("OPENAI_API_KEY", "secret-variable-value")
        .start();
    let mut errors = exercise(&server, &web);
    // Through a proxy, so that a host name appears in a successful request.
    let proxied = ServerBuilder::new()
        .through(&["sh", "-c", &script.replace("2>", "2>>"), "sh"])
        .arguments(&["--log", "trace"])
        .variable(
            "HTTP_PROXY",
            &web.at("/").replace("http://", "http://secret-user:secret-password@"),
        )
        .variable("SERVICE_TOKEN", "secret-variable-value")
        .variable("OPENAI_API_KEY", "secret-variable-value")
        .start();
    let mut client = proxied.client();
    let params = json!({
        "method": "GET", "url": "http://secret-host.example/secret-path?secret-query",
        "requestId": "r",
    });
    assert_eq!(client.call("http/request", params)["status"], 404);
    drop((client, server, proxied));

    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        text.contains("TRACE") || text.contains("DEBUG"),
        "the log has no debug output: {text}"
    );
    errors.push(text);
    for secret in SECRETS.iter().copied().chain([web.port.to_string().as_str()]) {
        for text in &errors {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{secret}: {line:?}");
        }
    }
}

/// Makes requests with all outcomes. Returns the error messages that clients received.
fn exercise(server: &Server, web: &Web) -> Vec<String> {
    let mut client = server.client();
    let credentials = format!("http://secret-user:secret-password@127.0.0.1:{}", web.port);
    let params = |path: &str| {
        json!({
            "method": "POST", "url": format!("{credentials}{path}?secret-query"), "requestId": "r",
            "headers": [
                {"name": "X-Token", "value": "secret-header-value", "valueEnvVar": "SERVICE_TOKEN"},
                {"name": "Cookie", "value": "secret-header-value"},
            ],
            "bodyBase64": encoded("secret-body"),
        })
    };
    client.call("http/request", params("/secret-path"));
    client.call("http/request", params("/echo"));
    client.call("http/request", with(params("/see-other"), &json!({"redirectPolicy": "stop"})));
    client.call("http/request", params("/to/../to?http://secret-host.example/secret-path"));
    client.call("http/request", with(params("/pieces"), &json!({"streamResponse": true})));
    rest_of_body(&mut client);
    client.call("http/request", with(params("/short"), &json!({"streamResponse": true})));
    let (_, last) = rest_of_body(&mut client);
    let mut told = vec![last["error"].as_str().unwrap().to_owned()];

    let mut refused = |changes: Value, path: &str| {
        let failure = client.refused("http/request", with(params(path), &changes));
        told.push(failure.message);
    };
    refused(json!({"timeoutMs": 100}), "/never");
    refused(json!({}), "/loop");
    refused(json!({"url": "http://secret-host.invalid/secret-path"}), "");
    refused(json!({"url": "https://secret-host.invalid:1/secret-path"}), "");
    refused(json!({"url": "secret-host://secret-path"}), "");
    refused(json!({"url": "http://secret-host:secret-path/"}), "");
    refused(json!({"method": "secret-path secret-query"}), "");
    let protected =
        json!({"name": "A", "value": "secret-header-value", "valueEnvVar": "OPENAI_API_KEY"});
    refused(json!({"headers": [protected]}), "/echo");
    refused(json!({"headers": [{"name": "A", "value": "secret-header-value\n"}]}), "/echo");
    refused(json!({"headers": [{"name": "secret-header-value: x", "value": ""}]}), "/echo");
    // TLS to a server that does not support it.
    refused(json!({"url": web.at("/secret-path").replace("http", "https")}), "");
    told
}
