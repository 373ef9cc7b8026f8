//! Starts a program in a sandbox made by bubblewrap: bubblewrap runs this executable again inside,
//! and that process becomes the program.
//!
//! ```text
//! keeper ──vfork──▶ bwrap ──fork──▶ bwrap, the init ──fork──▶ this executable ──exec──▶ program
//!    ▲                                                          │
//!    └─────────────── a socket, closed by the exec ─────────────┘
//! ```
//!
//! The environment, arguments and search path of the program cannot change the behaviour of
//! bubblewrap. Bubblewrap ignores signals, so that they reach only the program, which is in the
//! same process group.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::child::{self, Failure, Parent, Start};
use super::descendants;
use super::passing;
use super::signals;
use super::wire::{Request, Stage, Strings};
use crate::sandbox::report::step::{FAILURE_LEN, SandboxStep, StepFailure, from_bytes, to_bytes};
use crate::sandbox::setup::lockdown::Lockdown;
use crate::sandbox::setup::placeholder::Placeholders;
use crate::sandbox::setup::start_cancellation::StartCancellation;
use crate::sandbox::setup::{bubblewrap, gate_sockets, local_routes};
use crate::sandbox::{NetworkNamespace, Plan};

/// After [`SPAWNER_ARG`](super::SPAWNER_ARG), selects the mode of the process inside the sandbox.
pub(super) const INSIDE_ARG: &str = "__inside";

/// The descriptors that bubblewrap and the process inside inherit: bubblewrap's options, the
/// request, the socket to the keeper, this executable.
const OPTIONS_FD: RawFd = 3;
const REQUEST_FD: RawFd = 4;
const LINE_FD: RawFd = 5;
const EXECUTABLE_FD: RawFd = 6;
/// Higher than all the numbers above.
const FREE_FD: RawFd = 16;

const INSIDE: [u8; 1] = *b"i";
/// Lets the process inside continue once the keeper has found the processes that bubblewrap made.
const GO_ON: [u8; 1] = *b"g";

/// A running bubblewrap and the processes that it made.
pub(super) struct Wrapped {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    /// Bubblewrap's init and the program.
    pub(super) wrapping: Vec<Pid>,
    pub(super) gate: Vec<OwnedFd>,
}

/// The inputs of a start that are not passed into the sandbox.
pub(super) struct Outside<'a> {
    pub(super) placeholders: &'a Placeholders,
    /// The cgroup of bubblewrap and everything inside.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
    pub(super) cancellation: StartCancellation<'a>,
}

