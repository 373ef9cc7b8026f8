//! The packages of `scripts/package`, installed as a new user would: with pip, uv, npm and tar.

use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_test_support::skipped;
use serde_json::Value;
use tempfile::TempDir;

use crate::foreign_client::python;
use crate::packaging::{end, is_there, read, repository, stripped_program};
use crate::support::{PROGRAM, Running, command, run_command, run_with_input};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const NPM_CLIENT: &str = concat!("exec-server-", env!("CARGO_PKG_VERSION"), ".tgz");
const NPM_PLATFORM: &str = concat!("exec-server-linux-x64-", env!("CARGO_PKG_VERSION"), ".tgz");

/// Prints a greeting and the path of the server's program, which the keeper runs too.
const FIRST_COMMAND: &str = "echo hello from; readlink /proc/$PPID/exe";

const FIRST_PYTHON_PROGRAM: &str = "\
import asyncio
import sys
from exec_server import Machine

async def main():
    async with Machine.local() as machine:
        print((await machine.run(sys.argv[1])).stdout, end='')

asyncio.run(main())
";

const FIRST_NODE_PROGRAM: &str = "\
import { Machine } from 'exec-server';
const machine = await Machine.local();
process.stdout.write((await machine.exec(process.argv[2])).stdout);
await machine.close();
";

#[test]
fn the_packages_have_the_version_of_the_workspace() {
    let project = read("clients/python/pyproject.toml");
    assert!(project.contains(&format!("\nversion = \"{VERSION}\"\n")), "{project}");
    let package: Value = serde_json::from_str(&read("clients/typescript/package.json")).unwrap();
    assert_eq!(package["version"], VERSION);
    assert_eq!(package["optionalDependencies"]["@exec-server/linux-x64"], VERSION);
}

#[test]
fn a_program_that_is_not_static_is_packaged_only_on_demand() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("dist");
    let outcome = run_command(package(Path::new(PROGRAM), &output));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("is not static"), "{outcome:?}");
    assert!(!output.exists());
}

/// One test for all packages: they are large and are built once.
#[test]
fn the_packages_install_and_run() {
    let packages = Packages {
        directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        is_static: std::env::var_os("STATIC_PROGRAM").is_some(),
    };
    if !packages.registries_answer() {
        return;
    }
    packages.build();
    packages.check_sums();
    packages.unpack_the_tarball();
    packages.install_the_wheel();
    packages.install_from_npm();
}

