//! Tests every verdict on the assembled programs. `probe` tests that the kernel accepts them.

use super::interpreter::{Call, run};
use super::{AttributeChanges, Neighbours, Sockets, program};

const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
const AS_IF_MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
const KILLED: u32 = libc::SECCOMP_RET_KILL_PROCESS;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const BOTH: [Sockets; 2] = [Sockets::Pairs, Sockets::InternetAndUnix];
const GARBAGE: u64 = 0xdead_beef_0000_0000;

fn outcome(sockets: Sockets, attributes: AttributeChanges, number: i64, arguments: &[u64]) -> u32 {
    let mut call = Call {
        number: u32::try_from(number).unwrap(),
        architecture: ARCHITECTURE,
        arguments: [0; 6],
    };
    call.arguments[..arguments.len()].copy_from_slice(arguments);
    run(program(sockets, attributes, Neighbours::Absent), call).0
}

/// Returns the outcomes without and with outside processes in the same namespaces.
fn alone_and_among_others(number: i64, arguments: &[u64]) -> [u32; 2] {
    [Neighbours::Absent, Neighbours::InReach].map(|neighbours| {
        let number = u32::try_from(number).unwrap();
        let mut call = Call { number, architecture: ARCHITECTURE, arguments: [0; 6] };
        call.arguments[..arguments.len()].copy_from_slice(arguments);
        run(program(Sockets::InternetAndUnix, AttributeChanges::Changeable, neighbours), call).0
    })
}

fn ordinary(sockets: Sockets, number: i64, arguments: &[u64]) -> u32 {
    outcome(sockets, AttributeChanges::Changeable, number, arguments)
}

#[test]
fn dangerous_calls_are_denied_with_and_without_network() {
    let denied = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_mq_open,
        libc::SYS_mq_unlink,
        libc::SYS_mq_timedsend,
        libc::SYS_mq_timedreceive,
        libc::SYS_mq_notify,
        libc::SYS_mq_getsetattr,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        467, // open_tree_attr
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_unshare,
        libc::SYS_setns,
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
        libc::SYS_open_by_handle_at,
        libc::SYS_syslog,
    ];
    for sockets in BOTH {
        for number in denied {
            assert_eq!(ordinary(sockets, number, &[]), DENIED, "{sockets:?}, call {number}");
        }
    }
}

#[test]
fn harmless_calls_with_neighbouring_numbers_are_allowed() {
    let allowed = [
        libc::SYS_read,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_wait4,
        libc::SYS_kill,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_name_to_handle_at,
        libc::SYS_memfd_create,
        libc::SYS_mknodat,
        libc::SYS_renameat2,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_fsetxattr,
        libc::SYS_clock_gettime,
        libc::SYS_prctl,
        libc::SYS_seccomp,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_shutdown,
        libc::SYS_futex,
        libc::SYS_statx,
        libc::SYS_rseq,
        libc::SYS_mseal,
        0,
    ];
    for sockets in BOTH {
        for number in allowed {
            assert_eq!(ordinary(sockets, number, &[]), ALLOWED, "{sockets:?}, call {number}");
        }
    }
}

#[test]
fn calls_of_another_architecture_kill_the_process() {
    // 32-bit Intel and ARM, and invalid values.
    for architecture in [0x4000_0003, 0x4000_0028, 0, ARCHITECTURE ^ 0xff] {
        for number in [0, 1, 4, u32::MAX] {
            let call = Call { number, architecture, arguments: [0; 6] };
            for sockets in BOTH {
                assert_eq!(
                    run(program(sockets, AttributeChanges::Changeable, Neighbours::InReach), call)
                        .0,
                    KILLED
                );
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_calls_kill_the_process() {
    for number in [0, 1, 41, 101, 512, 547, 0x3fff_ffff] {
        assert_eq!(
            ordinary(Sockets::InternetAndUnix, 0x4000_0000 + number, &[]),
            KILLED,
            "{number}"
        );
    }
}

#[test]
fn calls_of_newer_kernels_fail_with_enosys() {
    assert_eq!(ordinary(Sockets::InternetAndUnix, 468, &[]), ALLOWED);
    assert_eq!(ordinary(Sockets::InternetAndUnix, 469, &[]), ALLOWED);
    for number in [470, 471, 600, 0x3fff_ffff] {
        assert_eq!(ordinary(Sockets::InternetAndUnix, number, &[]), AS_IF_MISSING, "{number}");
    }
}

#[test]
fn clone_creates_threads_and_processes_but_no_namespaces() {
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD;
    let process = libc::SIGCHLD | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::CLONE_CHILD_SETTID;
    for flags in [thread, process, libc::SIGCHLD] {
        assert_eq!(ordinary(Sockets::Pairs, libc::SYS_clone, &[flag(flags)]), ALLOWED);
    }
    for namespace in [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ] {
        for flags in [flag(namespace), flag(namespace | process), flag(namespace) | GARBAGE] {
            assert_eq!(
                ordinary(Sockets::InternetAndUnix, libc::SYS_clone, &[flags]),
                DENIED,
                "{flags:#x}"
            );
        }
    }
    assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_clone3, &[]), AS_IF_MISSING);
}

fn flag(value: i32) -> u64 {
    value.cast_unsigned().into()
}

#[test]
fn terminal_input_injection_is_denied_regardless_of_the_upper_half() {
    for request in [0x5412, 0x541c] {
        for upper in [0, GARBAGE, 1 << 32] {
            let arguments = [GARBAGE, request | upper];
            assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_ioctl, &arguments), DENIED);
        }
    }
    // TCGETS, TIOCSCTTY, TIOCGWINSZ, FIONREAD
    for request in [0x5401, 0x540e, 0x5413, 0x541b] {
        assert_eq!(ordinary(Sockets::Pairs, libc::SYS_ioctl, &[0, request]), ALLOWED);
    }
    let of_another_argument = [0x5412, 0x5413, 0x5412];
    assert_eq!(ordinary(Sockets::Pairs, libc::SYS_ioctl, &of_another_argument), ALLOWED);
}

