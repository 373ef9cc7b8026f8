//! Two clients and one file: neither overwrites the other's changes unknowingly.

use serde_json::json;

use super::{INVALID_REQUEST, Scratch};
use crate::support::{Client, Server, decoded, encoded};

const ROUNDS: usize = 200;

#[test]
fn two_clients_that_count_in_one_file_lose_nothing() {
    count_together(false);
}

#[test]
fn two_clients_that_count_in_one_file_by_replacing_it_lose_nothing() {
    count_together(true);
}

fn count_together(atomic: bool) {
    let scene = Scratch::new();
    let path = scene.uri("counter");
    std::fs::write(scene.path("counter"), text(0)).unwrap();
    let server = Server::start();
    let successes: [usize; 2] = std::thread::scope(|scope| {
        let clients = [0, 1].map(|_| server.client());
        let counting = clients.map(|client| scope.spawn(|| count(client, &path, atomic)));
        counting.map(|thread| thread.join().unwrap())
    });
    println!("{successes:?} of {ROUNDS} succeeded");
    assert!(successes.iter().all(|count| *count > 0), "{successes:?}");
    let total: usize = successes.iter().sum();
    assert_eq!(std::fs::read_to_string(scene.path("counter")).unwrap(), text(total));
    assert_eq!(scene.names(), ["counter"]);
}

/// Always the same size: only the time distinguishes the writes.
fn text(number: usize) -> String {
    format!("{number:08}")
}

fn count(mut client: Client, path: &str, atomic: bool) -> usize {
    let mut successes = 0;
    for _ in 0..ROUNDS {
        // Reads the metadata first: the content can then only be newer than the condition.
        let seen = client.call("fs/getMetadata", json!({"path": path}));
        let content = client.call("fs/readFile", json!({"path": path}));
        let content = String::from_utf8(decoded(&content["dataBase64"])).unwrap();
        // The content is incomplete: the other client is writing, so this write would be refused.
        let Ok(number) = content.parse::<usize>() else { continue };
        let written = client.try_call(
            "fs/writeFile",
            json!({
                "path": path, "dataBase64": encoded(text(number + 1)), "atomic": atomic,
                "ifModifiedAtMs": seen["modifiedAtMs"], "ifSize": seen["size"],
            }),
        );
        match written {
            Ok(_) => successes += 1,
            Err(failure) => {
                assert_eq!(failure.kind.as_deref(), Some("conflict"), "{failure:?}");
                assert_eq!(failure.code, INVALID_REQUEST);
            }
        }
    }
    successes
}

/// A single client never has to read the metadata again: each response contains the next condition.
#[test]
fn a_conditional_write_returns_the_next_condition() {
    let scene = Scratch::new();
    let path = scene.uri("file");
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let create = json!({"path": path, "dataBase64": encoded("0"), "createNew": true});
    let mut seen = client.call("fs/writeFile", create.clone());
    let refused = other.refused("fs/writeFile", create);
    assert_eq!(refused.kind.as_deref(), Some("conflict"), "{refused:?}");
    for number in 1..100 {
        let content = encoded((number % 10).to_string());
        let params = json!({
            "path": path, "dataBase64": content, "atomic": number % 2 == 0,
            "ifModifiedAtMs": seen["modifiedAtMs"], "ifSize": seen["size"],
        });
        let before = seen;
        seen = client.call("fs/writeFile", params.clone());
        assert_ne!(seen, before, "two versions are indistinguishable");
        let refused = other.refused("fs/writeFile", params);
        assert_eq!(refused.kind.as_deref(), Some("conflict"), "{refused:?}");
    }
    assert_eq!(std::fs::read(scene.path("file")).unwrap(), b"9");
}

/// Exactly one of many concurrent creations of a file wins, whether atomic or not.
#[test]
fn one_of_many_creates_a_file() {
    let scene = Scratch::new();
    let server = Server::start();
    let mut client = server.client();
    for round in 0..20 {
        let path = scene.uri(format!("file{round}"));
        let mut ids = Vec::new();
        for number in 0..20 {
            let content = encoded(number.to_string());
            let params = json!({
                "path": path, "dataBase64": content, "createNew": true, "atomic": number % 2 == 0,
            });
            ids.push(client.request("fs/writeFile", params));
        }
        let winners: Vec<usize> = (0..20)
            .zip(ids)
            .filter(|(_, id)| client.answer(*id).is_ok())
            .map(|(number, _)| number)
            .collect();
        assert_eq!(winners.len(), 1, "round {round}");
        let content = std::fs::read_to_string(scene.path(format!("file{round}"))).unwrap();
        assert_eq!(content, winners[0].to_string());
    }
}
