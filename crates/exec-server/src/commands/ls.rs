//! `exec-server ls`: lists directories and files.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{
    DirectoryEntry, ErrorKind, FsGetMetadataParams, FsMetadata, FsReadDirectoryParams,
    FsReadLinkParams, FsReadLinkResponse, PathUri, SpecialFile,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::failures::Failures;
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::cli::files::Ls;
use crate::program::exit_code::ExitStatus;
use crate::target::remote_path::ServerPath;
use crate::terminal::{Names, json_line};

/// The number of symlinks whose targets are read concurrently.
const LINKS_AT_ONCE: usize = 16;

pub(super) async fn run(servers: &Servers<'_>, ls: &Ls) -> anyhow::Result<ExitStatus> {
    let mut failures = Failures::default();
    // As in ls(1): everything but directories comes first, sorted together.
    let (mut lone, mut directories) = (Vec::new(), Vec::new());
    for path in &ls.paths {
        match list(servers, ls, path).await {
            Ok(Listed::Lone(row)) => lone.push(row),
            Ok(Listed::Directory(rows)) => directories.push((&path.written, rows)),
            Err(error) => failures.tell(&path.written, &error),
        }
    }
    sort(&mut lone);
    if ls.json {
        lone.extend(directories.into_iter().flat_map(|(_, rows)| rows));
        return super::print_result(json_line(&json(&lone)).as_bytes(), failures.status());
    }
    let names = Names::for_stream(&io::stdout());
    let text_of = |rows: &[Row]| if ls.long { long(rows, names) } else { short(rows, names) };
    let mut text = text_of(&lone);
    for (written, rows) in directories {
        if ls.paths.len() > 1 {
            text.extend(if text.is_empty() { &b""[..] } else { b"\n" });
            text.extend(names.of(written));
            text.extend(b":\n");
        }
        text.extend(text_of(&rows));
    }
    super::print_result(&text, failures.status())
}

enum Listed {
    Lone(Row),
    Directory(Vec<Row>),
}

async fn list(servers: &Servers<'_>, ls: &Ls, written: &ServerPath) -> anyhow::Result<Listed> {
    let Located { client, path } = servers.locate(written).await?;
    let params = FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
    let found = client.fs_get_metadata(params).await;
    let is_directory = found.as_ref().is_ok_and(|found| found.is_directory);
    let name = written.written.clone();
    let mut rows: Vec<Row> = match found {
        Ok(_) if is_directory => {
            let shown = |row: &Row| ls.all || !row.is_hidden();
            let entries = entries(&client, path.clone()).await;
            entries.map_err(|error| without_path(&path, error))?.filter(shown).collect()
        }
        Ok(found) => {
            // As in ls(1): the long and JSON forms show the symlink itself, not its target.
            let is_told = found.is_symlink && (ls.long || ls.json);
            let link = if is_told { symlink(&client, &path).await } else { None };
            let row = link.unwrap_or_else(|| Row::of_lone(path, &found));
            vec![Row { name, ..row }]
        }
        Err(error) => {
            let dangling = match error.kind() {
                Some(ErrorKind::NotFound) => symlink(&client, &path).await,
                _ => None,
            };
            vec![Row { name, ..dangling.ok_or_else(|| without_path(&path, error))? }]
        }
    };
    sort(&mut rows);
    if ls.long || ls.json {
        rows = with_targets(&client, rows).await.context("cannot read the targets of symlinks")?;
    }
    Ok(match rows.pop() {
        Some(row) if !is_directory => Listed::Lone(row),
        last => Listed::Directory(rows.into_iter().chain(last).collect()),
    })
}

async fn entries(
    client: &ExecServerClient,
    path: PathUri,
) -> Result<impl Iterator<Item = Row> + use<>, ExecServerError> {
    let params = FsReadDirectoryParams { details: true, ..FsReadDirectoryParams::new(path) };
    let entries = client.list_directory(params).await?;
    Ok(entries.into_iter().filter_map(Row::of_entry))
}

