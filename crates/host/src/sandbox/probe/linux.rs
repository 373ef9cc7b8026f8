//! Uses each Linux mechanism once.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::net::{AddressFamily, SocketType};

use super::bubblewrap;
use super::finding::Failure;
use super::trial::{Failed, Step as _, try_in_child};
use crate::network::gate::PROHIBITED_V4;
use crate::sandbox::kernel::landlock::{self, Ruleset};
use crate::sandbox::kernel::seccomp::{self, AttributeChanges, Neighbours, Sockets};
use crate::sandbox::plan::{GateSockets, NetworkNamespace, Plan, Tier};
use crate::sandbox::policy::Network;
use crate::sandbox::report::mechanism::Mechanism;
use crate::sandbox::setup::lockdown::Lockdown;
use crate::sandbox::setup::{gate_sockets, local_routes, mount_call, namespaces};

/// Returns the text of the outcome (see [`Outcome`](super::finding::Outcome)), or the reason for
/// the failure. The process must have only one thread.
pub(super) fn attempt(mechanism: Mechanism) -> Result<String, Failure> {
    let run = match mechanism {
        Mechanism::Landlock => try_landlock,
        Mechanism::Seccomp => try_seccomp,
        Mechanism::UserNamespace => try_user_namespace,
        Mechanism::NetworkNamespace => try_network_namespace,
        Mechanism::ManagedNetwork => try_managed_network,
        Mechanism::FreshProc => try_fresh_proc,
        Mechanism::Bubblewrap => return bubblewrap::attempt(),
        Mechanism::Seatbelt => return Err(Failure::NotInstalled),
    };
    // SAFETY: the probe is a separate process with a single thread.
    unsafe { try_in_child(run) }.map_err(Failure::Refused)
}

fn try_landlock() -> Result<String, Failed> {
    let abi = landlock::kernel_abi().step("landlock_create_ruleset")?;
    let nothing = Ruleset::new(&[], abi).step("landlock_create_ruleset")?;
    open_directory("/").step("open before the restriction")?;
    rustix::thread::set_no_new_privs(true).step("giving up privileges")?;
    let nothing = nothing.into_fd().step("landlock_create_ruleset")?;
    landlock::restrict_self(nothing.as_fd()).step("landlock_restrict_self")?;
    match open_directory("/") {
        Err(Errno::ACCESS) => Ok(abi.to_string()),
        Err(errno) => Err(Failed::new("open under the restriction", errno)),
        Ok(_) => Err(Failed::new("landlock_restrict_self", "nothing was restricted")),
    }
}

fn try_seccomp() -> Result<String, Failed> {
    let filters = [
        (Sockets::InternetAndUnix, AttributeChanges::Changeable),
        (Sockets::InternetAndUnix, AttributeChanges::Frozen),
        (Sockets::TcpAndUnix, AttributeChanges::Frozen),
        (Sockets::Internet, AttributeChanges::Frozen),
        (Sockets::Pairs, AttributeChanges::Changeable),
        (Sockets::Pairs, AttributeChanges::Frozen),
    ];
    for (index, (sockets, attributes)) in filters.into_iter().enumerate() {
        let lockdown = Lockdown::prepare(&filter_only(sockets, attributes), &[]).step("seccomp")?;
        if index == 0 {
            lockdown.give_up_rights().step("giving up privileges")?;
        }
        lockdown.filter_calls().step("seccomp")?;
    }
    match rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None) {
        Err(Errno::PERM) => Ok(String::new()),
        Err(errno) => Err(Failed::new("socket under the filter", errno)),
        Ok(_) => Err(Failed::new("seccomp", "nothing was restricted")),
    }
}

fn filter_only(sockets: Sockets, attributes: AttributeChanges) -> Plan {
    Plan {
        tier: Tier::Direct,
        mounts: vec![],
        landlock: None,
        seccomp: seccomp::program(sockets, attributes, Neighbours::InReach).to_vec(),
        network: Network::Restricted,
        network_namespace: NetworkNamespace::Inherited,
        fresh_proc: false,
        own_terminals: false,
    }
}

