//! The verdict on each system call.

use std::collections::BTreeMap;

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, EPERM, NETLINK_ROUTE, SOCK_SEQPACKET, SOCK_STREAM,
};

use super::assembler::{Action, Condition, Filter, Test, Verdict};
use super::{AttributeChanges, Neighbours, Sockets};

const DENY: Action = Action::Fail(EPERM);
/// Pretends that the kernel is older, so that libraries fall back to older calls.
const UNKNOWN: Action = Action::Fail(libc::ENOSYS);

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system calls of this architecture have not been reviewed");

/// x32: the same kernel functions under other numbers.
#[cfg(target_arch = "x86_64")]
const FIRST_FOREIGN: Option<u32> = Some(0x4000_0000);
#[cfg(target_arch = "aarch64")]
const FIRST_FOREIGN: Option<u32> = None;

/// Numbers that the `libc` crate lacks. They are the same on all architectures.
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_SETATTR: i64 = 469;

/// Calls added after `file_setattr` (Linux 6.17) have not been reviewed and may be a way out.
const FIRST_UNKNOWN: i64 = SYS_FILE_SETATTR + 1;

pub(super) fn filter(
    sockets: Sockets,
    attributes: AttributeChanges,
    neighbours: Neighbours,
) -> Filter {
    let mut verdicts = Verdicts(BTreeMap::new());
    verdicts.deny(OTHER_PROCESSES);
    verdicts.deny(MESSAGE_QUEUES);
    verdicts.deny(MOUNTS);
    verdicts.deny(KERNEL);
    verdicts.deny(MACHINE);
    verdicts.always(libc::SYS_clone3, UNKNOWN);
    verdicts.depends(libc::SYS_clone, [deny_if(has_any(0, NAMESPACES))], Action::Allow);
    verdicts.depends(libc::SYS_prlimit64, [deny_if(has_any(0, u32::MAX))], Action::Allow);
    verdicts.depends(
        libc::SYS_personality,
        PERSONALITIES.map(|value| allow_if([low(0, value)])),
        DENY,
    );
    verdicts.depends(
        libc::SYS_fcntl,
        LEASES.map(|command| deny_if(low(1, command))),
        Action::Allow,
    );
    if neighbours == Neighbours::InReach {
        verdicts.leaving_neighbours_alone();
    }
    let mut ioctls: Vec<_> = TERMINAL_IOCTLS.map(|request| deny_if(low(1, request))).into();
    if attributes == AttributeChanges::Frozen {
        verdicts.deny(ATTRIBUTES);
        ioctls.extend(HARMLESS_FILE_IOCTLS.map(|request| allow_if([low(1, request)])));
        ioctls.extend(FILE_IOCTL_TYPES.map(|kind| deny_if(low_masked(1, IOCTL_TYPE, kind))));
    }
    verdicts.depends(libc::SYS_ioctl, ioctls, Action::Allow);
    match sockets {
        Sockets::Pairs => verdicts.without_network(),
        Sockets::Internet => verdicts.with_internet(&[]),
        Sockets::InternetAndUnix => verdicts.with_internet(&[AF_UNIX]),
        Sockets::Tcp => verdicts.with_tcp(&[]),
        Sockets::TcpAndUnix => verdicts.with_tcp(&[AF_UNIX]),
    }
    Filter {
        architecture: ARCHITECTURE,
        verdicts: verdicts.0,
        first_unknown: number(FIRST_UNKNOWN),
        unknown: UNKNOWN,
        first_foreign: FIRST_FOREIGN,
    }
}

struct Verdicts(BTreeMap<u32, Verdict>);

impl Verdicts {
    fn always(&mut self, call: i64, action: Action) {
        let before = self.0.insert(number(call), Verdict::Always(action));
        debug_assert!(before.is_none(), "two verdicts on call {call}");
    }

    fn deny(&mut self, calls: &[i64]) {
        for call in calls {
            self.always(*call, DENY);
        }
    }

