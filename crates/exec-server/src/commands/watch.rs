//! `exec-server watch`: prints changes as they happen.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use exec_server_client::Changes;
use exec_server_protocol::{
    ChangeKind, FileChange, FsGetMetadataParams, FsWatchParams, OutputStream, PathUri,
};
use serde_json::json;

use super::servers::{Located, Servers};
use super::wording::as_written;
use crate::cli::files::Watch;
use crate::foreground::Outputs;
use crate::program::exit_code::ExitStatus;
use crate::terminal::{Names, escaped, json_line};

pub(super) async fn run(
    servers: &Servers<'_>,
    Watch { path: written, recursive, json, .. }: &Watch,
) -> anyhow::Result<ExitStatus> {
    let Located { client, path } = servers.locate(written).await?;
    let look = FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
    let is_directory = client.fs_get_metadata(look).await?.is_directory;
    let params =
        FsWatchParams { path, watch_id: String::new(), recursive: *recursive, sandbox: None };
    let mut watch = client.watch(params).await?;
    let names = Names::for_stream(&io::stdout());
    let root = watch.path().as_path().to_owned();
    let name = |path: &Path| names.of(as_written(path, &root, Path::new(&written.written)));
    let mut outputs = Outputs::open();
    loop {
        let changes = tokio::select! {
            changes = watch.next() => changes,
            error = outputs.failed() => return Err(error.into()),
        };
        let ended = || format!("the server ended the watch of {}", escaped(&written.written));
        let changes = changes.with_context(ended)??;
        let text = if *json { json_lines(&changes) } else { lines(&changes, name) };
        outputs.write(OutputStream::Stdout, text.into()).await?;
        if is_directory && is_removed(watch.path(), &changes) {
            outputs.finish().await.or_else(|error| match error.is_broken_pipe() {
                true => Ok(()),
                false => Err(error),
            })?;
            anyhow::bail!("{} was removed", escaped(&written.written));
        }
    }
}

/// Whether the root was removed. This ends the watch of a directory, but not of a file: a file is
/// often replaced, and missing only briefly.
fn is_removed(root: &PathUri, Changes { changes, .. }: &Changes) -> bool {
    let last = changes.iter().rfind(|change| change.path == *root);
    last.is_some_and(|change| change.kind == ChangeKind::Removed)
}

fn lines(Changes { changes, rescan }: &Changes, name: impl Fn(&Path) -> Vec<u8>) -> Vec<u8> {
    let mut text = Vec::new();
    for FileChange { path, kind, from } in changes {
        text.extend(word(*kind).bytes());
        text.push(b' ');
        if let Some(from) = from {
            text.extend(name(from.as_path()));
            text.extend(b" -> ");
        }
        text.extend(name(path.as_path()));
        text.push(b'\n');
    }
    if *rescan {
        text.extend(b"rescan\n");
    }
    text
}

fn json_lines(Changes { changes, rescan }: &Changes) -> Vec<u8> {
    let mut objects: Vec<_> = changes
        .iter()
        .map(|FileChange { path, kind, from }| {
            let mut object = json!({"kind": word(*kind), "path": path});
            if let Some(from) = from {
                object["from"] = json!(from);
            }
            object
        })
        .collect();
    if *rescan {
        objects.push(json!({"kind": "rescan"}));
    }
    objects.iter().flat_map(|object| json_line(object).into_bytes()).collect()
}

fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Removed => "removed",
        ChangeKind::Renamed => "renamed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Changes {
        let change = |kind, path: &str, from: Option<&str>| FileChange {
            path: path.parse().unwrap(),
            kind,
            from: from.map(|from| from.parse().unwrap()),
        };
        let changes = vec![
            change(ChangeKind::Created, "file:///a%FF", None),
            change(ChangeKind::Renamed, "/new", Some("/old")),
        ];
        Changes { changes, rescan: true }
    }

    #[test]
    fn only_removal_of_the_root_ends_the_watch() {
        let removed = |path: &str| Changes {
            changes: vec![FileChange {
                path: path.parse().unwrap(),
                kind: ChangeKind::Removed,
                from: None,
            }],
            rescan: false,
        };
        let root = "/a".parse().unwrap();
        assert!(is_removed(&root, &removed("/a")));
        assert!(!is_removed(&root, &removed("/a/b")) && !is_removed(&root, &changes()));
    }

    #[test]
    fn a_line_has_the_kind_of_change_and_the_path() {
        let raw = b"created /a\xff\nrenamed /old -> /new\nrescan\n";
        assert_eq!(lines(&changes(), |path| Names::Raw.of(path)), raw);
        let shown = lines(&changes(), |path| Names::Escaped.of(path));
        assert!(shown.starts_with(b"created /a\\377\n"));
    }

    #[test]
    fn json_has_one_object_per_line() {
        let text = String::from_utf8(json_lines(&changes())).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], r#"{"kind":"created","path":"file:///a%FF"}"#);
        assert_eq!(lines[1], r#"{"from":"file:///old","kind":"renamed","path":"file:///new"}"#);
        assert_eq!(lines[2], r#"{"kind":"rescan"}"#);
    }
}
