//! The place of a soak: its own network and mount namespaces, with hosts and small disks, and its
//! own user. An ordinary user can create none of these, and soaks without them.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_test_support::skipped;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::network::world::{Contact, start_servers};
use crate::support::machine::is_root;
use crate::support::{Running, ServerBuilder, command, run_command};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    Spill,
    Log,
}

impl Disk {
    fn name(self) -> &'static str {
        match self {
            Self::Spill => "spill",
            Self::Log => "log",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Spill => 64 << 20,
            Self::Log => 256 << 20,
        }
    }
}

pub(super) struct Place {
    /// Its threads are in the network namespace. The first field, so that it is dropped, with its
    /// sockets, before the namespace.
    runtime: Runtime,
    /// The process of the hosts, which owns the namespaces.
    world: Option<Running>,
    /// The user of the server, if the test can choose one.
    user: Option<u32>,
    directory: TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        let (world, directory, user) = match is_root().then(start_servers) {
            Some(Ok((world, directory))) => (Some(world), directory, Some(own_user())),
            Some(Err(why)) => {
                skipped(format_args!("managed networking and full disks in the soak: {why}"));
                (None, tempfile::tempdir().unwrap(), Some(own_user()))
            }
            None => {
                skipped("only root can soak with managed networking and full disks");
                (None, tempfile::tempdir().unwrap(), None)
            }
        };
        let runtime = runtime_in(world.as_ref().map(Running::pid));
        let place = Self { runtime, world, user, directory };
        std::fs::set_permissions(place.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        place.make_directory("home");
        for disk in [Disk::Spill, Disk::Log] {
            place.make_directory(disk.name());
            place.mount(disk);
        }
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a path on a disk, as the server sees it.
    pub(super) fn on_disk(&self, disk: Disk, name: &str) -> PathBuf {
        self.path(disk.name()).join(name)
    }

    /// Returns a path on a disk, as this process sees it.
    pub(super) fn seen_on_disk(&self, disk: Disk, name: &str) -> PathBuf {
        let path = self.on_disk(disk, name);
        match &self.world {
            Some(world) => {
                let root = PathBuf::from(format!("/proc/{}/root", world.pid()));
                root.join(path.strip_prefix("/").unwrap())
            }
            None => path,
        }
    }

    /// Whether there are hosts to reach and disks that can be filled.
    pub(super) fn has_world(&self) -> bool {
        self.world.is_some()
    }

    /// Returns the contacts with the hosts since the last call.
    pub(super) fn contacts(&mut self) -> Vec<Contact> {
        let Some(world) = &mut self.world else { return Vec::new() };
        world.say("take\n");
        serde_json::from_str(&world.line()).unwrap()
    }

    pub(super) fn user(&self) -> Option<u32> {
        self.user
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Changes the owner of a file or directory to the server's user.
    pub(super) fn give_away(&self, path: &Path) {
        if let Some(user) = self.user {
            chown(path, Some(user), Some(user)).unwrap();
        }
    }

    /// Returns a program in the network namespace.
    pub(super) fn command(&self, program: &str) -> Command {
        match &self.world {
            Some(world) => {
                let mut enter = command("nsenter");
                enter.args(["--target", &world.pid().to_string(), "--net", "--", program]);
                enter
            }
            None => command(program),
        }
    }

    /// Returns a program that runs as the server's user: root in a container may not change the
    /// limits of other users.
    pub(super) fn command_of_user(&self, program: &str) -> Command {
        let Some(user) = self.user else { return command(program) };
        let mut change = command("setpriv");
        change.args([&format!("--reuid={user}"), &format!("--regid={user}")]);
        change.args(["--clear-groups", program]);
        change
    }

    /// Returns a server with the user and the namespaces of this place.
    pub(super) fn server(&self) -> ServerBuilder {
        let mut builder = ServerBuilder::new();
        if let Some(world) = &self.world {
            let pid = world.pid().to_string();
            builder = builder.through(&["nsenter", "--target", &pid, "--net", "--mount"]);
        }
        match self.user {
            Some(user) => builder.with_user(user, &self.path("home")),
            None => builder.arguments(&["--discoverable", "false"]),
        }
    }

    fn make_directory(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap();
        self.give_away(&self.path(name));
    }

    fn mount(&self, disk: Disk) {
        let (Some(world), Some(user)) = (&self.world, self.user) else { return };
        let mut mount = command("nsenter");
        mount.args(["--target", &world.pid().to_string(), "--mount", "mount", "-t", "tmpfs", "-o"]);
        mount.arg(format!("size={},uid={user},gid={user},mode=0700", disk.bytes()));
        mount.arg("tmpfs").arg(self.path(disk.name()));
        let mounted = run_command(mount);
        assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    }
}

/// Returns a user that no other test uses.
fn own_user() -> u32 {
    62_000 + std::process::id() % 3_000
}

/// Returns a runtime whose threads are in the network namespace of the process `world`.
fn runtime_in(world: Option<u32>) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all();
    if let Some(pid) = world {
        let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
        builder.on_thread_start(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        });
    }
    builder.build().unwrap()
}