    fn depends(&mut self, call: i64, tests: impl IntoIterator<Item = Test>, otherwise: Action) {
        let verdict = Verdict::Depends { tests: tests.into_iter().collect(), otherwise };
        let before = self.0.insert(number(call), verdict);
        debug_assert!(before.is_none(), "two verdicts on call {call}");
    }

    /// Protects outside processes if no namespace separates them from the program. The program can
    /// still lower the priority of a single outside process: the filter cannot distinguish the id
    /// of that process from that of a thread of the program, and programs do set the priority of
    /// their threads.
    fn leaving_neighbours_alone(&mut self) {
        self.deny(SHARED_BY_NUMBER);
        let of_many = |groups: [u32; 2]| groups.map(|kind| deny_if(low(0, kind)));
        self.depends(libc::SYS_setpriority, of_many(PRIORITIES_OF_MANY), Action::Allow);
        self.depends(libc::SYS_ioprio_set, of_many(IO_PRIORITIES_OF_MANY), Action::Allow);
    }

    /// Denies creating sockets that reach other processes, and connecting inherited sockets to
    /// other processes.
    ///
    /// The filter cannot see the address of `sendmsg`, which is behind a pointer. The call is
    /// harmless because only connected pairs of stream or packet sockets can be created, and these
    /// send to no other address. A pair of datagram sockets could.
    fn without_network(&mut self) {
        self.deny(REACHING_OTHERS);
        self.depends(libc::SYS_socketpair, connected_pairs(), DENY);
        let has_address = deny_if(Condition::IsNotZero { argument: 4 });
        self.depends(libc::SYS_sendto, [has_address], Action::Allow);
    }

    /// Allows internet sockets and route queries. Ordinary programs do not need other families, and
    /// those have a large attack surface.
    fn with_internet(&mut self, others: &[i32]) {
        let families = [AF_INET, AF_INET6];
        let families =
            families.iter().chain(others).map(|family| allow_if([low(0, word(*family))]));
        self.depends(libc::SYS_socket, families.chain([route_queries()]), DENY);
        self.pairs(others);
    }

    /// Allows TCP, the only protocol whose ports Landlock restricts. Denies other protocols, even
    /// those with stream sockets, and connecting with the first data (TCP Fast Open).
    fn with_tcp(&mut self, others: &[i32]) {
        let protocols = [0, word(libc::IPPROTO_TCP)];
        let tcp = [AF_INET, AF_INET6].into_iter().flat_map(|family| {
            protocols.map(|protocol| {
                let stream = low_masked(1, SOCKET_KIND, word(SOCK_STREAM));
                allow_if([low(0, word(family)), stream, low(2, protocol)])
            })
        });
        let others_allowed = others.iter().map(|family| allow_if([low(0, word(*family))]));
        self.depends(libc::SYS_socket, tcp.chain(others_allowed).chain([route_queries()]), DENY);
        self.pairs(others);
        // Other processes could connect to a listener: the Landlock rules restrict only `connect`.
        self.always(libc::SYS_listen, DENY);
        for (call, flags) in
            [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)]
        {
            let connects = deny_if(has_any(flags, word(libc::MSG_FASTOPEN)));
            self.depends(call, [connects], Action::Allow);
        }
    }

    /// Denies pairs of datagram sockets if Unix sockets are not allowed: such a pair can send to
    /// other addresses.
    fn pairs(&mut self, families: &[i32]) {
        if families.contains(&AF_UNIX) {
            self.depends(libc::SYS_socketpair, [allow_if([low(0, word(AF_UNIX))])], DENY);
        } else {
            self.depends(libc::SYS_socketpair, connected_pairs(), DENY);
        }
    }
}

fn connected_pairs() -> [Test; 2] {
    [SOCK_STREAM, SOCK_SEQPACKET]
        .map(|kind| allow_if([low(0, word(AF_UNIX)), low_masked(1, SOCKET_KIND, word(kind))]))
}

fn route_queries() -> Test {
    allow_if([low(0, word(AF_NETLINK)), low(2, word(NETLINK_ROUTE))])
}

