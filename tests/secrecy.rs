//! What a child can learn about the server that started it: nothing.

use crate::support::machine::{is_root, parent};
use crate::support::{AckingInbox, Inbox as _, ServerBuilder, program, shell};

const SECRET: &str = "hush-this-is-a-secret";

#[test]
fn a_child_has_three_descriptors_and_the_environment_it_was_given() {
    let server = ServerBuilder::new().variable("SERVER_SECRET", SECRET).start();
    let mut client = server.client();
    for start in
        [shell("pipes", "ls /proc/self/fd; env"), shell("tty", "ls /proc/self/fd; env").tty()]
    {
        let end = client.run(&start.variable("GIVEN", "1"));
        let text = end.text().replace('\r', "");
        let mut lines: Vec<&str> = text.split_whitespace().collect();
        // `ls` holds the directory it lists, and the shell may add what POSIX asks of it.
        lines.retain(|line| {
            !["3", "PWD=/tmp", "SHLVL=0", "OLDPWD=/", "_=/usr/bin/env"].contains(line)
        });
        lines.sort_unstable();
        assert_eq!(lines, ["0", "1", "2", "GIVEN=1", "PATH=/usr/local/bin:/usr/bin:/bin"]);
    }
}

#[test]
fn a_child_of_the_same_user_reads_neither_memory_nor_environment() {
    let directory = tempfile::tempdir().unwrap();
    let builder = ServerBuilder::new().variable("SERVER_SECRET", SECRET);
    // Root hides failures.
    let builder = if is_root() { builder.with_user(65534, directory.path()) } else { builder };
    let server = builder.start();
    let mut client = server.client();
    let me = client.run(&program("id", &["id", "-u"])).text();
    assert_ne!(me, "0\n", "root may read everything, which would test nothing");
    for file in ["environ", "mem", "maps", "auxv", "stack"] {
        let path = format!("/proc/{}/{file}", server.pid());
        let end = client.run(&program(file, &["head", "-c", "1", &path]));
        assert_ne!(end.exit_code, Some(0), "{file}");
        assert!(end.stdout.is_empty(), "{file}");
    }
    let fd = format!("/proc/{}/fd", server.pid());
    assert_ne!(client.run(&program("fd", &["ls", &fd])).exit_code, Some(0));
}

#[test]
fn neither_keeper_nor_spawner_carries_a_secret() {
    let server = ServerBuilder::new().variable("SERVER_SECRET", SECRET).start();
    let mut client = server.client();
    client.start(&shell("child", "echo $$; exec sleep 1000"));
    let mut inbox = AckingInbox::new("child");
    client.wait_for_output(&mut inbox, "\n");
    let keeper = parent(inbox.transcript().text().trim().parse().unwrap());
    let spawner = parent(keeper);
    assert_eq!(parent(spawner), server.pid());
    let own = std::fs::read(format!("/proc/{}/environ", server.pid()));
    if is_root() {
        assert!(contains(&own.unwrap(), SECRET), "the secret is where it should be");
    }
    for pid in [keeper, spawner] {
        for file in ["environ", "cmdline"] {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert!(!contains(&text, SECRET), "{file} of {pid}");
        }
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
