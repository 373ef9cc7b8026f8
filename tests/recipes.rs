//! The recipes of `docs/auth.md`, run as written except for the port and the waits.

use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::foreign_client::python;
use crate::readme::{blocks, run_as_newcomer};
use crate::support::Outcome;

const PAGE: &str = include_str!("../docs/auth.md");

/// Runs the blocks under a heading with another port, and waits for the server instead of sleeping.
fn recipe(heading: &str, home: &Path) -> Outcome {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("the recipe exists");
    let section = section.split("\n### ").next().unwrap().split("\n## ").next().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The server of one recipe also logs how to reach it, shortly after it listens.
    let is_open = format!("(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null");
    let listening = match section.contains("server.log") {
        true => "until grep -q SHA256 server.log; do sleep 0.05; done".to_owned(),
        false => format!("until {is_open}; do sleep 0.05; done"),
    };
    // scripts/test has installed PyJWT.
    let python = format!(
        "mkdir -p venv/bin && printf '#!/bin/sh\\nexec {} \"$@\"\\n' > venv/bin/python && \
         chmod +x venv/bin/python",
        python().display()
    );
    let script = blocks(section)
        .join("\n")
        .replace("7777", &port.to_string())
        .replace("\nsleep 1\n", &format!("\n{listening}\n"))
        .replace("python3 -m venv venv && venv/bin/pip install --quiet PyJWT", &python);
    assert!(script.contains(&listening), "{script}");
    run_as_newcomer(&script, home)
}

fn home() -> TempDir {
    // Not /tmp, which sandboxes may write.
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn count(text: &str, word: &str) -> usize {
    text.matches(word).count()
}

#[test]
fn the_recipe_for_one_machine_works() {
    let home = home();
    let outcome = recipe("One machine, one token", home.path());
    assert_eq!(count(&outcome.stdout, "GNU/Linux"), 1, "{outcome:?}");
    assert_eq!(count(&outcome.stderr, "answered 401"), 1, "{outcome:?}");
}

#[test]
fn the_recipe_for_a_self_signed_server_works() {
    let home = home();
    let outcome = recipe("A self-signed server for a team", home.path());
    assert!(outcome.stdout.contains("--tls-fingerprint SHA256:"), "{outcome:?}");
    assert_eq!(count(&outcome.stdout, "GNU/Linux"), 2, "{outcome:?}");
}

#[test]
fn the_recipe_for_your_own_issuer_works() {
    let home = home();
    let outcome = recipe("JWTs from your own issuer", home.path());
    let demo = home.path().join("exec-server-demo");
    assert!(demo.join("by-alice").is_dir(), "{outcome:?}");
    assert!(demo.join("agent-7/by-agent").is_dir(), "{outcome:?}");
    assert!(!demo.join("by-agent").exists(), "{outcome:?}");
    assert_eq!(count(&outcome.stderr, "ermission denied"), 2, "{outcome:?}");
    for said in ["subject    agent-7", "signed by PyJWT", "signed by openssl"] {
        assert!(outcome.stdout.contains(said), "{said}: {outcome:?}");
    }
    // The process is in the list of alice, but not in that of the agent.
    let lists = outcome.stdout.split_once("\nbuild\n").map_or("", |(_, rest)| rest);
    assert_eq!(count(lists, "build"), 1, "{outcome:?}");
}
