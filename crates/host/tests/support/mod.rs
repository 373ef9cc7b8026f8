//! Helpers of the launch tests: a started program with its streams, and access to the process
//! table.

pub(crate) mod confinement;
pub(crate) mod latency;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::BytesMut;
use exec_server_host::process::launch::{
    ChildStdio, Command, ExitRecord, Io, Launched, Launcher, PtySize, Signal, Tree, TreeControl,
    TreeEvent,
};
use exec_server_host::process::limits::Limits;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Returns a command that runs `script` in a shell with only a `PATH`, confined as the test
/// requires.
pub(crate) fn shell(script: &str) -> Command {
    Command {
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        arg0: None,
        cwd: "/".into(),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        io: Io::Pipes { stdin: false },
        kill_on_exit: false,
        limits: Limits::default(),
        sandbox: confinement::current(),
    }
}

pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) control: TreeControl,
    keeper: u32,
    tree: Tree,
    stdio: ChildStdio,
    seen: BytesMut,
    exit: Option<ExitRecord>,
}

impl Running {
    pub(crate) async fn start(launcher: &Launcher, command: Command) -> Self {
        let Launched { pid, stdio, tree, .. } = launcher.launch(command).await.unwrap();
        let control = tree.control();
        // The parent of a program that has already ended cannot be looked up.
        let keeper = status_field(&format!("/proc/{pid}/status"), "PPid:").unwrap_or(0);
        Self { pid, control, keeper, tree, stdio, seen: BytesMut::new(), exit: None }
    }

    pub(crate) async fn next_event(&mut self) -> TreeEvent {
        self.tree.next_event().await
    }

    pub(crate) async fn exit(&mut self) -> ExitRecord {
        if let Some(exit) = self.exit {
            return exit;
        }
        match self.next_event().await {
            TreeEvent::Exited(exit) => *self.exit.insert(exit),
            other => panic!("expected the exit, got {other:?}"),
        }
    }

    pub(crate) async fn emptied(&mut self) {
        self.exit().await;
        assert_eq!(self.next_event().await, TreeEvent::Emptied);
    }

    pub(crate) async fn output(&mut self) -> (String, ExitRecord) {
        while self.read_more().await > 0 {}
        (self.text(), self.exit().await)
    }

    pub(crate) async fn wait_for_output(&mut self, expected: &str) {
        while !self.text().contains(expected) {
            assert_ne!(self.read_more().await, 0, "ended before {expected:?}: {:?}", self.text());
        }
    }

    /// Waits for lines `pid N`. Returns the pids that those processes have outside the sandbox.
    pub(crate) async fn wait_for_pids(&mut self, count: usize) -> Vec<u32> {
        let pids = self.wait_for_plain_pids(count).await;
        if confinement::has_pid_namespace() { self.outside(&pids) } else { pids }
    }

    /// Waits for lines `pid N` of a program that is certainly not in a PID namespace.
    pub(crate) async fn wait_for_plain_pids(&mut self, count: usize) -> Vec<u32> {
        loop {
            let text = self.text();
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            let pids: Vec<u32> = complete
                .lines()
                .filter_map(|line| line.strip_prefix("pid "))
                .map(|pid| pid.parse().unwrap())
                .collect();
            if pids.len() >= count {
                return pids;
            }
            assert_ne!(self.read_more().await, 0, "ended before {count} pids: {text:?}");
        }
    }

    /// Translates pids reported inside the sandbox to those outside.
    fn outside(&self, pids: &[u32]) -> Vec<u32> {
        let inner = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            ids.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        let tree = descendants_of(self.keeper);
        let outer = |pid: &u32| tree.iter().copied().find(|other| inner(*other) == Some(*pid));
        pids.iter()
            .map(|pid| {
                outer(pid).unwrap_or_else(|| panic!("no process has pid {pid} inside the sandbox"))
            })
            .collect()
    }

    pub(crate) async fn type_in(&mut self, bytes: &[u8]) {
        let written = match &self.stdio {
            ChildStdio::Pty(master) => {
                master.writable().await.unwrap();
                master.try_write(bytes)
            }
            ChildStdio::Pipes { stdin, .. } => {
                let stdin = stdin.as_ref().unwrap();
                stdin.writable().await.unwrap();
                stdin.try_write(bytes)
            }
        };
        assert_eq!(written.unwrap(), bytes.len());
    }

