//! The messages between server, spawner and keeper.
//!
//! Both ends run the same executable, so numbers are in native byte order and there is no version.
//! The start request is laid out for the keeper: `execve` uses the received bytes in place.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::super::command::{Command, Io};
use super::super::error::LaunchError;
use crate::process::limits::{ENCODED_LEN as LIMITS_LEN, Limits, LimitsHit, TreeUse};
use crate::sandbox::SandboxStep;

/// The datagram that carries the descriptors of a start to the spawner.
pub(super) const START: [u8; 1] = *b"s";
/// Like [`START`], for a program without network.
pub(super) const START_WITHOUT_NETWORK: [u8; 1] = *b"n";
/// Like [`START`], for a program whose network leads to a gate.
pub(super) const START_WITH_GATE: [u8; 1] = *b"g";

/// Far above the limit of `execve` (Linux: 6 MiB), so no valid request is refused here.
const MAX_REQUEST_LEN: usize = 16 << 20;

/// Search path for a program without a `PATH` of its own.
const DEFAULT_SEARCH_PATH: &[u8] = b"/usr/bin:/bin";

const HEADER_LEN: usize = 20;
const TERMINAL: u32 = 1;
const KILL_ON_EXIT: u32 = 2;
const SEARCH: u32 = 4;
const SANDBOX: u32 = 8;
const LIMITS: u32 = 16;

/// Encodes a start request: a header, the limits, the plan of the sandbox, and NUL-terminated
/// strings (the cgroup if there are limits, then those of [`Strings`] in their order).
pub(super) fn encode_request(
    command: &Command,
    cgroup: Option<&Path>,
) -> Result<Vec<u8>, LaunchError> {
    let searched = command.program_path().is_none() && !command.program().is_empty();
    let mut flags = 0;
    for (flag, set) in [
        (TERMINAL, matches!(command.io, Io::Pty(_))),
        (KILL_ON_EXIT, command.kill_on_exit),
        (SEARCH, searched),
        (SANDBOX, command.sandbox.is_some()),
        (LIMITS, !command.limits.is_empty()),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let too_long = || LaunchError::ArgumentsTooLong { program: command.program().to_owned() };
    let count = |len: usize| u32::try_from(len).map_err(|_| too_long());

    let plan = command.sandbox.as_ref().map(|plan| plan.encode()).unwrap_or_default();
    let mut bytes = vec![0; HEADER_LEN];
    if !command.limits.is_empty() {
        bytes.extend_from_slice(&command.limits.encode());
    }
    bytes.extend_from_slice(&plan);
    if !command.limits.is_empty() {
        push_string(&mut bytes, &[cgroup.map_or(b"", |path| path.as_os_str().as_bytes())]);
    }
    push_string(&mut bytes, &[command.program().as_bytes()]);
    let search_path = command.variable("PATH").map_or(DEFAULT_SEARCH_PATH, OsStrExt::as_bytes);
    push_string(&mut bytes, &[if searched { search_path } else { b"" }]);
    push_string(&mut bytes, &[command.cwd.as_os_str().as_bytes()]);
    let arg0 = command.arg0.as_deref().unwrap_or(command.program());
    push_string(&mut bytes, &[arg0.as_bytes()]);
    for argument in command.argv.iter().skip(1) {
        push_string(&mut bytes, &[argument.as_bytes()]);
    }
    for (name, value) in &command.env {
        push_string(&mut bytes, &[name.as_bytes(), b"=", value.as_bytes()]);
    }
    if bytes.len() > MAX_REQUEST_LEN {
        return Err(too_long());
    }

    let header = [
        count(bytes.len())?,
        flags,
        count(command.argv.len())?,
        count(command.env.len())?,
        count(plan.len())?,
    ];
    for (slot, value) in bytes.chunks_exact_mut(4).zip(header) {
        slot.copy_from_slice(&value.to_ne_bytes());
    }
    Ok(bytes)
}

fn push_string(bytes: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes.push(0);
}

/// Returns the length of the request that starts with these bytes, or `None` if they are too few or
/// the length is out of range.
pub(super) fn request_len(received: &[u8]) -> Option<usize> {
    let len = field(received, 0)?;
    (HEADER_LEN..=MAX_REQUEST_LEN).contains(&(len as usize)).then_some(len as usize)
}

#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The whole request as received.
    pub(super) bytes: &'a [u8],
    pub(super) terminal: bool,
    pub(super) kill_on_exit: bool,
    pub(super) limits: Option<Limits>,
    /// The parent of the tree's own cgroup.
    pub(super) cgroup: Option<&'a Path>,
    /// An encoded plan.
    pub(super) sandbox: Option<&'a [u8]>,
    pub(super) strings: Strings<'a>,
}

