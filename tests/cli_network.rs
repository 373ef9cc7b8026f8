//! The hosts that a command may reach: flags, environments, settings and answers to prompts.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use exec_server_test_support::skipped;

use crate::cli_sandbox::doctor;
use crate::support::tmux::Tmux;
use crate::support::{Outcome, PROGRAM, Server, command, eventually, run_command};

/// Returns the reason if this machine cannot route the connections of a process to a gate.
fn no_gate() -> Option<String> {
    let (_, report) = doctor("");
    let network = &report["sandbox"]["network"];
    (network["tier"] != "transparent").then(|| network["summary"].to_string())
}

/// Starts a server on loopback that greets every client, and returns its port.
fn greeter() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // A client may hang up before its greeting.
            let _ = client.and_then(|mut client| client.write_all(b"hello\n"));
        }
    });
    port
}

/// Returns a command that prints the greeting of a server, without a proxy.
fn greet(host: &str, port: u16) -> [String; 3] {
    let script = format!("exec 3<> /dev/tcp/{host}/{port} && read -r line <&3 && echo \"$line\"");
    ["bash".to_owned(), "-c".to_owned(), script]
}

fn run(options: &[&str], program: &[String]) -> Outcome {
    let mut run = command(PROGRAM);
    run.arg("run").args(options).arg("--").args(program);
    run_command(run)
}

#[test]
fn only_allowed_hosts_are_reached() {
    if let Some(why) = no_gate() {
        return skipped(why);
    }
    let port = greeter();
    let allowed = format!("127.0.0.1:{port}");
    for sandbox in [&[][..], &["--sandbox", "workspace-write"], &["--sandbox", "none"]] {
        let options =
            [sandbox, &["-v", "--require-transparent", "--allow-host", &allowed]].concat();
        let reached = run(&options, &greet("127.0.0.1", port));
        assert_eq!(reached.stdout, "hello\n", "{sandbox:?}: {}", reached.stderr);
        assert_eq!(reached.code, Some(0), "{sandbox:?}");
        assert_eq!(reached.stderr, "exec-server: network: 0 bytes up, 6 bytes down\n");
        let refused = run(&options, &greet("other.example", port));
        assert_eq!(refused.code, Some(1), "{sandbox:?}: {}", refused.stderr);
        // The remark names no port, since the program only looked up the name.
        let remark = "exec-server: network: other.example is not allowed; \
                      allow it with --allow-host other.example, \
                      unless --deny-host or the server refuses it\n";
        assert!(refused.stderr.ends_with(remark), "{sandbox:?}: {}", refused.stderr);
    }
    let other = run(&["--allow-host", "a.example"], &greet("127.0.0.1", port));
    assert_ne!(other.code, Some(0));
    let denied = ["--allow-host", &allowed, "--deny-host", "127.0.0.1"];
    assert_ne!(run(&denied, &greet("127.0.0.1", port)).code, Some(0), "a denial wins");
}

#[test]
fn invalid_options_are_refused_before_the_program_starts() {
    for (options, expected) in [
        (&["--allow-host", "*"][..], "\"*\" matches every host"),
        (&["--allow-host", "https://a.example/"], "contains a slash"),
        (&["--deny-host", "a.example"], "name one with --allow-host, or use --ask-network"),
        (
            &["--sandbox", "read-only", "--network", "--allow-host", "a.example"],
            "--network allows every host; omit it, or omit --allow-host",
        ),
        (&["-t", "--deny-host", "a.example"], "name one with --allow-host\n"),
        (&["-t", "--ask-network"], "name the hosts with --allow-host"),
    ] {
        let outcome = run(options, &["true".to_owned()]);
        assert_eq!(outcome.code, Some(125), "{options:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{options:?}: {}", outcome.stderr);
    }
}

#[test]
fn ask_network_needs_a_terminal() {
    let mut ask = command("setsid");
    ask.args(["--wait", PROGRAM, "run", "--ask-network", "--", "true"]);
    let outcome = run_command(ask);
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    for expected in
        ["--ask-network needs a terminal (", "; name the hosts with --allow-host instead"]
    {
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
}

#[test]
fn the_settings_of_the_server_restrict_the_hosts_of_plain_commands() {
    if let Some(why) = no_gate() {
        return skipped(why);
    }
    let (port, other) = (greeter(), greeter());
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    fs::write(&config, format!("[network]\nallow = [\"127.0.0.1:{port}\"]\n")).unwrap();
    let server = Server::with(&["--config", config.to_str().unwrap()]);
    let run = |options: &[&str], host: &str, port| {
        let mut run = server.command(&["run", "-v"]);
        run.args(options).arg("--").args(greet(host, port));
        run_command(run)
    };
    let reached = run(&[], "127.0.0.1", port);
    assert_eq!(reached.stdout, "hello\n", "{}", reached.stderr);
    let refused = run(&[], "other.example", port);
    assert_ne!(refused.code, Some(0));
    let remark = "is not allowed by the rules of the server\n";
    assert!(refused.stderr.ends_with(remark), "{}", refused.stderr);
    let more = format!("127.0.0.1:{other}");
    assert_ne!(
        run(&["--allow-host", &more], "127.0.0.1", other).code,
        Some(0),
        "a flag adds no host"
    );
}

#[test]
fn an_invalid_host_pattern_in_the_settings_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.toml");
    fs::write(&path, "[network]\nallow = [\"a.example\", \"*\"]\n").unwrap();
    let mut server = command(PROGRAM);
    server.arg("--config").arg(&path);
    let outcome = run_command(server);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    let expected = format!("{}:2: network.allow: \"*\" matches every host", path.display());
    assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
}

