//! Processes cannot read secrets of the server that started them.

use exec_server::{Environment, ExecBackend as _, ExecProcessEvent};
use serde_json::json;

use crate::support::machine::{is_root, parent};
use crate::support::{
    AckingInbox, Inbox as _, PROGRAM, RelayBuilder, ServerBuilder, command, program, run_command,
    shell,
};

const SECRET: &str = "hush-this-is-a-secret";
/// The variables that hold the credentials of remote mode.
const CREDENTIALS: [&str; 5] = [
    "EXEC_SERVER_API_KEY",
    "CODEX_API_KEY",
    "EXEC_SERVER_ACCESS_TOKEN",
    "CODEX_ACCESS_TOKEN",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
];

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
        // `ls` has the listed directory open, and the shell may set the variables of POSIX.
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
    // Root may read everything, so the server runs as another user.
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
        assert!(contains(&own.unwrap(), SECRET), "the server has the secret");
    }
    for pid in [keeper, spawner] {
        for file in ["environ", "cmdline"] {
            let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            assert!(!contains(&text, SECRET), "{file} of {pid}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_inherits_no_credentials_for_a_relay() {
    let builder = RelayBuilder::new().variable("ANOTHER_API_KEY", "inherited");
    let relay = CREDENTIALS.iter().fold(builder, |all, name| all.variable(name, SECRET)).start();
    let environment = Environment::remote("box", relay.remote_server());
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true});
    for start in [program("pipes", &["env"]), program("tty", &["env"]).tty()] {
        let start = start.with("envPolicy", policy.clone());
        let process = environment.start(start.typed()).await.unwrap();
        let (mut events, mut output) = (process.subscribe_events(), Vec::new());
        while let Some(event) = events.next().await {
            if let ExecProcessEvent::Output(event) = event {
                output.extend_from_slice(&event.chunk);
            }
        }
        let output = String::from_utf8(output).unwrap();
        assert!(output.contains("ANOTHER_API_KEY=inherited"), "{output}");
        assert!(!output.contains(SECRET), "{output}");
    }
}

#[test]
fn a_child_of_an_embedded_server_inherits_no_credentials() {
    for flags in [&["run", "--server-env"][..], &["run", "--server-env", "-t"]] {
        let mut run = command(PROGRAM);
        run.args(flags).args(["--", "env"]).env("ORDINARY", "inherited");
        // Without the last variable, which is an error unless two others are set.
        run.envs(CREDENTIALS[..4].iter().map(|name| (name, SECRET)));
        let outcome = run_command(run);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("ORDINARY=inherited"), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains(SECRET), "{}", outcome.stdout);
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