    pub(crate) fn close_stdin(&mut self) {
        if let ChildStdio::Pipes { stdin, .. } = &mut self.stdio {
            *stdin = None;
        }
    }

    pub(crate) fn resize(&self, size: PtySize) {
        let ChildStdio::Pty(master) = &self.stdio else { panic!("not a terminal") };
        master.resize(size).unwrap();
    }

    pub(crate) fn signal_foreground(&self, signal: Signal) -> io::Result<()> {
        let ChildStdio::Pty(master) = &self.stdio else { panic!("not a terminal") };
        master.signal_foreground(signal)
    }

    pub(crate) async fn read_more(&mut self) -> usize {
        self.seen.reserve(4096);
        loop {
            let read = match &self.stdio {
                ChildStdio::Pty(master) => {
                    master.readable().await.unwrap();
                    master.try_read(&mut self.seen)
                }
                ChildStdio::Pipes { stdout, .. } => {
                    stdout.readable().await.unwrap();
                    stdout.try_read(&mut self.seen)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.unwrap(),
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

/// Returns a script that leaves `count` daemons, each in its own session, without its parent, and
/// ignoring TERM and HUP. They report their pids; the leader stays.
pub(crate) fn daemons(count: usize) -> String {
    format!(
        "trap '' TERM HUP
         for i in $(seq {count}); do (setsid sh -c 'echo pid $$; exec sleep 1000' &); done
         exec sleep 1000"
    )
}

/// Forks and exits forever, in a new session each time: whenever its pid is looked up, it is gone
/// already.
pub(crate) const RUNNER: &str = r#"
    use POSIX qw(setsid);
    $| = 1; $SIG{TERM} = $SIG{HUP} = 'IGNORE'; my $n = 0;
    while (1) {
        my $pid = fork; exit 0 if $pid;
        setsid(); print "running\n" if $n++ == 100;
    }
"#;

/// Doubles until the process limit is reached, then reports that.
pub(crate) const FORK_BOMB: &str =
    r#"$| = 1; my $said; while (1) { defined(fork) or $said++ or print "full\n" }"#;

pub(crate) fn kill(pid: u32) {
    rustix::process::kill_process(to_pid(pid), rustix::process::Signal::KILL).unwrap();
}

pub(crate) fn parent_of(pid: u32) -> u32 {
    status_field(&format!("/proc/{pid}/status"), "PPid:").unwrap()
}

pub(crate) fn descendants_of(ancestor: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        entry.unwrap().file_name().to_str().and_then(|name| name.parse::<u32>().ok())
    });
    let parent = |pid: &u32| status_field(&format!("/proc/{pid}/status"), "PPid:");
    let is_below =
        |pid: &u32| std::iter::successors(parent(pid), parent).any(|above| above == ancestor);
    pids.filter(is_below).collect()
}

pub(crate) fn watch(pids: &[u32]) -> Vec<OwnedFd> {
    pids.iter().map(|pid| pidfd_open(to_pid(*pid), PidfdFlags::empty()).unwrap()).collect()
}

pub(crate) async fn all_end(watched: Vec<OwnedFd>) {
    let wait = move || {
        for pidfd in watched {
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        }
    };
    tokio::task::spawn_blocking(wait).await.unwrap();
}

/// Asserts, after `Emptied`, that the processes are gone and are not even zombies.
pub(crate) fn assert_gone(pids: &[u32]) {
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} still exists");
    }
}

pub(crate) fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Starts a process as a probe, and waits until its keeper is the spawner's only child, zombies
/// included.
pub(crate) async fn spawner_is_idle(launcher: &Launcher) {
    let probe = Running::start(launcher, shell("exec sleep 1000")).await;
    let keeper = parent_of(probe.pid);
    let spawner = parent_of(keeper);
    let children = format!("/proc/{spawner}/task/{spawner}/children");
    while fs::read_to_string(&children)
        .unwrap()
        .split_whitespace()
        .any(|pid| pid != keeper.to_string())
    {
        tokio::task::yield_now().await;
    }
}

fn status_field(path: &str, name: &str) -> Option<u32> {
    let status = fs::read_to_string(path).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}
