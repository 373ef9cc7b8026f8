//! Common tools work in the sandbox as they do without one.
//!
//! Each tool first runs without a sandbox, where it must work as well. A tool that this user does
//! not have is skipped with a message.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use exec_server_test_support::skipped;
use tempfile::TempDir;

use super::{User, directory_outside_of_tmp, ordinary_workspace, uri};
use crate::support::{Client, Server, Start, shell};

struct Tool {
    program: &'static str,
    script: &'static str,
    terminal: bool,
}

const fn tool(program: &'static str, script: &'static str) -> Tool {
    Tool { program, script, terminal: false }
}

const fn at_a_terminal(program: &'static str, script: &'static str) -> Tool {
    Tool { program, script, terminal: true }
}

const TOOLS: &[Tool] = &[
    tool("git", "git status --short --branch && git log --oneline && git diff"),
    tool("git", "git show HEAD:file && git grep -n committed"),
    tool(
        "cargo",
        "cd crate && cargo build --quiet --offline 2> ../cargo.err || { cat ../cargo.err; exit 1; }
         target/debug/tiny",
    ),
    tool("python3", "python3 -m venv --without-pip env && env/bin/python -c 'print(6 * 7)'"),
    tool(
        "python3",
        "python3 -c 'import asyncio, os, subprocess, tempfile
async def read():
    child = await asyncio.create_subprocess_exec(\"echo\", \"hello\", stdout=subprocess.PIPE)
    return (await child.communicate())[0]
print(asyncio.run(read()), os.rmdir(tempfile.mkdtemp()))'",
    ),
    tool(
        "python3",
        "python3 -c 'import multiprocessing, os, pty
lock = multiprocessing.Lock()
def add(total):
    with lock: total.value += 1
total = multiprocessing.Value(\"i\", 0, lock=False)
children = [multiprocessing.Process(target=add, args=(total,)) for _ in range(4)]
for child in children: child.start()
for child in children: child.join()
print(total.value, pty.spawn([\"test\", \"-t\", \"0\"]))'",
    ),
    tool("script", "script -qec 'test -t 1 && stty -echo && echo at a terminal' /dev/null"),
    tool("bash", "bash -c 'cat <(echo substituted) /dev/fd/3 3< file'; ls / > /dev/null"),
    tool("node", "node -e 'require(\"fs\").writeFileSync(\"made\", \"by node\")' && cat made"),
    tool(
        "node",
        "node -e 'console.log(require(\"child_process\").execSync(\"echo child\") + \"\")'",
    ),
    tool("npm", "npm --version"),
    tool(
        "cc",
        "printf '#include <stdio.h>\\nint main(void) { puts(\"compiled\"); }\\n' > main.c
         cc -O1 -o main main.c && ./main",
    ),
    tool("seq", "seq 1000 | grep 7 | sort -n | awk '{ sum += $1 } END { print sum }'"),
    tool("sort", "seq 300000 | sort -R > big && sort -n -S 100K big | tail -1 && rm big"),
    tool("sed", "cp crate/src/main.rs copy && sed -i s/tiny/small/ copy && cat copy && rm copy"),
    tool("tar", "tar cf crate.tar crate/src && mkdir out && tar xf crate.tar -C out && ls -R out"),
    tool("mktemp", "file=$(mktemp) && echo kept > \"$file\" && cat \"$file\" && rm \"$file\""),
    tool(
        "sh",
        "cat <<END\nhere\nEND\n(sleep 0.01; exit 3) & wait $!; echo $?; kill -0 $$ && echo alive",
    ),
    tool("head", "head -c 8 /dev/urandom | wc -c; echo x > /dev/null; cat /proc/self/comm; id -u"),
    at_a_terminal("stty", "stty size && test -t 0 && tty | sed s,[0-9],N,g"),
    at_a_terminal(
        "bash",
        "exec bash -c 'set -m; sleep 1000 & jobs %1 | tr -s \" \"; kill %1; wait %1; echo $?
         exec 2> /dev/null; sh -c \"kill -STOP \\$\\$; exit 5\" & wait %1; fg %1 > /dev/null; echo $?'",
    ),
];

#[test]
fn tools_work_in_an_ordinary_workspace() {
    work(User::Myself);
}

#[test]
fn tools_work_in_an_ordinary_workspace_of_an_ordinary_user() {
    work(User::Nobody);
}

fn work(user: User) {
    if let Some(why) = user.obstacle() {
        return skipped(format_args!("tools as {user:?}: {why}"));
    }
    let mut workshop = Workshop::new(user);
    let (mut worked, mut failures) = (0, Vec::new());
    for (number, tool) in TOOLS.iter().enumerate() {
        if !workshop.has(number, tool) {
            skipped(format_args!("the user {user:?} has no {}", tool.program));
            continue;
        }
        let plain = workshop.run(&format!("plain-{number}"), tool, false);
        if plain.0 != Some(0) {
            failures.push(format!("{}: without a sandbox: {plain:?}", tool.script));
            continue;
        }
        let confined = workshop.run(&format!("confined-{number}"), tool, true);
        if confined == plain {
            worked += 1;
        } else {
            failures.push(format!("{}: {confined:?} instead of {plain:?}", tool.script));
        }
    }
    println!("{worked} of {} scripts work", TOOLS.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Every system that compiles this has at least a shell, the usual tools and a compiler.
    assert!(worked >= 10, "only {worked} scripts were tried");
}

struct Workshop {
    directory: TempDir,
    client: Client,
    _server: Server,
    user: User,
    workspaces: usize,
}

impl Workshop {
    fn new(user: User) -> Self {
        let directory = directory_outside_of_tmp();
        for name in ["server", "home"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        user.own(&directory.path().join("home"));
        let server = user.server(&directory.path().join("server")).start();
        let client = server.client();
        Self { directory, client, _server: server, user, workspaces: 0 }
    }

    /// Whether this user finds the program and may run it.
    fn has(&mut self, number: usize, tool: &Tool) -> bool {
        let workspace = self.new_workspace();
        let script = format!("test -x \"$(command -v {})\"", tool.program);
        let start = self.start(&format!("has-{number}"), &script, &workspace);
        self.client.run(&start).exit_code == Some(0)
    }

    /// Runs a tool. Returns the exit code and all output.
    fn run(&mut self, id: &str, tool: &Tool, confined: bool) -> (Option<i64>, String) {
        let workspace = self.new_workspace();
        let mut start = self.start(id, tool.script, &workspace).with("tty", tool.terminal);
        if confined {
            start = start.with("sandbox", ordinary_workspace());
        }
        let transcript = self.client.run(&start);
        (transcript.exit_code, String::from_utf8_lossy(&transcript.output()).into_owned())
    }

    /// Passes on the variables by which tools are found. The home directory is a different one:
    /// tools leave files there, and root's is not accessible to other users.
    fn start(&self, id: &str, script: &str, workspace: &Path) -> Start {
        let mut start = shell(id, script).with("cwd", uri(workspace));
        for name in ["PATH", "RUSTUP_TOOLCHAIN", "LANG"] {
            if let Ok(value) = std::env::var(name) {
                start = start.variable(name, &value);
            }
        }
        let toolchains = std::env::var("RUSTUP_HOME")
            .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.rustup")));
        if let Ok(toolchains) = toolchains {
            start = start.variable("RUSTUP_HOME", &toolchains);
        }
        let home = self.directory.path().join("home");
        start.variable("HOME", home.to_str().unwrap()).variable("TMPDIR", "/tmp")
    }

    /// Creates a workspace with a crate. If git is installed, the workspace is a repository.
    fn new_workspace(&mut self) -> PathBuf {
        self.workspaces += 1;
        let workspace = self.directory.path().join(self.workspaces.to_string());
        fs::create_dir_all(workspace.join("crate/src")).unwrap();
        for (name, content) in [
            ("crate/Cargo.toml", "[package]\nname = \"tiny\"\nedition = \"2021\"\n"),
            ("crate/src/main.rs", "fn main() {\n    println!(\"tiny\");\n}\n"),
            ("file", "committed\n"),
        ] {
            fs::write(workspace.join(name), content).unwrap();
        }
        fs::set_permissions(&workspace, Permissions::from_mode(0o755)).unwrap();
        self.user.own(&workspace);
        let commit = "command -v git > /dev/null || exit 0
            git init --quiet --initial-branch main && git add file &&
            export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' &&
            git -c user.name=n -c user.email=e commit --quiet -m first &&
            echo changed >> file";
        let start = self.start(&format!("commit-{}", self.workspaces), commit, &workspace);
        let end = self.client.run(&start);
        assert_eq!(end.exit_code, Some(0), "no repository: {}", end.text());
        workspace
    }
}