#[test]
fn limits_can_be_set_only_for_the_caller() {
    for sockets in BOTH {
        assert_eq!(ordinary(sockets, libc::SYS_prlimit64, &[0, 7]), ALLOWED);
        assert_eq!(ordinary(sockets, libc::SYS_prlimit64, &[GARBAGE, 7]), ALLOWED);
        for other in [1, 4321, GARBAGE | 1] {
            assert_eq!(ordinary(sockets, libc::SYS_prlimit64, &[other, 7]), DENIED);
        }
    }
}

#[test]
fn personalities_that_weaken_a_program_are_denied() {
    for value in [0, 0x8, 0xffff_ffff, GARBAGE | 0xffff_ffff] {
        assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_personality, &[value]), ALLOWED);
    }
    for value in [0x0040_0000, 0x0004_0000, GARBAGE | 0x0040_0000] {
        assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_personality, &[value]), DENIED);
    }
}

#[test]
fn without_network_no_socket_reaches_another_process() {
    let outcome = |number, arguments: &[u64]| ordinary(Sockets::Pairs, number, arguments);
    for family in 0..64 {
        for upper in [0, GARBAGE] {
            assert_eq!(outcome(libc::SYS_socket, &[family | upper, 1]), DENIED, "{family}");
        }
    }
    for number in [
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendmmsg,
        libc::SYS_recvmmsg,
    ] {
        assert_eq!(outcome(number, &[3]), DENIED, "{number}");
    }
    assert_eq!(outcome(libc::SYS_sendto, &[3, 0x1000, 5, 0, 0, 0]), ALLOWED);
    for address in [0x7fff_1234, 1 << 32, GARBAGE] {
        assert_eq!(outcome(libc::SYS_sendto, &[3, 0x1000, 5, 0, address, 110]), DENIED);
    }
}

#[test]
fn without_network_pairs_stay_connected() {
    let pair = |family: u64, kind: i32| {
        ordinary(Sockets::Pairs, libc::SYS_socketpair, &[family, flag(kind)])
    };
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let unix = flag(libc::AF_UNIX);
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        assert_eq!(pair(unix, kind), ALLOWED);
        assert_eq!(pair(unix, kind | flags), ALLOWED);
        assert_eq!(pair(unix | GARBAGE, kind), ALLOWED);
        assert_eq!(pair(flag(libc::AF_TIPC), kind), DENIED);
    }
    // The kernel turns raw Unix sockets into datagram sockets.
    for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_DGRAM | flags] {
        assert_eq!(pair(unix, kind), DENIED);
    }
}