/// Returns the row of a symlink, even a dangling one, from a listing of its directory, because
/// `fs/getMetadata` follows symlinks.
async fn symlink(client: &ExecServerClient, path: &PathUri) -> Option<Row> {
    let parent = PathUri::from_path(path.as_path().parent()?)?;
    let name = path.as_path().file_name()?;
    let mut entries = entries(client, parent).await.ok()?;
    entries.find(|row| row.name == name && row.kind == Kind::Symlink)
}

fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| a.name.cmp(&b.name));
}

#[derive(Debug, Clone)]
struct Row {
    name: OsString,
    path: PathUri,
    kind: Kind,
    mode: u32,
    size: u64,
    modified_at_ms: i64,
    /// The target of a symlink, if requested and readable.
    target: Option<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Symlink,
    Special(SpecialFile),
    Other,
}

impl Row {
    fn of_entry(entry: DirectoryEntry) -> Option<Self> {
        Some(Self {
            name: entry.path.as_path().file_name()?.to_owned(),
            kind: match (entry.is_symlink, entry.is_directory, entry.is_file) {
                (Some(true), ..) => Kind::Symlink,
                (_, true, _) => Kind::Directory,
                (_, _, true) => Kind::File,
                _ => entry.special.map_or(Kind::Other, Kind::Special),
            },
            mode: entry.mode.unwrap_or(0),
            size: entry.size.unwrap_or(0),
            modified_at_ms: entry.modified_at_ms.unwrap_or(0),
            path: entry.path,
            target: None,
        })
    }

    fn of_lone(path: PathUri, metadata: &FsMetadata) -> Self {
        Self {
            name: OsString::new(),
            path,
            kind: match metadata.special {
                _ if metadata.is_file => Kind::File,
                special => special.map_or(Kind::Other, Kind::Special),
            },
            mode: metadata.mode.unwrap_or(0),
            size: metadata.size,
            modified_at_ms: metadata.modified_at_ms,
            target: None,
        }
    }

    fn is_hidden(&self) -> bool {
        self.name.as_encoded_bytes().starts_with(b".")
    }
}