#[test]
fn flags_add_to_the_hosts_of_an_environment() {
    if let Some(why) = no_gate() {
        return skipped(why);
    }
    let (first, second) = (greeter(), greeter());
    let directory = tempfile::tempdir().unwrap();
    let environments = directory.path().join("environments.toml");
    let text = format!(
        "[[environments]]\nid = \"box\"\nprogram = {PROGRAM:?}\n\
         args = [\"--listen\", \"stdio\", \"--log\", \"warn\"]\n\
         [environments.sandbox]\nmode = \"read-only\"\nallow_hosts = [\"127.0.0.1:{first}\"]\n"
    );
    fs::write(&environments, text).unwrap();
    let reaches = |options: &[&str], port| {
        let mut run = command(PROGRAM);
        run.args(["run", "--on", "box", "--cwd", "/"]).args(options).arg("--");
        run.args(greet("127.0.0.1", port)).env("EXEC_SERVER_ENVIRONMENTS", &environments);
        let outcome = run_command(run);
        assert_ne!(outcome.code, Some(125), "{}", outcome.stderr);
        outcome.code == Some(0)
    };
    let add = ["--allow-host", &format!("127.0.0.1:{second}")];
    assert!(reaches(&[], first) && !reaches(&[], second));
    assert!(reaches(&add, first) && reaches(&add, second));
    let replace = [&["--sandbox", "read-only"], &add[..]].concat();
    assert!(!reaches(&replace, first) && reaches(&replace, second));
}

/// Starts an upstream HTTP proxy that answers for every host, and returns its port.
fn upstream_proxy() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            let mut line = String::new();
            while client.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            // A client may hang up before its greeting.
            let _ = client.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\nhello\n");
        }
    });
    port
}

#[test]
fn ask_network_prompts_for_other_hosts() {
    if let Some(why) = no_gate() {
        return skipped(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("visit");
    let text = "visit() {\n\
                (exec 3<> /dev/tcp/$1/$2 && read -r line <&3 && echo $line-$3) 2> /dev/null ||\n\
                echo refused-$3\n}\n\
                cat\nvisit a.example 7001 1\nvisit a.example 7002 2\nvisit b.example 7001 3\n\
                visit c.example 7001 4\nvisit d.example 7001 5\n";
    fs::write(&script, text).unwrap();
    let tmux = Tmux::start_with("V", &script);
    let proxy = format!("http://127.0.0.1:{}", upstream_proxy());
    tmux.line(&format!("export HTTP_PROXY={proxy} HTTPS_PROXY={proxy} NO_PROXY= no_proxy="));
    let ports = "--allow-host named.example:7001 --allow-host named.example:7002";
    tmux.line(&format!("$X run -v {ports} --ask-network -- bash $V; echo code-$?-end"));
    tmux.wait_for("bash wants to connect to a.example:7001: [y]es, [a]lways for this run, [n]o");
    tmux.line("perhaps");
    eventually("the prompt is repeated", || tmux.screen().matches("wants to connect").count() == 2);
    tmux.line("a");
    tmux.wait_for("hello-1");
    tmux.wait_for("hello-2");
    tmux.wait_for("connect to b.example:7001");
    tmux.line("y");
    tmux.wait_for("hello-3");
    tmux.wait_for("connect to c.example:7001");
    tmux.line("n");
    tmux.wait_for("refused-4");
    tmux.wait_for("connect to d.example:7001");
    tmux.keys(&["C-d"]);
    tmux.wait_for("refused-5");
    tmux.wait_for("code-0-end");
    let screen = tmux.screen();
    assert_eq!(screen.matches("wants to connect").count(), 5, "{screen}");
    let refused: Vec<_> = screen.lines().filter(|line| line.contains("is not allowed")).collect();
    assert!(refused.iter().all(|line| !line.contains("a.example")), "{screen}");
    assert!(screen.contains("network: c.example:7001 is not allowed; allow it with"), "{screen}");
}

#[test]
fn an_interrupt_refuses_the_host_and_reaches_the_program() {
    if let Some(why) = no_gate() {
        return skipped(why);
    }
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("visit");
    let text = "trap 'caught=1; echo caught-$((1 + 1))' INT\n\
                (trap '' INT\nexec 3<> /dev/tcp/a.example/7001 && read -r line <&3) 2> /dev/null ||\n\
                echo refused-$((1 + 1))\n\
                until [ \"$caught\" ]; do sleep 0.02; done\nexit 0\n";
    fs::write(&script, text).unwrap();
    let tmux = Tmux::start_with("V", &script);
    let ports = "--allow-host named.example:7001";
    tmux.line(&format!("$X run {ports} --ask-network -- bash $V; echo code-$?-end"));
    tmux.wait_for("bash wants to connect to a.example:7001");
    tmux.keys(&["C-c"]);
    tmux.wait_for("caught-2");
    tmux.wait_for("refused-2");
    tmux.wait_for("code-0-end");
}
