//! Commands whose connection fails, or whose output is read slowly, at the worst moment.

use std::net::SocketAddr;

use exec_server_test_support::{Cut, FaultProxy};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use crate::support::machine::{self, Watched};
use crate::support::{Gate, Running, Server, eventually};

/// A server behind a network that fails on request.
struct Far {
    server: Server,
    network: FaultProxy,
    runtime: Runtime,
}

impl Far {
    fn new() -> Self {
        let server = Server::start();
        let runtime = Runtime::new().unwrap();
        let upstream: SocketAddr = server.url().strip_prefix("ws://").unwrap().parse().unwrap();
        let network = runtime.block_on(FaultProxy::start(upstream));
        Self { server, network, runtime }
    }

    fn run(&self, options: &[&str], script: &str) -> Running {
        let connect = ["run", "--connect", &self.network.url()];
        let arguments = [&connect, options, &["sh", "-c", script]].concat();
        Running::start(self.server.command(&arguments))
    }

    fn cut(&self) {
        self.runtime.block_on(self.network.cut(Cut::Rst));
    }

    /// Lets this much time pass, with a command that does not use the network.
    fn spend(&self, time: &str) {
        let outcome = self.server.run(&["run", "--timeout", time, "sleep", "1000"]);
        assert_eq!(outcome.code, Some(124), "{}", outcome.stderr);
    }

    /// Stops the spawner. Until it is continued, the server responds to no start.
    fn stop_spawner(&self) -> u32 {
        assert_eq!(self.server.run(&["run", "true"]).code, Some(0));
        let children = || machine::descendants(self.server.pid());
        eventually("only the spawner is left", || children().len() == 1);
        let spawner = children()[0];
        machine::signal(spawner, Signal::STOP);
        spawner
    }

    fn wait_for_job(&self) {
        eventually("the server has the start", || {
            self.server.run(&["ps", "-a"]).stdout.contains("job")
        });
    }
}

/// Returns a script that reports every TERM on its output and in the file. Only KILL ends it. Its
/// stderr is closed, since the shell would report the ends of `sleep` there.
fn deaf(file: &std::path::Path) -> String {
    let file = file.display();
    let trap = format!("trap 'echo term; echo term >> {file}' TERM");
    format!("exec 2> /dev/null; {trap}; echo up; while :; do sleep 0.05; done")
}

#[test]
fn only_the_server_enforces_a_timeout_during_an_outage() {
    let far = Far::new();
    let directory = tempfile::tempdir().unwrap();
    let terms = directory.path().join("terms");
    let mut run = far.run(&["--timeout", "2s"], &deaf(&terms));
    assert_eq!(run.line(), "up\n");
    far.network.black_hole();
    eventually("the server has sent a TERM", || terms.exists());
    // The server sends KILL much later, so that a TERM from the command would still arrive.
    far.network.resume();
    let (status, out, errors) = run.finish();
    let seen = (status.code(), out.as_str(), errors.as_str());
    assert_eq!(seen, (Some(124), "term\n", "exec-server: sh timed out\n"));
    assert_eq!(std::fs::read_to_string(terms).unwrap(), "term\n");
}

#[test]
fn an_exit_before_the_timeout_counts_even_if_it_is_reported_later() {
    let far = Far::new();
    let gate = Gate::new();
    let script = format!("echo up; read x < {}; echo done; exit 7", gate.path());
    let mut run = far.run(&["--timeout", "3s"], &script);
    assert_eq!(run.line(), "up\n");
    far.network.black_hole();
    gate.open();
    // The timeout of `run` began earlier and is just as long, so it passes in the meantime.
    far.spend("3s");
    far.network.resume();
    let (status, out, errors) = run.finish();
    assert_eq!((status.code(), out.as_str(), errors.as_str()), (Some(7), "done\n", ""));
}

#[test]
fn a_timeout_loses_no_output_of_a_slow_reader() {
    const BYTES: usize = 3_000_000;
    let far = Far::new();
    let directory = tempfile::tempdir().unwrap();
    let terms = directory.path().join("terms");
    let script = format!("head -c {BYTES} /dev/zero | tr '\\0' y; echo; {}", deaf(&terms));
    let run = far.run(&["--name", "job", "--timeout", "2s"], &script);
    eventually("the server has ended the process", || {
        far.server.run(&["ps", "-a"]).stdout.contains("timed out (137)")
    });
    // Longer than the command waits for the server before it ends the process itself.
    far.spend("4s");
    let (status, out, errors) = run.read_to_end();
    assert_eq!((status.code(), errors.as_str()), (Some(124), "exec-server: sh timed out\n"));
    let (written, said) = out.split_once('\n').unwrap();
    assert_eq!((written.len(), said), (BYTES, "up\nterm\n"));
}

#[test]
fn a_cut_during_a_detached_start_leaves_no_process() {
    let far = Far::new();
    let spawner = far.stop_spawner();
    let run = far.run(&["-d", "--name", "job"], "exec sleep 1000");
    far.wait_for_job();
    far.network.refuse();
    far.cut();
    eventually("an attempt to reconnect has failed", || {
        far.network.refusals() > 0 || run.has_ended()
    });
    far.network.resume();
    let (status, out, errors) = run.finish();
    machine::signal(spawner, Signal::CONT);
    assert_eq!((status.code(), out.as_str()), (Some(125), ""));
    assert_eq!(errors, "exec-server: cannot start sh: the connection was lost during the start\n");
    let again = far.server.run(&["run", "-d", "--name", "job", "true"]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_beginning_and_the_end_of_a_long_outage_are_reported() {
    let far = Far::new();
    let mut run = far.run(&[], "echo up; read line; echo $line");
    assert_eq!(run.line(), "up\n");
    far.network.refuse();
    far.cut();
    assert_eq!(run.error_line(), "exec-server: connection lost, reconnecting… (Ctrl-C gives up)\n");
    far.network.resume();
    assert_eq!(run.error_line(), "exec-server: connected again\n");
    run.say("back\n");
    assert_eq!(run.line(), "back\n");
    assert_eq!(run.finish().0.code(), Some(0));
}

#[test]
fn an_outage_during_a_detached_start_warns_that_the_process_may_run() {
    let far = Far::new();
    let spawner = far.stop_spawner();
    let mut run = far.run(&["-d", "--name", "job"], "exec sleep 1000");
    far.wait_for_job();
    far.network.refuse();
    far.cut();
    assert_eq!(run.error_line(), "exec-server: connection lost, reconnecting… (Ctrl-C gives up)\n");
    run.signal(Signal::INT);
    let (status, out, errors) = run.finish();
    assert_eq!((status.code(), out.as_str()), (Some(125), ""));
    let (warning, error) = errors.split_once('\n').unwrap();
    assert!(warning.contains("\"job\", which may be running"), "{warning}");
    assert!(warning.ends_with("exec-server forget -f job"), "{warning}");
    assert_eq!(error, "exec-server: cannot start sh: the connection was lost during the start\n");
    machine::signal(spawner, Signal::CONT);
    // The process runs, and the remedy in the warning works.
    eventually("the process runs", || far.server.run(&["ps"]).stdout.contains("job"));
    let everything = Watched::new(&machine::descendants(spawner));
    assert_eq!(far.server.run(&["forget", "-f", "job"]).code, Some(0));
    everything.wait_until_all_end();
}
