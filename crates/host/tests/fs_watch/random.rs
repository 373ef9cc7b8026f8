//! Trees that change at random while they are watched: the reported changes cover every difference.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::scene::{Told, WatchScene};

const BATCHES: usize = 45;
const STEPS: usize = 25;

/// Which moves of directories are allowed. The value is the bound of the random number that selects
/// a change. Without moves, a rescan is a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    None = 7,
    InAndOut = 9,
    All = 10,
}

#[tokio::test]
async fn every_difference_is_reported() {
    let scene = WatchScene::in_memory();
    scene.mkdir("tree");
    scene.mkdir("outside");
    let mut told = scene.watch("tree", WatchDepth::Tree);
    for batch in 0..BATCHES {
        let moves = [Moves::None, Moves::InAndOut, Moves::All][batch % 3];
        let before = snapshot(&scene.at("tree"));
        let mut random = Random::new(batch);
        let mut done = Vec::new();
        for step in 0..STEPS {
            done.extend(change_at_random(&scene, &mut random, moves, &format!("{batch}.{step}")));
        }
        let after = snapshot(&scene.at("tree"));
        // The second change is reported after a scan that began when the first was reported.
        for end in ["first", "second"] {
            let end = format!("tree/end {batch} {end}");
            scene.write(&end);
            told.until(ChangeKind::Created, &scene.at(&end)).await;
        }
        assert!(moves != Moves::None || !told.rescan, "batch {batch}: {done:#?}");
        for path in differences(&before, &after) {
            let changes = &told.changes;
            assert!(covers(&told, path), "batch {batch}: {path:?}: {done:#?}\n{changes:#?}");
        }
        told.forget();
    }
}

/// Returns the inode and content of each path. No two writes have the same content.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, (u64, Option<String>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let inode = fs::metadata(&path).unwrap().ino();
        if path.is_dir() {
            found.append(&mut snapshot(&path));
            found.insert(path, (inode, None));
        } else {
            let content = fs::read_to_string(&path).unwrap();
            found.insert(path, (inode, Some(content)));
        }
    }
    found
}

fn differences<'a, T: PartialEq>(
    before: &'a BTreeMap<PathBuf, T>,
    after: &'a BTreeMap<PathBuf, T>,
) -> impl Iterator<Item = &'a PathBuf> {
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let other = after.iter().filter(|(path, is)| before.get(*path) != Some(is));
    gone.chain(other.map(|(path, _)| path))
}

/// Whether the reported changes cover a change of `path`. The content of a directory that is moved
/// or removed is not mentioned.
fn covers(told: &Told, path: &Path) -> bool {
    told.rescan
        || told.mentions(path)
        || told.changes.iter().any(|change| {
            let gone = match change.kind {
                ChangeKind::Removed => Some(&change.path),
                _ => change.from.as_ref(),
            };
            gone.is_some_and(|gone| path.starts_with(gone))
        })
}

/// Returns a description of the change, or `None` if no change was possible.
fn change_at_random(
    scene: &WatchScene,
    random: &mut Random,
    moves: Moves,
    unique: &str,
) -> Option<String> {
    let mut directories = vec![scene.at("tree")];
    let mut files = Vec::new();
    for path in snapshot(&scene.at("tree")).into_keys() {
        if path.is_dir() { directories.push(path) } else { files.push(path) }
    }
    // There are few names, so that they are reused.
    let place = random.of(&directories)?.join(["a", "b", "c"][random.below(3)]);
    let outside = scene.at("outside").join(["a", "b"][random.below(2)]);
    match random.below(moves as usize) {
        0 | 1 => attempt("mkdir", &[&place], fs::create_dir_all(place.join("d"))),
        2 => attempt("write", &[&place], fs::write(&place, unique)),
        3 => {
            let file = random.of(&files)?;
            attempt("rewrite", &[file], fs::write(file, unique))
        }
        4 => {
            let file = random.of(&files)?;
            attempt("rename", &[file, &place], fs::rename(file, &place))
        }
        5 => {
            let file = random.of(&files)?;
            attempt("unlink", &[file], fs::remove_file(file))
        }
        6 => {
            let directory = random.of(&directories[1..])?;
            attempt("remove", &[directory], fs::remove_dir_all(directory))
        }
        7 => {
            let directory = random.of(&directories[1..])?;
            attempt("move out", &[directory, &outside], fs::rename(directory, &outside))
        }
        8 => attempt("move in", &[&outside, &place], fs::rename(&outside, &place)),
        _ => {
            let directory = random.of(&directories[1..])?;
            attempt("move", &[directory, &place], fs::rename(directory, &place))
        }
    }
}

fn attempt<T>(name: &str, paths: &[&PathBuf], outcome: std::io::Result<T>) -> Option<String> {
    outcome.ok().map(|_| format!("{name} {paths:?}"))
}

/// Xorshift: every run produces the same changes.
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    fn of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        (!items.is_empty()).then(|| &items[self.below(items.len())])
    }
}