/// Starts `program`, which is bubblewrap. A failure may leave children behind.
pub(super) fn start(
    request: &Request<'_>,
    stdio: &[OwnedFd; 3],
    program: &Path,
    plan: &Plan,
    Outside { placeholders, cgroup, cancellation }: Outside<'_>,
) -> Result<Wrapped, Failure> {
    let (line, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    let options = bubblewrap::options(plan, placeholders)?;
    let inherited = inherited(&options, request, &theirs).map_err(failed)?;
    drop(theirs);
    let program = nul_terminated(program.as_os_str().as_bytes());
    let options = OPTIONS_FD.to_string();
    let executable = format!("/proc/self/fd/{EXECUTABLE_FD}");
    let words = ["bwrap", "--args", &options, "--", &executable, super::SPAWNER_ARG, INSIDE_ARG]
        .map(|word| nul_terminated(word.as_bytes()));
    let strings = Strings {
        program: &program,
        search_path: None,
        cwd: b"/\0",
        argv: words.iter().map(Vec::as_slice).collect(),
        env: Vec::new(),
    };
    let started = child::start(&Start {
        strings: &strings,
        terminal: request.terminal,
        stdio,
        inherited: &inherited,
        lockdown: None,
        ignores_signals: true,
        parent: Parent::Caller,
        // Per-process limits are for the program only; the process inside sets them.
        limits: None,
        cgroup,
    });
    let (pid, pidfd) = started.map_err(|failure| match failure.stage {
        Stage::Exec => Failure { stage: Stage::Sandbox(SandboxStep::Bubblewrap), ..failure },
        _ => failure,
    })?;
    drop(inherited);
    let Some(Heard { wrapping, gate }) = hear(&line, pid, cancellation)? else {
        return Err(ended(&pidfd, cancellation));
    };
    Ok(Wrapped { pid, pidfd, wrapping, gate })
}

/// Returns bubblewrap's init and the process inside, which will become the program.
fn find_wrapping(bwrap: Pid) -> Vec<Pid> {
    let init = descendants::children_of(bwrap).unwrap_or_default();
    let inside = init.iter().flat_map(|init| descendants::children_of(*init).unwrap_or_default());
    init.iter().copied().chain(inside).collect()
}

fn inherited(
    options: &[OsString],
    request: &Request<'_>,
    line: &OwnedFd,
) -> Result<[OwnedFd; 4], Errno> {
    let mut words = Vec::new();
    for option in options {
        words.extend(nul_terminated(option.as_bytes()));
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let executable = rustix::fs::openat(CWD, c"/proc/self/exe", flags, Mode::empty())?;
    // Numbers above the targets, so that no descriptor is overwritten before it has been copied.
    let high = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, FREE_FD);
    Ok([
        high(&in_memory(&words)?)?,
        high(&in_memory(request.bytes)?)?,
        high(line)?,
        high(&executable)?,
    ])
}

fn in_memory(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let to_errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut file = File::from(memfd_create(c"sandbox", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes).map_err(to_errno)?;
    file.rewind().map_err(to_errno)?;
    Ok(file.into())
}

/// Known once the process inside has reported that it runs.
struct Heard {
    wrapping: Vec<Pid>,
    gate: Vec<OwnedFd>,
}

/// Receives messages until the process inside closes its socket by `exec`. Before that it reports
/// that it runs and passes the sockets of its gate. Returns `None` if that report never came.
fn hear(
    line: &OwnedFd,
    bwrap: Pid,
    cancellation: StartCancellation<'_>,
) -> Result<Option<Heard>, Failure> {
    let mut heard = None;
    loop {
        cancellation.wait_for(line).map_err(failed)?;
        let mut message = [0; FAILURE_LEN];
        let mut gate = Vec::new();
        match passing::receive(line, &mut message, &mut gate, RecvFlags::empty()) {
            Ok(1) => {
                heard = Some(Heard { wrapping: find_wrapping(bwrap), gate });
                send(line, &GO_ON, SendFlags::NOSIGNAL).map_err(failed)?;
            }
            Ok(FAILURE_LEN) => return Err(decode(&message)),
            Ok(0) => return Ok(heard),
            Err(Errno::INTR) => {}
            Ok(_) => return Err(failed(Errno::PROTO)),
            Err(errno) => return Err(failed(errno)),
        }
    }
}

/// Returns the failure of a bubblewrap that started no process inside. Bubblewrap has exited or is
/// about to exit.
fn ended(bwrap: &OwnedFd, cancellation: StartCancellation<'_>) -> Failure {
    if let Err(errno) = cancellation.wait_for(bwrap) {
        return failed(errno);
    }
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(WaitId::PidFd(bwrap.as_fd()), options) {
        Ok(Some(status)) => {
            let signalled = status.terminating_signal().map(|signal| 128 + signal);
            let code = status.exit_status().or(signalled).unwrap_or(0).cast_unsigned();
            SandboxStep::BubblewrapEnded { code }.failed(Errno::CANCELED).into()
        }
        Ok(None) => failed(Errno::CANCELED),
        Err(errno) => failed(errno),
    }
}

/// Runs as the process inside: sets up the rest of the sandbox and becomes the program.
pub(super) fn run_inside() -> ExitCode {
    signals::block_all();
    signals::reset_dispositions();
    // SAFETY: the keeper passed it under this number, and nothing else in this process uses it.
    let line = unsafe { OwnedFd::from_raw_fd(LINE_FD) };
    let failure = match become_program(&line) {
        None => return ExitCode::from(127),
        Some(failure) => failure,
    };
    let _ = send(&line, &encode(failure), SendFlags::NOSIGNAL);
    ExitCode::from(127)
}

/// Returns the failure, or `None` if the keeper is gone.
fn become_program(line: &OwnedFd) -> Option<Failure> {
    let mut bytes = Vec::new();
    // SAFETY: as for the socket in `run_inside`.
    let mut request = unsafe { File::from_raw_fd(REQUEST_FD) };
    if let Err(error) = request.read_to_end(&mut bytes) {
        return Some(failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
    }
    let decoded = Request::decode(&bytes)
        .and_then(|request| Some((Plan::decode(request.sandbox?)?, request)));
    let Some((plan, request)) = decoded else {
        return Some(SandboxStep::Plan.failed(Errno::PROTO).into());
    };
    let gate = match open_gate(&plan) {
        Ok(gate) => gate,
        Err(failure) => return Some(failure.into()),
    };
    let passed: Vec<_> = gate.iter().map(AsFd::as_fd).collect();
    let _ = passing::send(line, &INSIDE, &passed);
    drop(gate);
    let mut answer = [0];
    if recv(line, &mut answer, RecvFlags::empty()).is_err() || answer != GO_ON {
        return None;
    }
    let terminal = request.terminal.then(rustix::stdio::stdin);
    let prepared = bubblewrap::verify(&plan.mounts)
        .and_then(|()| Lockdown::prepare(&plan, terminal.as_slice()));
    Some(match prepared {
        Ok(lockdown) => child::become_program_here(&request, &lockdown),
        Err(failure) => failure.into(),
    })
}

/// Opens the gate in the network namespace that bubblewrap made, using the capabilities that
/// bubblewrap left for this.
fn open_gate(plan: &Plan) -> Result<Vec<OwnedFd>, StepFailure> {
    match &plan.network_namespace {
        NetworkNamespace::Gated(sockets) => {
            local_routes::route_everything_to_loopback()?;
            gate_sockets::bind_all(sockets)
        }
        NetworkNamespace::Inherited | NetworkNamespace::Empty => Ok(Vec::new()),
    }
}

fn failed(errno: Errno) -> Failure {
    SandboxStep::Bubblewrap.failed(errno).into()
}

fn encode(Failure { stage, errno }: Failure) -> [u8; FAILURE_LEN] {
    to_bytes(stage.encode(), errno)
}

fn decode(bytes: &[u8; FAILURE_LEN]) -> Failure {
    let (stage, errno) = from_bytes(bytes);
    Stage::decode(stage).map_or(failed(Errno::PROTO), |stage| Failure { stage, errno })
}

fn nul_terminated(text: &[u8]) -> Vec<u8> {
    [text, b"\0"].concat()
}