/// The strings of a request, each with its terminating NUL.
#[derive(Debug)]
pub(super) struct Strings<'a> {
    pub(super) program: &'a [u8],
    /// Set if the program must be looked up.
    pub(super) search_path: Option<&'a [u8]>,
    pub(super) cwd: &'a [u8],
    pub(super) argv: Vec<&'a [u8]>,
    pub(super) env: Vec<&'a [u8]>,
}

impl<'a> Request<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (flags, argc, envc) = (field(bytes, 1)?, field(bytes, 2)?, field(bytes, 3)?);
        let plan_len = field(bytes, 4)? as usize;
        let has_limits = flags & LIMITS != 0;
        let limits_len = if has_limits { LIMITS_LEN } else { 0 };
        let (limits, rest) = bytes.get(HEADER_LEN..)?.split_at_checked(limits_len)?;
        let limits = if has_limits { Some(Limits::decode(limits)?) } else { None };
        let (plan, strings) = rest.split_at_checked(plan_len)?;
        let mut strings = strings.split_inclusive(|byte| *byte == 0);
        let cgroup = if has_limits { strings.next()?.strip_suffix(b"\0")? } else { b"" };
        let (program, search_path, cwd) = (strings.next()?, strings.next()?, strings.next()?);
        let argv: Vec<_> = strings.by_ref().take(argc as usize).collect();
        let env: Vec<_> = strings.by_ref().take(envc as usize).collect();
        let complete = argv.len() == argc as usize
            && env.len() == envc as usize
            && strings.next().is_none()
            && bytes.last() == Some(&0);
        complete.then_some(Self {
            bytes,
            terminal: flags & TERMINAL != 0,
            kill_on_exit: flags & KILL_ON_EXIT != 0,
            limits,
            cgroup: (!cgroup.is_empty()).then(|| Path::new(OsStr::from_bytes(cgroup))),
            sandbox: (flags & SANDBOX != 0).then_some(plan),
            strings: Strings {
                program,
                search_path: (flags & SEARCH != 0).then_some(search_path),
                cwd,
                argv,
                env,
            },
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Fork,
    Setup,
    WorkingDirectory,
    Exec,
    Limits,
    Sandbox(SandboxStep),
}

/// A message from a keeper to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Carries the program's pidfd, the sockets of its gate and, if available, the keeper's own
    /// pidfd.
    Started {
        pid: u32,
    },
    Failed {
        stage: Stage,
        errno: i32,
    },
    Exited {
        status: i32,
        duration: Duration,
        cpu: Duration,
        max_rss_bytes: u64,
        hit: LimitsHit,
        /// Set if the tree was watched.
        tree: Option<TreeUse>,
    },
    Emptied,
    Counted {
        ticket: u32,
        descendants: u32,
    },
}

pub(super) const REPORT_LEN: usize = 56;

