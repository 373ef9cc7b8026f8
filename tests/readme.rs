//! The README as a new user tries it: its blocks, run one after another.

use std::path::Path;

use exec_server_test_support::skipped;

use crate::foreign_client::python;
use crate::support::{Outcome, PROGRAM, command, run_command};

pub(crate) fn blocks(text: &str) -> Vec<String> {
    blocks_in("sh", text)
}

fn blocks_in(language: &str, text: &str) -> Vec<String> {
    let begin = format!("\n```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// Whether a line cannot run in a test, or takes too long.
fn is_for_people(line: &str) -> bool {
    ["cargo ", "pip ", "npm ", "scripts/", "-m venv", "sleep 1"]
        .iter()
        .any(|word| line.contains(word))
        && !line.starts_with("exec-server run")
}

/// Returns a script that changes files until `watch` prints a change, and then ends the command.
fn watched(arguments: &str, directory: &str) -> String {
    format!(
        "exec-server watch {arguments} > changes & watch=$!\n\
         until [ -s changes ]; do : > {directory}/copy/new-$((++number)); done\n\
         kill $watch; wait $watch; cat changes\n"
    )
}

/// Runs a script with its own home directory and the program on the search path.
pub(crate) fn run_as_newcomer(script: &str, home: &Path) -> Outcome {
    let mut bash = command("bash");
    let program = Path::new(PROGRAM).parent().unwrap().display();
    let search = std::env::var("PATH").unwrap_or_default();
    bash.args(["-c", script]).current_dir(home).env("PATH", format!("{program}:{search}"));
    bash.env("XDG_RUNTIME_DIR", home).env("XDG_STATE_HOME", home).env("HOME", home);
    run_command(bash)
}

#[test]
fn the_blocks_of_the_readme_work_in_order() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(repository.join("README.md")).unwrap();
    // Not below /tmp, where the sandbox of the tour may write.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().to_str().unwrap();

    // The script prints every command that fails, and continues.
    let mut script = "trap 'echo \"FAILED $BASH_COMMAND\" >&2' ERR\n".to_owned();
    for block in blocks(&readme) {
        for line in block.lines().filter(|line| !is_for_people(line)) {
            let line = line
                .replace("127.0.0.1:7777", "127.0.0.1:0")
                .replace("/tmp/copy", &format!("{path}/copy"));
            if let Some(watch) = line.strip_prefix("exec-server watch ") {
                script += &watched(watch.split('#').next().unwrap(), path);
                continue;
            }
            // Leaves the shell, as a user would.
            script += if line.starts_with("exec-server shell") { "echo exit | " } else { "" };
            script += &line;
            script += "\n";
            if line.contains("exec-server --listen") {
                script += "until exec-server ps >/dev/null 2>&1; do :; done\n";
            }
            if line.starts_with("exec-server run --sandbox") {
                script += "[ ! -e here ] || echo wrote here\n";
            }
        }
    }
    script += "wait\n";
    assert!(
        script.contains("exec-server run --detach") && script.contains("exec-server cp"),
        "{script}"
    );

    let outcome = run_as_newcomer(&script, directory.path());
    let failed: Vec<_> =
        outcome.stderr.lines().filter_map(|line| line.strip_prefix("FAILED ")).collect();
    assert!(!directory.path().join("there").exists(), "{}", outcome.stderr);
    assert!(!directory.path().join("tour").exists(), "{}", outcome.stderr);
    if !outcome.stdout.contains("wrote here") {
        skipped("the sandbox of the README: this machine cannot enforce it");
    }
    // The sandbox shows a refusal, `doctor` depends on the machine, `wait` reports the kill.
    let is_unexpected = |line: &&&str| {
        !["exec-server run --sandbox", "exec-server doctor", "wait"]
            .iter()
            .any(|command| line.starts_with(command))
    };
    let unexpected: Vec<_> = failed.iter().filter(is_unexpected).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}\n{}\n{}", outcome.stdout, outcome.stderr);
    for expected in ["step 3", "exec-server run", "created "] {
        assert!(
            outcome.stdout.contains(expected),
            "{expected}: {}\n{}",
            outcome.stdout,
            outcome.stderr
        );
    }
}

/// Runs the only block of the README in a language and checks the output of its command.
fn run_program_of_readme(language: &str, file: &str, run: &str, home: &Path) {
    let readme = include_str!("../README.md");
    let [program] = &blocks_in(language, readme)[..] else {
        panic!("the README must have exactly one program in {language}");
    };
    std::fs::write(home.join(file), program).unwrap();
    let outcome = run_as_newcomer(run, home);
    assert!(outcome.stdout.contains("hello"), "{}\n{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

#[test]
fn the_python_program_of_the_readme_works() {
    let home = tempfile::tempdir().unwrap();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");
    let run = format!("PYTHONPATH={sources} {} first.py", python().display());
    run_program_of_readme("python", "first.py", &run, home.path());
}

#[test]
fn the_typescript_program_of_the_readme_works() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/typescript");
    if !client.join("dist/index.js").exists() {
        return skipped(
            "the TypeScript client is not built: run `npm run build` in clients/typescript",
        );
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("node_modules")).unwrap();
    std::os::unix::fs::symlink(client, home.path().join("node_modules/exec-server")).unwrap();
    run_program_of_readme("js", "first.mjs", "node first.mjs", home.path());
}