fn deny_if(condition: Condition) -> Test {
    Test { all: vec![condition], action: DENY }
}

fn allow_if(all: impl IntoIterator<Item = Condition>) -> Test {
    Test { all: all.into_iter().collect(), action: Action::Allow }
}

const fn low(argument: u32, value: u32) -> Condition {
    Condition::LowEquals { argument, value }
}

const fn low_masked(argument: u32, mask: u32, value: u32) -> Condition {
    Condition::LowMaskedEquals { argument, mask, value }
}

const fn has_any(argument: u32, bits: u32) -> Condition {
    Condition::LowHasAnyOf { argument, bits }
}

const fn word(value: i32) -> u32 {
    value.cast_unsigned()
}

fn number(call: i64) -> u32 {
    u32::try_from(call).expect("system calls have small numbers")
}

/// Access to memory, descriptors and secrets of outside processes.
const OTHER_PROCESSES: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// POSIX message queues. They are not on a visible mount, so Landlock refuses to open them. But it
/// checks a new queue only after it has been created, and does not see the removal of a queue. So
/// the calls are denied; in a private IPC namespace too, where queues could not be opened either.
const MESSAGE_QUEUES: &[i64] = &[
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr,
];

/// System V shared memory, queues and semaphores. A process that guesses the number of such an
/// object can use it without looking it up by its key.
const SHARED_BY_NUMBER: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
];

/// `PRIO_PGRP` and `PRIO_USER`.
const PRIORITIES_OF_MANY: [u32; 2] = [1, 2];

/// `IOPRIO_WHO_PGRP` and `IOPRIO_WHO_USER`.
const IO_PRIORITIES_OF_MANY: [u32; 2] = [2, 3];

/// `F_SETLEASE`, and `F_SETDELEG` of Linux 6.19. Any process that opens a leased file, even the
/// server, waits up to 45 seconds for the lease holder.
const LEASES: [u32; 2] = [1024, 1040];

/// All calls that could remove a cover, and those that create namespaces in which that is possible.
const MOUNTS: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Opens a file by its handle and so bypasses inaccessible directories.
    libc::SYS_open_by_handle_at,
];

/// Calls that make the kernel act without the filter seeing it, and debugging interfaces.
const KERNEL: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
];

/// Calls that affect the whole machine. Most of them also require privileges, which a sandbox
/// started by root might have.
const MACHINE: &[i64] = &[
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// Metadata changes that need only a path, or a descriptor opened for reading.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

const REACHING_OTHERS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

/// Namespace flags of `clone`. `CLONE_NEWTIME` is not one of them: in this call, its bit is part of
/// the exit signal.
const NAMESPACES: u32 = word(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

/// `TIOCSTI` and `TIOCLINUX` inject input for the next reader of the terminal.
const TERMINAL_IOCTLS: [u32; 2] = [0x5412, 0x541c];

/// The types of file system requests, in this order: `FS_IOC_*` and ext4; `FS_IOC_*VERSION`;
/// `FS_IOC_FS*XATTR` and XFS; btrfs; f2fs. Some need only a descriptor opened for reading to change
/// flags, seal a file permanently, or create a subvolume.
const FILE_IOCTL_TYPES: [u32; 5] = [0x6600, 0x7600, 0x5800, 0x9400, 0xf500];
const IOCTL_TYPE: u32 = 0xff00;

/// The read-only requests of [`FILE_IOCTL_TYPES`]: `FS_IOC_GETFLAGS`, `FS_IOC_FIEMAP`,
/// `FS_IOC_FSGETXATTR`, `FS_IOC_GETVERSION`.
const HARMLESS_FILE_IOCTLS: [u32; 4] = [0x8008_6601, 0xc020_660b, 0x801c_581f, 0x8008_7601];

/// `PER_LINUX` and `PER_LINUX32`, each with and without `UNAME26`, and the query for the current
/// value. The other personalities weaken defences.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// The bits of a socket type that hold the kind; the other bits are flags.
const SOCKET_KIND: u32 = 0xf;
