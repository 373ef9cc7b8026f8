//! Neither end of a relay writes a secret to its log or its standard error.

use serde_json::{Value, json};

use crate::support::tokens::Issuer;
use crate::support::{RelayBuilder, run_command};

const WRONG: &str = "esr_wrong-secret";

#[test]
fn tokens_are_not_logged() {
    assert_no_secret_is_logged(RelayBuilder::new(), &[]);
}

#[test]
fn agent_identities_are_not_logged() {
    assert_no_secret_is_logged(RelayBuilder::new().agent_identities(), &[]);
}

#[test]
fn the_token_for_a_forwarded_server_is_not_logged() {
    let issuer = Issuer::new();
    let server = issuer.start();
    let token_file = issuer.token_file("token", &json!({}));
    let token = std::fs::read_to_string(&token_file).unwrap();
    let arguments = ["forward", "--connect", server.url(), "--token-file"];
    let builder = RelayBuilder::new().arguments(&arguments);
    assert_no_secret_is_logged(builder.arguments(&[token_file.to_str().unwrap()]), &[token]);
}

/// Runs commands with the most detailed log at both ends.
fn assert_no_secret_is_logged(builder: RelayBuilder, more_secrets: &[String]) {
    let relay = builder.variable("EXEC_SERVER_LOG", "trace").recorded().start();
    let run = || {
        let mut command = relay.command(&["run", "--on", "box", "--", "echo", "hello"]);
        command.env("EXEC_SERVER_LOG", "trace").env("RUST_LOG", "trace");
        command
    };
    let good = run_command(run());
    assert_eq!((good.code, &*good.stdout), (Some(0), "hello\n"), "{}", good.stderr);
    let token_file = relay.token_file();
    std::fs::write(token_file, WRONG).unwrap();
    let mut refused = run();
    refused.env("EXEC_SERVER_ACCESS_TOKEN", WRONG);
    let refused = run_command(refused);
    assert_eq!(refused.code, Some(125), "{}", refused.stderr);

    let mut secrets = [more_secrets, relay.credentials(), &[WRONG.to_owned()]].concat();
    secrets.extend(relay.credentials().iter().filter_map(|token| private_key(token)));
    let recorded = relay.recorded();
    // The first is in a URL, the others are in JSON and in a header.
    for name in ["ticket=", "\"harness_key_authorization\":\"", "authorization: "] {
        let found = values_after(name, &recorded);
        // One of the environment and one of the client.
        assert!(found.len() >= 2, "{name} is in {recorded}");
        secrets.extend(found);
    }
    let log = relay.stop();
    assert!(log.contains("connected to the rendezvous"), "{log}");
    assert!(log.contains("a harness opened a stream"), "{log}");
    for secret in secrets {
        for text in [&log, &good.stderr, &refused.stderr] {
            assert!(!text.contains(&secret), "{secret} is in {text}");
        }
    }
}

fn values_after(name: &str, text: &str) -> Vec<String> {
    let ends = ['"', ' ', '\r', '&'];
    let values = text.split(name).skip(1).filter_map(|rest| {
        let rest =
            rest.strip_prefix("Bearer ").or(rest.strip_prefix("AgentAssertion ")).unwrap_or(rest);
        rest.split(ends).next()
    });
    values.map(str::to_owned).collect()
}

fn private_key(credential: &str) -> Option<String> {
    let payload = credential.split('.').nth(1)?;
    let payload = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(payload).unwrap();
    let claims: Value = serde_json::from_slice(&payload).unwrap();
    Some(claims["agent_private_key"].as_str().unwrap().to_owned())
}
