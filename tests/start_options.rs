//! Options of `process/start`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, program, shell};

const INVALID_REQUEST: i64 = -32600;

#[test]
fn the_environment_policy_decides_what_is_inherited() {
    let server = ServerBuilder::new()
        .variable("MY_TOKEN", "secret")
        .variable("ordinary_name", "kept")
        .variable("SKIPPED_NAME", "skipped")
        .start();
    let mut client = server.client();
    let mut environment = |id: &str, policy: Value| {
        let start = program(id, &["/usr/bin/env"])
            .with("env", json!({"ON_TOP": "1"}))
            .with("envPolicy", policy);
        let text = client.run(&start).text();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let all = environment("all", json!({"inherit": "all", "exclude": ["skipped_*"]}));
    assert!(all.contains_key("ordinary_name") && all.contains_key("PATH"));
    assert!(!all.contains_key("MY_TOKEN") && !all.contains_key("SKIPPED_NAME"));
    assert_eq!(all["ON_TOP"], "1");
    let core = environment("core", json!({"inherit": "core"}));
    assert!(core.contains_key("PATH") && !core.contains_key("ordinary_name"));
    let set = environment("set", json!({"inherit": "none", "set": {"A": "b", "ON_TOP": "0"}}));
    assert_eq!(set, BTreeMap::from([("A".into(), "b".into()), ("ON_TOP".into(), "1".into())]));
    let kept = environment(
        "kept",
        json!({"inherit": "all", "ignoreDefaultExcludes": true, "includeOnly": ["my_*", "ON_TOP"]}),
    );
    assert_eq!(kept["MY_TOKEN"], "secret");
    assert!(!kept.contains_key("PATH"));
}

#[test]
fn arg0_replaces_the_program_name() {
    let server = Server::start();
    let mut client = server.client();
    let start = program("named", &["/bin/sh", "-c", "cat /proc/$$/cmdline | tr '\\0' ' '"])
        .with("arg0", "another-name");
    assert!(client.run(&start).text().starts_with("another-name -c "));
}

#[test]
fn the_operator_can_forbid_either_mode() {
    let direct = Server::with(&["--allow-prepared-exec", "false"]);
    let prepared = Server::with(&["--allow-direct-exec", "false"]);
    let in_mode = |mode: &str| shell("p", "true").with("mode", mode);
    for (server, allowed, forbidden) in
        [(&direct, "direct", "prepared"), (&prepared, "prepared", "direct")]
    {
        let mut client = server.client();
        let failure = client.refused("process/start", in_mode(forbidden).params());
        assert_eq!(failure.code, INVALID_REQUEST);
        assert!(failure.message.contains(forbidden), "{failure:?}");
        assert_eq!(client.run(&in_mode(allowed)).exit_code, Some(0));
    }
    let mut client = prepared.client();
    let start = in_mode("prepared").with("envPolicy", json!({"inherit": "all"}));
    client.refused("process/start", start.params());
}

#[test]
fn an_option_that_cannot_be_enforced_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    // The request names no hosts that may be reached.
    let start = shell("p", "true").with("enforceManagedNetwork", json!(true));
    assert_eq!(client.refused("process/start", start.params()).code, INVALID_REQUEST);
    let start = shell("p", "true").with("shellSnapshot", json!({"any": "thing"}));
    assert_eq!(client.run(&start).exit_code, Some(0));
}