/// Tests whether a directory in new namespaces can be made read-only, as a sandbox requires.
fn try_user_namespace() -> Result<String, Failed> {
    enter_namespaces()?;
    let place = ["/usr", "/etc", "/"].into_iter().find_map(|path| open_directory(path).ok());
    let place =
        place.ok_or_else(|| Failed::new("open", "none of /usr, /etc and / can be opened"))?;
    let copy = mount_call::clone_tree(&place).step("open_tree")?;
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount_call::set_attributes(&copy, read_only).step("mount_setattr")?;
    mount_call::attach(&copy, &place).step("move_mount")?;
    match mkdirat(copy.as_fd(), "exec-server-probe", Mode::RWXU) {
        Err(Errno::ROFS) => Ok(String::new()),
        Err(errno) => Err(Failed::new("mkdir on a read-only mount", errno)),
        Ok(()) => Err(Failed::new("mount_setattr", "the mount can still be written")),
    }
}

fn try_network_namespace() -> Result<String, Failed> {
    namespaces::enter(true).step("new namespaces")?;
    Ok(String::new())
}

fn try_managed_network() -> Result<String, Failed> {
    namespaces::enter(true).step("new namespaces")?;
    use_managed_network()
}

/// Tests the network namespace of this process, which must be new. A connection to an arbitrary
/// address must reach the listener, which learns that address. A connection to a prohibited address
/// must be refused.
pub(super) fn use_managed_network() -> Result<String, Failed> {
    const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 443);
    local_routes::route_everything_to_loopback().step("routes")?;
    let sockets = GateSockets { direct_ports: vec![ELSEWHERE.port()], ..GateSockets::default() };
    let bound = gate_sockets::bind_all(&sockets).step("sockets")?;
    let listener =
        bound.into_iter().next().ok_or_else(|| Failed::new("sockets", "none was bound"))?;
    let listener = TcpListener::from(listener);
    listener.set_nonblocking(false).step("sockets")?;
    let _program = TcpStream::connect(ELSEWHERE).step("connect")?;
    let (accepted, _) = listener.accept().step("accept")?;
    let destination = accepted.local_addr().step("getsockname")?;
    if destination.ip().to_canonical() != ELSEWHERE.ip() {
        return Err(Failed::new("getsockname", format_args!("unexpected address {destination}")));
    }
    match TcpStream::connect((PROHIBITED_V4.0, ELSEWHERE.port())) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(String::new()),
        Err(error) => Err(Failed::new("connect to a prohibited address", error)),
        Ok(_) => Err(Failed::new("connect to a prohibited address", "it succeeded")),
    }
}

fn try_fresh_proc() -> Result<String, Failed> {
    enter_namespaces()?;
    let mount_proc = || {
        let hardened = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let fresh = mount_call::new_mount("proc", &[], hardened).step("mounting a new /proc")?;
        let place = open_directory("/proc").step("open /proc")?;
        mount_call::attach(&fresh, &place).step("move_mount")?;
        match fs::read_link("/proc/self").step("readlink /proc/self")?.to_str() {
            Some("1") => Ok(String::new()),
            _ => Err(Failed::new(
                "readlink /proc/self",
                "processes outside the namespace are visible",
            )),
        }
    };
    // SAFETY: the process is still single-threaded. The child is the first process of the new PID
    // namespace.
    unsafe { try_in_child(mount_proc) }.map_err(|reason| Failed::new("in the namespace", reason))
}

/// Enters the same namespaces as the setup of a sandbox.
fn enter_namespaces() -> Result<(), Failed> {
    namespaces::enter(false).step("new namespaces")?;
    let root = open_directory("/").step("open /")?;
    mount_call::make_private(&root, MountAttrFlags::empty()).step("making mounts private")
}

fn open_directory(path: &str) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
