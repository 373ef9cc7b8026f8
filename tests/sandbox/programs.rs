//! Compiles the small C programs that try to escape, when tests need them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use crate::support::command;

pub(super) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/sandbox/escapes")
}

/// Returns the names of all programs in `escapes/`.
pub(super) fn names() -> Vec<String> {
    let mut names: Vec<String> = files_with_extension(&sources(), "c")
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort_unstable();
    names
}

/// Returns a directory with a program for each attempt and the victim, compiled as needed.
pub(super) fn compiled() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("escapes");
    fs::create_dir_all(&directory).unwrap();
    // Each test is a separate process: the first one compiles, the others wait for it.
    let lock = File::create(directory.join("lock")).unwrap();
    lock.lock().unwrap();
    let headers = newest(&files_with_extension(&sources(), "h"));
    let mut stale = files_with_extension(&sources(), "c");
    stale.push(sources().join("../victim.c"));
    stale.retain(|source| {
        let made = modified(&program_of(&directory, source));
        made.is_none_or(|made| made < headers || Some(made) < modified(source))
    });
    compile_all(&stale, &directory);
    directory
}

fn compile_all(sources: &[PathBuf], directory: &Path) {
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    compile(source, &program_of(directory, source));
                }
            });
        }
    });
}

fn compile(source: &Path, program: &Path) {
    // Rename when complete, so that an interrupted compiler leaves no file that looks finished.
    let unfinished = program.with_extension("unfinished");
    let output = command("cc")
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&unfinished, source])
        .arg("-lresolv")
        .stdin(Stdio::null())
        .output()
        .expect("Rust links with cc, so cc is installed");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {messages}", source.display());
    fs::rename(unfinished, program).unwrap();
}

fn program_of(directory: &Path, source: &Path) -> PathBuf {
    directory.join(source.file_stem().unwrap())
}

fn files_with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn newest(paths: &[PathBuf]) -> SystemTime {
    paths.iter().filter_map(|path| modified(path)).max().unwrap()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
