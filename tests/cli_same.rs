//! `exec-server run` compared with a direct run of the same command: same bytes, same exit code.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{PROGRAM, Server, command, random_file, run_with_input};

/// A command and its input. `@` in an argument stands for the directory of the test.
struct Case {
    name: &'static str,
    argv: &'static [&'static str],
    input: &'static [u8],
    /// Whether standard error must be equal too. `run` has its own words for a failed start.
    same_stderr: bool,
}

const fn case(name: &'static str, argv: &'static [&'static str]) -> Case {
    Case { name, argv, input: b"", same_stderr: true }
}

const fn script(name: &'static str, argv: &'static [&'static str; 3]) -> Case {
    case(name, argv)
}

const fn fed(mut case: Case, input: &'static [u8]) -> Case {
    case.input = input;
    case
}

const fn in_other_words(mut case: Case) -> Case {
    case.same_stderr = false;
    case
}

const LARGE: &[u8] = &[b'x'; 3 << 20];

const CASES: &[Case] = &[
    case("nothing", &["true"]),
    case("failure", &["false"]),
    case("a line", &["echo", "hello"]),
    case("no newline", &["printf", "hello"]),
    case("no output at all, late", &["sleep", "0.01"]),
    case("awkward arguments", &["printf", "[%s]", "", "a b", "'\"$HOME\\", "*", "-n", "--", "é\n"]),
    case("the directory", &["pwd"]),
    case("a relative path", &["cat", "random"]),
    case("an absolute path", &["cat", "@/random"]),
    case("many lines", &["seq", "100000"]),
    case("a file that is missing", &["cat", "missing"]),
    script("exit code", &["sh", "-c", "exit 7"]),
    script("largest exit code", &["sh", "-c", "exit 255"]),
    script("only stderr", &["sh", "-c", "echo oh >&2"]),
    script("both streams", &["sh", "-c", "echo out; echo err >&2; echo out; echo err >&2"]),
    script("much stderr", &["sh", "-c", "head -c 3000000 random >&2; echo done"]),
    script("killed", &["sh", "-c", "echo first; kill -KILL $$"]),
    script("terminated", &["sh", "-c", "kill -TERM $$"]),
    script("segmentation fault", &["sh", "-c", "kill -SEGV $$"]),
    script("a reader that stops early", &["sh", "-c", "yes | head -n 3"]),
    script("positional parameters", &["sh", "-c", "exec sh -c 'echo $0 $# \"$2\"' a b 'c  d'"]),
    script("a child writes later", &["sh", "-c", "(sleep 0.1; echo late) & echo first"]),
    script("one long line", &["sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' x"]),
    script("closed output", &["sh", "-c", "exec >&- 2>&-; exit 3"]),
    fed(case("input", &["cat"]), b"some\0input\xff"),
    fed(case("empty input", &["cat"]), b""),
    fed(case("much input", &["wc", "-c"]), LARGE),
    fed(case("input and its end", &["sort", "-r"]), b"a\nb\nc\n"),
    fed(case("unread input", &["true"]), LARGE),
    fed(case("partly read input", &["head", "-c", "10"]), LARGE),
    fed(script("shared input", &["sh", "-c", "read a; echo $a; cat"]), b"one\ntwo\nthree\n"),
    fed(script("input that is closed", &["sh", "-c", "exec <&-; echo still here"]), LARGE),
    in_other_words(case("a missing program", &["no-such-program", "x"])),
    in_other_words(case("a missing program with a path", &["./no-such-program"])),
    in_other_words(case("a file that is not executable", &["./random"])),
    in_other_words(case("a directory", &["/"])),
];

/// Returns the exit code as a shell has it in `$?`.
fn code(output: &Output) -> i32 {
    let status = output.status;
    status.code().or_else(|| status.signal().map(|number| 128 + number)).unwrap()
}

/// Runs a command through a shell, which has exit codes for commands that cannot be started.
fn locally(argv: &[String], directory: &Path, input: &[u8]) -> Output {
    let mut shell = command("sh");
    shell.args(["-c", "exec \"$@\"", "sh"]).args(argv).current_dir(directory);
    run_with_input(shell, input)
}

fn compare(prepare: impl Fn() -> Command) {
    assert!(CASES.len() >= 30);
    let directory = tempfile::tempdir().unwrap();
    random_file(directory.path(), 3_000_000);
    let directory = directory.path().canonicalize().unwrap();
    for case in CASES {
        let text = directory.to_str().unwrap();
        let argv: Vec<String> = case.argv.iter().map(|word| word.replace('@', text)).collect();
        let expected = locally(&argv, &directory, case.input);
        let mut run = prepare();
        run.arg("--").args(&argv).current_dir(&directory);
        let ours = run_with_input(run, case.input);
        let stderr = String::from_utf8_lossy(&ours.stderr[..ours.stderr.len().min(500)]);
        assert_eq!(code(&ours), code(&expected), "{}: {stderr}", case.name);
        assert!(ours.stdout == expected.stdout, "{}: {stderr}", case.name);
        if case.same_stderr {
            assert!(ours.stderr == expected.stderr, "{}: {stderr}", case.name);
        } else {
            assert!(ours.stderr.starts_with(b"exec-server: "), "{}: {stderr}", case.name);
            assert_eq!(stderr.lines().count(), 1, "{}: {stderr}", case.name);
        }
    }
}

#[test]
fn commands_behave_the_same_without_a_running_server() {
    compare(|| {
        let mut run = command(PROGRAM);
        run.arg("run");
        run
    });
}

#[test]
fn commands_behave_the_same_on_a_running_server() {
    let server = Server::start();
    compare(|| server.command(&["run"]));
}

/// Many times the capacity of the pipes, the connection and the log in memory.
const MUCH: usize = 24 << 20;

fn much_through_cat(run: Command) {
    let directory = tempfile::tempdir().unwrap();
    let path = random_file(directory.path(), MUCH);
    let bytes = std::fs::read(path).unwrap();
    let output = run_with_input(run, &bytes);
    assert_eq!(code(&output), 0, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes were echoed", output.stdout.len());
    assert_eq!(output.stderr, b"");
}

#[test]
fn large_outputs_pass_without_a_running_server() {
    let mut run = command(PROGRAM);
    run.args(["run", "cat"]);
    much_through_cat(run);
}

#[test]
fn large_outputs_pass_through_a_running_server() {
    let server = Server::start();
    much_through_cat(server.command(&["run", "cat"]));
}

#[test]
fn the_process_has_the_environment_of_the_command() {
    let with_variables = |mut command: Command| {
        command.env("PLAIN", "a b").env("EXEC_SERVER_LOG", "error").env("MY_SECRET_KEY", "kept");
        let output = run_with_input(command, b"");
        let mut lines: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mut run = command(PROGRAM);
    run.args(["run", "env"]);
    assert_eq!(with_variables(run), with_variables(command("env")));
}
