//! Which server a command uses, and how a server publishes its URL.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::tmux::Tmux;
use crate::support::{PROGRAM, Server, ServerBuilder, command, run_command, run_program};

/// Starts a server whose processes have its name in `WHICH`.
fn called(name: &str) -> Server {
    ServerBuilder::new().variable("WHICH", name).start()
}

/// Returns the name of the server that a command uses: `embedded` for the command's own.
fn which(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut run = command(PROGRAM);
    run.args(["run", "--server-env"]).args(arguments).args(["--", "sh", "-c", "echo $WHICH"]);
    run.env("WHICH", "embedded").envs(variables.iter().copied());
    let outcome = run_command(run);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.stdout.trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_server_is_chosen_in_the_documented_order() {
    let names = ["flag", "environment", "variable", "file", "runtime"];
    let [flag, environment, variable, file, runtime] = names.map(called);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    fs::write(&config, format!("[exec_server]\nurl = {:?}\n", file.url())).unwrap();
    let environments = directory.path().join("environments.toml");
    let entry = format!("[[environments]]\nid = \"box\"\nurl = {:?}\n", environment.url());
    fs::write(&environments, entry).unwrap();

    let mut variables = vec![
        ("EXEC_SERVER_ENVIRONMENTS", text(&environments)),
        ("XDG_RUNTIME_DIR", text(runtime.runtime_directory())),
    ];
    assert_eq!(which(&[], &[]), "embedded");
    assert_eq!(which(&[], &variables), "runtime");
    let entry = fs::read_to_string(&environments).unwrap();
    fs::write(&environments, format!("default = \"local\"\n{entry}")).unwrap();
    assert_eq!(which(&[], &variables), "runtime", "local includes a running server");
    fs::write(&environments, format!("default = \"box\"\n{entry}")).unwrap();
    assert_eq!(which(&[], &variables), "environment");
    variables.push(("EXEC_SERVER_CONFIG", text(&config)));
    assert_eq!(which(&[], &variables), "file");
    variables.push(("EXEC_SERVER_URL", variable.url()));
    assert_eq!(which(&[], &variables), "variable");
    assert_eq!(which(&["--on", "box"], &variables), "environment");
    assert_eq!(which(&["--on", "local"], &variables), "embedded");
    assert_eq!(which(&["--connect", flag.url()], &variables), "flag");
}

#[test]
fn a_server_whose_address_is_taken_names_the_running_server() {
    let first = Server::start();
    let failed = first.run(&["--listen", first.url()]);
    let (pid, url) = (first.pid(), first.url());
    let named = format!("exec-server: a server of this user (pid {pid}) already listens on {url}");
    assert!(failed.stderr.starts_with(&named), "{}", failed.stderr);
    let other = run_program(&["--listen", first.url()]);
    assert!(other.stderr.contains("another program uses it"), "{}", other.stderr);
    assert_eq!((failed.code, other.code), (Some(1), Some(1)));
}

#[test]
fn a_configuration_file_can_be_given_on_the_command_line() {
    let [file, runtime] = ["file", "runtime"].map(called);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    fs::write(&config, format!("[exec_server]\nurl = {:?}\n", file.url())).unwrap();
    let variables = [("XDG_RUNTIME_DIR", text(runtime.runtime_directory()))];
    assert_eq!(which(&["--config", text(&config)], &variables), "file");
    let started = file.run(&["run", "-d", "--name", "there", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    let listed = runtime.run(&["--config", text(&config), "ps"]);
    assert!(listed.stdout.contains("there"), "{}{}", listed.stdout, listed.stderr);
    let missing = runtime.run(&["ps", "--config", "/none.toml", "--connect", file.url()]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("/none.toml"), "{}", missing.stderr);
}

#[test]
fn the_environment_is_passed_to_local_servers_only() {
    let server = ServerBuilder::new().variable("A", "of the server").variable("B", "too").start();
    let shown = |arguments: &[&str]| {
        let mut run = server.command(&["run"]);
        run.args(arguments).args(["sh", "-c", "echo ${A-none}, ${B-none}, ${SECRET_KEY-none}"]);
        run.env("A", "mine").env("SECRET_KEY", "secret").env_remove("B");
        let outcome = run_command(run);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    assert_eq!(shown(&[]), "mine, none, secret\n");
    assert_eq!(shown(&["--on", "local"]), "mine, none, secret\n", "as with no server");
    assert_eq!(shown(&["-e", "A=set"]), "set, none, secret\n");
    assert_eq!(shown(&["--server-env"]), "of the server, too, none\n");
    assert_eq!(shown(&["--connect", server.url()]), "of the server, too, none\n");
}

#[test]
fn the_output_of_a_program_that_is_not_a_server_is_quoted() {
    let directory = tempfile::tempdir().unwrap();
    let environments = directory.path().join("environments.toml");
    let entry = "[[environments]]\nid = \"ssh\"\nprogram = \"sh\"\nargs = [\"-c\", \"echo Welcome to box; cat\"]\n";
    fs::write(&environments, entry).unwrap();
    let mut run = command(PROGRAM);
    run.args(["run", "--on", "ssh", "true"]).env("EXEC_SERVER_ENVIRONMENTS", &environments);
    let outcome = run_command(run);
    assert_eq!(outcome.code, Some(125));
    let quoted = "it sent \"Welcome to box\", which is not a message";
    assert!(outcome.stderr.contains(quoted), "{}", outcome.stderr);
}

#[test]
fn an_environment_may_be_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let environments = directory.path().join("environments.toml");
    let entry = format!(
        "[[environments]]\nid = \"child\"\nprogram = {PROGRAM:?}\nargs = [\"--listen\", \"stdio\", \"--log\", \"warn\"]\n\
         env = {{ WHICH = \"child\" }}\n"
    );
    fs::write(&environments, entry).unwrap();
    let variables = [("EXEC_SERVER_ENVIRONMENTS", text(&environments))];
    assert_eq!(which(&["--on", "child"], &variables), "child");

    let mut ps = command(PROGRAM);
    ps.args(["ps", "--on", "child"]).envs(variables);
    let outcome = run_command(ps);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("its processes end with the command"), "{}", outcome.stderr);
}

#[test]
fn an_unreachable_server_is_reported_with_the_setting_that_named_it() {
    for (arguments, variables, code, expected) in [
        (&["--connect", "ws://127.0.0.1:1"][..], &[][..], 1, "--connect: "),
        (&[], &[("EXEC_SERVER_URL", "ws://127.0.0.1:1")], 1, "EXEC_SERVER_URL: "),
        (&[], &[("EXEC_SERVER_URL", "wss://127.0.0.1:1")], 1, "EXEC_SERVER_URL: "),
        (&[], &[("EXEC_SERVER_URL", "https://127.0.0.1:1")], 2, "EXEC_SERVER_URL: "),
        (&[], &[("EXEC_SERVER_URL", "unix:///nonexistent/socket")], 1, "EXEC_SERVER_URL: "),
        (
            &["--on", "nowhere"],
            &[],
            2,
            "unknown environment \"nowhere\"; known environments: \"local\"",
        ),
    ] {
        let mut ps = command(PROGRAM);
        ps.arg("ps").args(arguments).envs(variables.iter().copied());
        let outcome = run_command(ps);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""));
        let start = format!("exec-server: {expected}");
        assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn a_unix_socket_is_found_too() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", directory.path().join("socket").display());
    let server =
        ServerBuilder::new().variable("WHICH", "unix").arguments(&["--listen", &url]).start();
    assert_eq!(which(&["--connect", &url], &[]), "unix");
    assert_eq!(which(&[], &[("XDG_RUNTIME_DIR", text(server.runtime_directory()))]), "unix");
}

#[test]
fn the_runtime_file_exists_as_long_as_its_server() {
    let mut server = called("first");
    let directory = server.runtime_directory().join("exec-server");
    let file = directory.join("server.json");
    let said: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(said["url"], server.url());
    assert_eq!(said["pid"], server.pid());
    assert_eq!(said["version"], env!("CARGO_PKG_VERSION"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));

    let runtime = text(server.runtime_directory()).to_owned();
    let second = ServerBuilder::new().variable("XDG_RUNTIME_DIR", &runtime).start();
    assert_eq!(which(&[], &[("XDG_RUNTIME_DIR", &runtime)]), "first");
    drop(second);
    assert_eq!(which(&[], &[("XDG_RUNTIME_DIR", &runtime)]), "first");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(!file.exists());
}

#[test]
fn the_file_of_a_killed_server_is_ignored_and_replaced() {
    let mut killed = called("killed");
    let runtime = text(killed.runtime_directory()).to_owned();
    killed.signal(Signal::KILL);
    killed.wait();
    assert!(Path::new(&runtime).join("exec-server/server.json").exists());
    let variables = [("XDG_RUNTIME_DIR", runtime.as_str())];
    assert_eq!(which(&[], &variables), "embedded");
    let _next = ServerBuilder::new()
        .variable("XDG_RUNTIME_DIR", &runtime)
        .variable("WHICH", "next")
        .start();
    assert_eq!(which(&[], &variables), "next");
}

#[test]
fn a_second_server_on_a_terminal_says_that_commands_use_the_first() {
    let first = Server::start();
    let tmux = Tmux::start(&first);
    tmux.line("$X");
    tmux.wait_for("Listening. In another terminal:");
    tmux.wait_for(&format!("commands use your other server at {}", first.url()));
    tmux.keys(&["C-c"]);
}

#[test]
fn a_server_can_stay_undiscoverable() {
    let server = ServerBuilder::new().arguments(&["--discoverable", "false"]).start();
    assert!(!server.runtime_directory().join("exec-server/server.json").exists());
    assert_eq!(which(&[], &[("XDG_RUNTIME_DIR", text(server.runtime_directory()))]), "embedded");
}

#[test]
fn a_runtime_directory_that_others_can_write_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let ours = directory.path().join("exec-server");
    fs::create_dir(&ours).unwrap();
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).unwrap();
    let mut server = ServerBuilder::new()
        .variable("XDG_RUNTIME_DIR", text(directory.path()))
        .capture_stderr()
        .start();
    assert!(!ours.join("server.json").exists());
    server.signal(Signal::TERM);
    let log = server.stderr();
    assert!(log.contains("cannot publish the URL of this server"), "{log}");
}

#[test]
fn completions_and_manual_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = run_program_of(&["completions", shell]);
        assert_eq!(outcome.0, Some(0));
        assert!(
            outcome.1.contains("exec-server") && outcome.1.contains("EXEC_SERVER_COMPLETE"),
            "{shell}"
        );
    }
    for arguments in [&["man"][..], &["man", "run"]] {
        let (code, page) = run_program_of(arguments);
        assert_eq!(code, Some(0));
        assert!(page.contains(".TH exec-server"), "{page}");
    }
    assert_eq!(run_program_of(&["man", "fly"]).0, Some(2));
}

fn run_program_of(arguments: &[&str]) -> (Option<i32>, String) {
    let outcome = crate::support::run_program(arguments);
    (outcome.code, outcome.stdout)
}