impl Report {
    pub(super) fn encode(self) -> [u8; REPORT_LEN] {
        let (kind, small, large) = match self {
            Self::Started { pid } => (1, [pid, 0, 0], [0; 5]),
            Self::Failed { stage, errno } => {
                let [stage, detail] = stage.encode();
                (2, [stage, errno.cast_unsigned(), detail], [0; 5])
            }
            Self::Exited { status, duration, cpu, max_rss_bytes, hit, tree } => {
                let small = [status.cast_unsigned(), hit.bits(), tree.is_some().into()];
                let TreeUse { peak_memory_bytes: peak, cpu: tree_cpu } = tree.unwrap_or_default();
                (3, small, [nanos(duration), nanos(cpu), max_rss_bytes, peak, nanos(tree_cpu)])
            }
            Self::Emptied => (4, [0; 3], [0; 5]),
            Self::Counted { ticket, descendants } => (5, [ticket, descendants, 0], [0; 5]),
        };
        let mut bytes = [0; REPORT_LEN];
        let (head, tail) = bytes.split_at_mut(16);
        for (slot, value) in head.chunks_exact_mut(4).zip([kind, small[0], small[1], small[2]]) {
            slot.copy_from_slice(&u32::to_ne_bytes(value));
        }
        for (slot, value) in tail.chunks_exact_mut(8).zip(large) {
            slot.copy_from_slice(&u64::to_ne_bytes(value));
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
        let (first, second) = (field(bytes, 1)?, field(bytes, 2)?);
        let large = |index: usize| -> Option<u64> {
            let at = 16 + 8 * index;
            Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        Some(match field(bytes, 0)? {
            1 => Self::Started { pid: first },
            2 => Self::Failed {
                stage: Stage::decode([first, field(bytes, 3)?])?,
                errno: second.cast_signed(),
            },
            3 => Self::Exited {
                status: first.cast_signed(),
                duration: Duration::from_nanos(large(0)?),
                cpu: Duration::from_nanos(large(1)?),
                max_rss_bytes: large(2)?,
                hit: LimitsHit::from_bits(second)?,
                tree: match field(bytes, 3)? {
                    0 => None,
                    _ => Some(TreeUse {
                        peak_memory_bytes: large(3)?,
                        cpu: Duration::from_nanos(large(4)?),
                    }),
                },
            },
            4 => Self::Emptied,
            5 => Self::Counted { ticket: first, descendants: second },
            _ => return None,
        })
    }
}

impl Stage {
    /// Steps of the sandbox are numbered from here.
    const SANDBOX: u32 = 16;

    pub(super) fn encode(self) -> [u32; 2] {
        match self {
            Self::Fork => [1, 0],
            Self::Setup => [2, 0],
            Self::WorkingDirectory => [3, 0],
            Self::Exec => [4, 0],
            Self::Limits => [5, 0],
            Self::Sandbox(step) => {
                let [number, detail] = step.encode();
                [Self::SANDBOX + number, detail]
            }
        }
    }

    pub(super) fn decode([number, detail]: [u32; 2]) -> Option<Self> {
        Some(match number {
            1 => Self::Fork,
            2 => Self::Setup,
            3 => Self::WorkingDirectory,
            4 => Self::Exec,
            5 => Self::Limits,
            _ => {
                let step = [number.checked_sub(Self::SANDBOX)?, detail];
                Self::Sandbox(SandboxStep::decode(step)?)
            }
        })
    }
}

/// A message from the server to a keeper. Before the keeper reports `Started`, only
/// `KillAll` is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Signal(rustix::process::Signal),
    KillAll,
    Count { ticket: u32 },
}

pub(super) const ORDER_LEN: usize = 8;

impl Order {
    pub(super) fn encode(self) -> [u8; ORDER_LEN] {
        let (kind, value) = match self {
            Self::Signal(signal) => (1_u32, signal.as_raw().cast_unsigned()),
            Self::KillAll => (2, 0),
            Self::Count { ticket } => (3, ticket),
        };
        let mut bytes = [0; ORDER_LEN];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; ORDER_LEN]) -> Option<Self> {
        let value = field(bytes, 1)?;
        Some(match field(bytes, 0)? {
            1 => Self::Signal(rustix::process::Signal::from_named_raw(value.cast_signed())?),
            2 => Self::KillAll,
            3 => Self::Count { ticket: value },
            _ => return None,
        })
    }
}