fn package(program: &Path, output: &Path) -> Command {
    let mut package = command(text(&repository().join("scripts/package")));
    package.arg("--program").arg(program).arg("--output").arg(output);
    package
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn succeed(command: Command) -> String {
    let outcome = run_command(command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

fn has_version(mut program: Command) {
    program.arg("--version");
    assert_eq!(succeed(program), format!("exec-server {VERSION}\n"));
}

/// Checks that a server on stdio responds, and ends with its input.
fn serves(mut command: Command) {
    command.args(["--listen", "stdio"]);
    let hello = br#"{"id":1,"method":"initialize","params":{"clientName":"packages"}}"#;
    let output = run_with_input(command, &[hello, &b"\n"[..]].concat());
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && answer.contains("sessionId"), "{output:?}");
}

struct Packages {
    directory: TempDir,
    is_static: bool,
}

impl Packages {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path("dist").join(name)
    }

    fn wheel(&self) -> PathBuf {
        let platform = if self.is_static {
            "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64"
        } else {
            "linux_x86_64"
        };
        self.file(&format!("exec_server-{VERSION}-py3-none-{platform}.whl"))
    }

    /// Returns a command with a temporary home directory: installers keep copies of packages there.
    fn command(&self, program: &Path) -> Command {
        let mut command = command(text(program));
        command.env("HOME", self.path("home")).current_dir(self.directory.path());
        command.env("PIP_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/pip"));
        command
    }

    fn npm(&self, program: &str) -> Command {
        let mut npm = self.command(Path::new(program));
        npm.current_dir(self.path("project"));
        npm
    }

    /// Checks that the registries of pip and npm respond: the packages have dependencies. Downloads
    /// the wheel's dependency for uv, which may not know the registry that pip uses.
    fn registries_answer(&self) -> bool {
        for name in ["home", "project"] {
            std::fs::create_dir(self.path(name)).unwrap();
        }
        let mut pip = self.command(&python());
        pip.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            "links",
            "websockets",
        ]);
        let outcome = run_command(pip);
        if outcome.code != Some(0) {
            skipped(format!(
                "pip cannot download websockets, so no packages are installed: {}",
                outcome.stderr
            ));
            return false;
        }
        if !is_there("npm") {
            skipped("no npm: no packages are built");
            return false;
        }
        let mut npm = self.npm("npm");
        npm.args(["view", "ws", "version"]);
        let outcome = run_command(npm);
        if outcome.code != Some(0) {
            skipped(format!(
                "npm cannot look up ws, so no packages are installed: {}",
                outcome.stderr
            ));
        }
        outcome.code == Some(0)
    }

    fn build(&self) {
        let mut package = package(&stripped_program(self.directory.path()), &self.path("dist"));
        if !self.is_static {
            package.arg("--dynamic");
        }
        succeed(package);
        assert!(self.wheel().exists(), "{:?}", std::fs::read_dir(self.path("dist")).unwrap());
    }

    fn check_sums(&self) {
        let mut check = command("sha256sum");
        check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(self.path("dist"));
        assert_eq!(succeed(check).matches(": OK\n").count(), 4);
    }

    fn unpack_the_tarball(&self) {
        let name = format!("exec-server-{VERSION}-linux-x86_64");
        let mut tar = command("tar");
        tar.arg("-xzf")
            .arg(self.file(&format!("{name}.tar.gz")))
            .current_dir(self.directory.path());
        succeed(tar);
        has_version(command(text(&self.path(&name).join("exec-server"))));
    }

    fn install_the_wheel(&self) {
        let mut venv = self.command(&python());
        venv.args(["-m", "venv", "venv"]);
        succeed(venv);
        let bin = self.path("venv/bin");
        let pip = |arguments: &[&str]| {
            let mut pip = self.command(&bin.join("pip"));
            pip.args(["install", "--quiet"]).args(arguments);
            pip
        };
        succeed(pip(&[text(&self.wheel())]));
        let mut first = self.command(&bin.join("python"));
        first.args(["-c", FIRST_PYTHON_PROGRAM, FIRST_COMMAND]);
        let server = bin.join("exec-server").canonicalize().unwrap();
        assert_eq!(succeed(first), format!("hello from\n{}\n", server.display()));
        has_version(self.command(&server));
        let mut files = self.command(&bin.join("pip"));
        files.args(["show", "--files", "exec-server"]);
        assert!(succeed(files).contains(" exec_server/py.typed\n"));

        let outcome = run_command(pip(&["uv"]));
        if outcome.code != Some(0) {
            skipped(format!("cannot install uv, so uvx is not tested: {}", outcome.stderr));
            return;
        }
        let uvx = || {
            let mut uvx = self.command(&bin.join("uvx"));
            uvx.args(["--no-config", "--offline", "--no-index", "--find-links", "links"]);
            uvx.arg("--python").arg(bin.join("python")).arg("--from").arg(self.wheel());
            uvx.arg("exec-server");
            uvx
        };
        has_version(uvx());
        serves(uvx());
    }

    fn install_from_npm(&self) {
        std::fs::write(self.path("project/package.json"), "{}").unwrap();
        std::fs::write(self.path("project/first.mjs"), FIRST_NODE_PROGRAM).unwrap();
        let mut install = self.npm("npm");
        install.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]);
        install.arg(self.file(NPM_CLIENT)).arg(self.file(NPM_PLATFORM));
        succeed(install);
        let mut first = self.npm("node");
        first.args(["first.mjs", FIRST_COMMAND]);
        let server = self.path("project/node_modules/@exec-server/linux-x64/exec-server");
        let server = server.canonicalize().unwrap();
        assert_eq!(succeed(first), format!("hello from\n{}\n", server.display()));

        let npx = || {
            let mut npx = self.npm("npx");
            npx.args(["--no", "--", "exec-server"]);
            npx
        };
        has_version(npx());
        serves(npx());
        let launcher = self.path("project/node_modules/.bin/exec-server");
        let mut serve = self.command(&launcher);
        serve.args(["--listen", "ws://127.0.0.1:0"]);
        let mut serve = Running::start(serve);
        assert!(serve.line().starts_with("ws://127.0.0.1:"));
        end(serve);

        std::fs::remove_dir_all(server.parent().unwrap()).unwrap();
        let outcome = run_command(self.command(&launcher));
        assert_eq!(outcome.code, Some(127), "{outcome:?}");
        assert!(outcome.stderr.contains("install @exec-server/linux-x64"), "{outcome:?}");
    }
}