async fn with_targets(
    client: &ExecServerClient,
    rows: Vec<Row>,
) -> Result<Vec<Row>, ExecServerError> {
    let with_target = async |mut row: Row| {
        if row.kind == Kind::Symlink {
            let path = row.path.clone();
            let params = FsReadLinkParams { path, follow_symlinks: None, sandbox: None };
            match client.fs_read_link(params).await {
                Ok(response) => row.target = response.link_target().ok(),
                // For example, the symlink was removed or replaced after the listing.
                Err(ExecServerError::Server(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(row)
    };
    stream::iter(rows).map(with_target).buffered(LINKS_AT_ONCE).try_collect().await
}

fn short(rows: &[Row], names: Names) -> Vec<u8> {
    let mut text = Vec::new();
    for row in rows {
        text.extend(names.of(&row.name));
        text.push(b'\n');
    }
    text
}

fn long(rows: &[Row], names: Names) -> Vec<u8> {
    let width = rows.iter().map(|row| row.size.to_string().len()).max().unwrap_or(0);
    let mut text = Vec::new();
    for row in rows {
        let (mode, time) = (mode_string(row.kind, row.mode), time(row.modified_at_ms));
        text.extend(format!("{mode} {:>width$} {time} ", row.size).into_bytes());
        text.extend(names.of(&row.name));
        if let Some(target) = &row.target {
            text.extend(b" -> ");
            text.extend(names.of(target));
        }
        text.push(b'\n');
    }
    text
}

fn json(rows: &[Row]) -> Value {
    let object = |row: &Row| {
        let mut object = json!({
            "name": row.name.to_string_lossy(),
            "path": row.path,
            "type": match row.kind {
                Kind::Directory => json!("directory"),
                Kind::File => json!("file"),
                Kind::Symlink => json!("symlink"),
                Kind::Special(special) => json!(special),
                Kind::Other => json!("other"),
            },
            "mode": format!("{:04o}", row.mode),
            "size": row.size,
            "modifiedAtMs": row.modified_at_ms,
        });
        // As in fs/readLink: `target`, or `targetBase64` if it is not UTF-8.
        if let Some(target) = &row.target
            && let (Some(object), Ok(Value::Object(target))) =
                (object.as_object_mut(), serde_json::to_value(FsReadLinkResponse::new(target)))
        {
            object.extend(target);
        }
        object
    };
    rows.iter().map(object).collect()
}

/// Formats the mode as `ls -l` does.
fn mode_string(kind: Kind, mode: u32) -> String {
    let mut letters = String::with_capacity(10);
    letters.push(match kind {
        Kind::Directory => 'd',
        Kind::File => '-',
        Kind::Symlink => 'l',
        Kind::Special(SpecialFile::Fifo) => 'p',
        Kind::Special(SpecialFile::Socket) => 's',
        Kind::Special(SpecialFile::CharacterDevice) => 'c',
        Kind::Special(SpecialFile::BlockDevice) => 'b',
        Kind::Other => '?',
    });
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        let is_special = mode & special != 0;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & 1 != 0, is_special) {
            (true, true) => mark,
            (false, true) => mark.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// Formats a time in UTC, because the two machines may be in different time zones.
fn time(ms: i64) -> String {
    let distance = Duration::from_millis(ms.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if ms < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    // `humantime` formats only times from 1970 to 9999.
    let writable = time.filter(|_| (0..=253_402_300_799_000).contains(&ms));
    writable.map_or_else(
        || format!("{:<20}", "-"),
        |time| humantime::format_rfc3339_seconds(time).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn row(name: &[u8], kind: Kind, size: u64) -> Row {
        Row {
            name: OsStr::from_bytes(name).to_owned(),
            path: "/x".parse().unwrap(),
            kind,
            mode: 0o644,
            size,
            modified_at_ms: 1_000,
            target: None,
        }
    }

    #[test]
    fn modes_are_formatted_as_in_ls() {
        assert_eq!(mode_string(Kind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(Kind::File, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_string(Kind::File, 0o2640), "-rw-r-S---");
        assert_eq!(mode_string(Kind::Symlink, 0o777), "lrwxrwxrwx");
        assert_eq!(mode_string(Kind::Special(SpecialFile::Fifo), 0o644), "prw-r--r--");
        assert_eq!(mode_string(Kind::Other, 0), "?---------");
    }

    #[test]
    fn times_out_of_range_are_shown_as_a_dash() {
        assert_eq!(time(1_000), "1970-01-01T00:00:01Z");
        for odd in [-1, i64::MIN, i64::MAX] {
            assert_eq!(time(odd).trim_end(), "-");
            assert_eq!(time(odd).len(), time(0).len());
        }
    }

    #[test]
    fn columns_are_aligned_and_names_are_unchanged() {
        let mut link = row(b"l", Kind::Symlink, 3);
        link.target = Some("a b".into());
        let rows = [row(b"\xff\n", Kind::File, 1234), link];
        let expected = b"-rw-r--r-- 1234 1970-01-01T00:00:01Z \xff\n\nlrw-r--r--    3 1970-01-01T00:00:01Z l -> a b\n";
        assert_eq!(long(&rows, Names::Raw), expected);
        assert_eq!(short(&rows, Names::Escaped), b"\\377\\n\nl\n");
    }

    #[test]
    fn json_has_the_exact_target_of_a_link() {
        let with_target = |target: &[u8]| {
            let mut link = row(b"l", Kind::Symlink, 3);
            link.target = Some(OsStr::from_bytes(target).to_owned());
            json(&[link])[0].clone()
        };
        assert_eq!(with_target(b"a b")["target"], "a b");
        assert_eq!(with_target(b"a b").get("targetBase64"), None);
        let not_text = with_target(b"\xff/x");
        assert_eq!(not_text["targetBase64"], "/y94");
        assert_eq!(not_text.get("target"), None, "a lossy target would be wrong");
    }
}