fn field(bytes: &[u8], index: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(4 * index..4 * index + 4)?.try_into().ok()?))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sandbox::{Network, Plan, Tier};

    fn command() -> Command {
        Command {
            argv: vec!["ls".into(), "-l".into()],
            arg0: Some("dir".into()),
            cwd: "/tmp".into(),
            env: vec![("A".into(), "1=2".into()), ("B".into(), "".into())],
            io: Io::Pipes { stdin: true },
            kill_on_exit: true,
            sandbox: None,
            limits: Limits::default(),
        }
    }

    #[test]
    fn a_request_is_decoded_as_it_was_encoded() {
        let bytes = encode_request(&command(), None).unwrap();
        assert_eq!(request_len(&bytes), Some(bytes.len()));
        let request = Request::decode(&bytes).unwrap();
        assert!(!request.terminal);
        assert!(request.kill_on_exit);
        assert_eq!(request.strings.program, b"ls\0");
        assert_eq!(request.strings.search_path, Some(&b"/usr/bin:/bin\0"[..]));
        assert_eq!(request.strings.cwd, b"/tmp\0");
        assert_eq!(request.strings.argv, [&b"dir\0"[..], b"-l\0"]);
        assert_eq!(request.strings.env, [&b"A=1=2\0"[..], b"B=\0"]);
    }

    #[test]
    fn a_truncated_request_is_refused() {
        let bytes = encode_request(&command(), None).unwrap();
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_none(), "accepted {len} bytes");
        }
    }

    #[test]
    fn a_request_carries_its_plan() {
        let plan = Plan {
            tier: Tier::Direct,
            mounts: Vec::new(),
            landlock: None,
            seccomp: vec![0; 16],
            network: Network::Restricted,
            network_namespace: crate::sandbox::NetworkNamespace::Inherited,
            fresh_proc: false,
            own_terminals: false,
        };
        let sandboxed = Command { sandbox: Some(Arc::new(plan.clone())), ..command() };
        let bytes = encode_request(&sandboxed, None).unwrap();
        let request = Request::decode(&bytes).unwrap();
        assert_eq!(request.sandbox.and_then(Plan::decode), Some(plan));
        assert_eq!(request.strings.program, b"ls\0");
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_none(), "accepted {len} bytes");
        }
    }

    #[test]
    fn a_request_carries_its_limits() {
        let limits =
            Limits { memory_bytes: Some(7), core_size_bytes: Some(0), ..Limits::default() };
        let limited = Command { limits, ..command() };
        for cgroup in [None, Some(Path::new("/sys/fs/cgroup/x"))] {
            let bytes = encode_request(&limited, cgroup).unwrap();
            let request = Request::decode(&bytes).unwrap();
            assert_eq!((request.limits, request.cgroup), (Some(limits), cgroup));
            assert_eq!(request.strings.program, b"ls\0");
            for len in 0..bytes.len() {
                assert!(Request::decode(&bytes[..len]).is_none(), "accepted {len} bytes");
            }
        }
    }

    #[test]
    fn an_oversized_request_is_refused_before_it_is_sent() {
        let mut command = command();
        command.argv.push("x".repeat(MAX_REQUEST_LEN).into());
        assert!(matches!(
            encode_request(&command, None),
            Err(LaunchError::ArgumentsTooLong { .. })
        ));
    }

    #[test]
    fn reports_and_orders_survive_the_wire() {
        for report in [
            Report::Started { pid: 7 },
            Report::Failed { stage: Stage::Exec, errno: libc::ENOENT },
            Report::Failed {
                stage: Stage::Sandbox(SandboxStep::Mount { mount: 3 }),
                errno: libc::EPERM,
            },
            Report::Exited {
                status: 9,
                duration: Duration::from_nanos(1),
                cpu: Duration::from_secs(2),
                max_rss_bytes: 1 << 40,
                hit: LimitsHit::default(),
                tree: None,
            },
            Report::Exited {
                status: 0,
                duration: Duration::ZERO,
                cpu: Duration::ZERO,
                max_rss_bytes: 0,
                hit: LimitsHit::from_bits(5).unwrap(),
                tree: Some(TreeUse { peak_memory_bytes: 1 << 41, cpu: Duration::from_secs(9) }),
            },
            Report::Failed { stage: Stage::Limits, errno: libc::EACCES },
            Report::Emptied,
            Report::Counted { ticket: u32::MAX, descendants: 3 },
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        for order in [
            Order::Signal(rustix::process::Signal::HUP),
            Order::KillAll,
            Order::Count { ticket: 5 },
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
    }
}