#[test]
fn with_network_only_ordinary_sockets_are_allowed() {
    let socket = |family: i32, protocol: i32, upper: u64| {
        let arguments = [flag(family) | upper, flag(libc::SOCK_DGRAM), flag(protocol) | upper];
        ordinary(Sockets::InternetAndUnix, libc::SYS_socket, &arguments)
    };
    for upper in [0, GARBAGE] {
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, 17, upper), ALLOWED);
        }
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_ROUTE, upper), ALLOWED);
        for protocol in [libc::NETLINK_AUDIT, libc::NETLINK_KOBJECT_UEVENT, libc::NETLINK_NETFILTER]
        {
            assert_eq!(socket(libc::AF_NETLINK, protocol, upper), DENIED);
        }
        let ordinary = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        for family in (0..64).filter(|family| !ordinary.contains(family)) {
            assert_eq!(socket(family, 0, upper), DENIED, "{family}");
        }
    }
    for number in [libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_sendmmsg] {
        assert_eq!(ordinary(Sockets::InternetAndUnix, number, &[3]), ALLOWED);
    }
    let datagrams = [flag(libc::AF_UNIX), flag(libc::SOCK_DGRAM)];
    assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_socketpair, &datagrams), ALLOWED);
    assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_socketpair, &[30, 1]), DENIED);
    assert_eq!(ordinary(Sockets::InternetAndUnix, libc::SYS_sendto, &[3, 1, 1, 0, 99]), ALLOWED);
}

#[test]
fn behind_a_gate_internet_sockets_are_allowed_and_unix_sockets_are_not() {
    let unix = flag(libc::AF_UNIX);
    for (sockets, has_unix) in [
        (Sockets::Internet, false),
        (Sockets::InternetAndUnix, true),
        (Sockets::Tcp, false),
        (Sockets::TcpAndUnix, true),
    ] {
        let expected = if has_unix { ALLOWED } else { DENIED };
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            assert_eq!(ordinary(sockets, libc::SYS_socket, &[unix, flag(kind)]), expected);
        }
        let pair = |kind| ordinary(sockets, libc::SYS_socketpair, &[unix, flag(kind)]);
        assert_eq!(pair(libc::SOCK_STREAM), ALLOWED);
        assert_eq!(pair(libc::SOCK_DGRAM), expected);
        let routes = [flag(libc::AF_NETLINK), flag(libc::SOCK_RAW), flag(libc::NETLINK_ROUTE)];
        assert_eq!(ordinary(sockets, libc::SYS_socket, &routes), ALLOWED);
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_TIPC, libc::AF_BLUETOOTH] {
            assert_eq!(ordinary(sockets, libc::SYS_socket, &[flag(family), 1]), DENIED);
        }
    }
    let datagram = [flag(libc::AF_INET), flag(libc::SOCK_DGRAM), 0];
    assert_eq!(ordinary(Sockets::Internet, libc::SYS_socket, &datagram), ALLOWED);
}

#[test]
fn with_ports_restricted_by_landlock_only_tcp_is_allowed() {
    let socket = |kind: i32, protocol: i32| {
        let families = [libc::AF_INET, libc::AF_INET6].map(|family| {
            ordinary(Sockets::Tcp, libc::SYS_socket, &[flag(family), flag(kind), flag(protocol)])
        });
        assert_eq!(families[0], families[1]);
        families[0]
    };
    let (stream, flags) = (libc::SOCK_STREAM, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    for (kind, protocol) in [(stream, 0), (stream, libc::IPPROTO_TCP), (stream | flags, 0)] {
        assert_eq!(socket(kind, protocol), ALLOWED);
    }
    for (kind, protocol) in [
        (stream, libc::IPPROTO_MPTCP),
        (stream, libc::IPPROTO_SCTP),
        (libc::SOCK_DGRAM, 0),
        (libc::SOCK_RAW, libc::IPPROTO_ICMP),
        (libc::SOCK_SEQPACKET, libc::IPPROTO_SCTP),
        (libc::SOCK_DCCP, 0),
    ] {
        assert_eq!(socket(kind, protocol), DENIED, "{kind} {protocol}");
    }
    assert_eq!(ordinary(Sockets::Tcp, libc::SYS_listen, &[3, 1]), DENIED);
    let fast_open = flag(libc::MSG_FASTOPEN);
    for (call, place) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let mut arguments = [3, 1, 1, 1];
        arguments[place] = fast_open | flag(libc::MSG_NOSIGNAL);
        assert_eq!(ordinary(Sockets::Tcp, call, &arguments), DENIED);
        arguments[place] = flag(libc::MSG_NOSIGNAL);
        assert_eq!(ordinary(Sockets::Tcp, call, &arguments), ALLOWED);
    }
}

#[test]
fn frozen_attributes_cannot_be_changed() {
    let mut numbers = vec![
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        452, // fchmodat2
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        463, // setxattrat
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
        466, // removexattrat
        469, // file_setattr
    ];
    #[cfg(target_arch = "x86_64")]
    numbers.extend([
        libc::SYS_chmod,
        libc::SYS_chown,
        libc::SYS_lchown,
        libc::SYS_utime,
        libc::SYS_utimes,
        libc::SYS_futimesat,
    ]);
    for sockets in BOTH {
        for &number in &numbers {
            assert_eq!(outcome(sockets, AttributeChanges::Frozen, number, &[]), DENIED, "{number}");
            assert_eq!(ordinary(sockets, number, &[]), ALLOWED, "{number}");
        }
        let file_ioctls = [
            libc::FS_IOC_SETFLAGS,
            libc::FS_IOC_SETVERSION,
            0x401c_5820, // FS_IOC_FSSETXATTR
            0x4080_6685, // FS_IOC_ENABLE_VERITY
            0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
            0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
        ];
        for request in file_ioctls {
            let arguments = [3, request | GARBAGE];
            assert_eq!(
                outcome(sockets, AttributeChanges::Frozen, libc::SYS_ioctl, &arguments),
                DENIED
            );
            assert_eq!(ordinary(sockets, libc::SYS_ioctl, &arguments), ALLOWED);
        }
        // TCGETS, FIONREAD, FIOCLEX, TIOCGPTN; then requests that only read flags and extents.
        let others = [0x5401, 0x541b, 0x5451, 0x8004_5430, libc::FS_IOC_GETFLAGS, 0xc020_660b];
        for request in others {
            let arguments = [3, request];
            assert_eq!(
                outcome(sockets, AttributeChanges::Frozen, libc::SYS_ioctl, &arguments),
                ALLOWED
            );
        }
        assert_eq!(
            outcome(sockets, AttributeChanges::Frozen, libc::SYS_ioctl, &[0, 0x5412]),
            DENIED
        );
        // Reading attributes is allowed.
        for number in [libc::SYS_getxattr, libc::SYS_statx, libc::SYS_faccessat2, 464, 465, 468] {
            assert_eq!(
                outcome(sockets, AttributeChanges::Frozen, number, &[]),
                ALLOWED,
                "{number}"
            );
        }
    }
}

#[test]
fn every_number_is_decided_in_a_few_steps() {
    for sockets in BOTH {
        for attributes in [AttributeChanges::Changeable, AttributeChanges::Frozen] {
            let program = program(sockets, attributes, Neighbours::InReach);
            assert!(program.len() / 8 <= 4096, "the kernel accepts at most 4096 instructions");
            let steps = (0..1024).map(|number| {
                let call = Call { number, architecture: ARCHITECTURE, arguments: [0; 6] };
                run(program, call).1
            });
            // Four steps to begin with, then a binary search. The longest list of tests is short
            // too.
            assert!(steps.max().unwrap() <= 48);
        }
    }
}

#[test]
fn leases_are_denied() {
    for sockets in BOTH {
        // F_SETLEASE and F_SETDELEG
        for command in [1024, 1040, GARBAGE | 1024] {
            assert_eq!(ordinary(sockets, libc::SYS_fcntl, &[3, command, 1]), DENIED);
        }
        // F_DUPFD, F_SETFL, F_SETLK, F_GETLEASE, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_ADD_SEALS
        for command in [0, 4, 6, 1025, 1030, 1031, 1033] {
            assert_eq!(ordinary(sockets, libc::SYS_fcntl, &[1024, command, 1024]), ALLOWED);
        }
    }
}

#[test]
fn numbered_shared_objects_are_denied_if_others_share_the_namespace() {
    for number in [
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
    ] {
        assert_eq!(alone_and_among_others(number, &[]), [ALLOWED, DENIED], "{number}");
    }
}

#[test]
fn group_and_user_priorities_are_denied_if_others_share_the_namespace() {
    let of_many = [
        (libc::SYS_setpriority, [1, 2]), // PRIO_PGRP, PRIO_USER
        (libc::SYS_ioprio_set, [2, 3]),  // IOPRIO_WHO_PGRP, IOPRIO_WHO_USER
    ];
    for (number, [group, user]) in of_many {
        for which in [group, user, user | GARBAGE] {
            assert_eq!(alone_and_among_others(number, &[which, 0, 19]), [ALLOWED, DENIED]);
        }
        let of_a_thread = [group - 1, 4321, 19];
        assert_eq!(alone_and_among_others(number, &of_a_thread), [ALLOWED, ALLOWED]);
    }
}

#[test]
fn a_program_is_built_once() {
    let alone = |sockets, attributes| program(sockets, attributes, Neighbours::Absent);
    let first = alone(Sockets::Pairs, AttributeChanges::Frozen);
    assert!(std::ptr::eq(first, alone(Sockets::Pairs, AttributeChanges::Frozen)));
    assert_ne!(first, alone(Sockets::Pairs, AttributeChanges::Changeable));
    assert_ne!(first, alone(Sockets::InternetAndUnix, AttributeChanges::Frozen));
    assert_ne!(first, program(Sockets::Pairs, AttributeChanges::Frozen, Neighbours::InReach));
}
