//! Names in directories and trees: calls whose responses may be large. They block.

use std::ffi::OsStr;
use std::num::NonZeroUsize;

use exec_server_host::fs::{self, CancelFlag, Entry, EntryTypes, FileKind, FsError, glob};
use exec_server_protocol::{
    DirectoryEntry, ErrorKind, FsGlobParams, FsReadDirectoryParams, FsReadDirectoryResponse,
    FsWalkParams, FsWalkResponse, PathUri, RpcError, TreeEntry, TreeEntryKind, TreeError,
    WalkOptions, rpc,
};

use super::errors::{bad_pattern, to_rpc_error};
use super::executor::PolicyScoped;
use super::operations::{FileCall, special, uri};

/// Maximum size of the response to `fs/readDirectory`. Limiting the number of names is not enough:
/// non-ASCII paths are three times as long on the wire, and fifty thousand long ones would exceed
/// the largest message.
const MAX_LISTING_BYTES: usize = 32 << 20;
/// Approximate maximum size of the response to a walk.
const MAX_WALK_BYTES: usize = 4 << 20;
/// Allowance for the parts of a walk's response that are not counted.
const WALK_SLACK: usize = 2 << 20;
/// A response up to this size needs no reservation.
const SMALL_BYTES: usize = 32 << 10;
/// Approximate number of names in a small response.
const SMALL_ENTRIES: usize = 128;
/// Size of an entry in JSON without its name and path.
const MEMBER_BYTES: usize = 80;
/// Additional size of an entry with details.
const DETAIL_BYTES: usize = 110;
const SPECIAL_BYTES: usize = 32;

/// A call whose response may be so large that it first needs a reservation.
pub(crate) trait LargeFileCall: FileCall + 'static {
    /// Approximate size of the largest response.
    const LARGEST_ANSWER: usize;

    /// Returns the response if it is small, and `None` as soon as it is not.
    fn run_bounded(
        params: &Self::Params,
        stop: &CancelFlag,
    ) -> Result<Option<Self::Response>, RpcError>;
}

impl FileCall for rpc::FsReadDirectory {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsReadDirectoryParams>,
        _: &CancelFlag,
    ) -> Result<FsReadDirectoryResponse, RpcError> {
        let types = entry_types(&params);
        if let Some(limit) = page_limit(&params)? {
            let after = page_start(&params)?;
            return page(&params, types, after, limit, MAX_LISTING_BYTES);
        }
        let max = usize::try_from(params.most_entries()).unwrap_or(usize::MAX);
        let entries =
            fs::read_directory(params.path.as_path(), types, max).map_err(to_rpc_error)?;
        let mut listing = Listing::new(&params.path, MAX_LISTING_BYTES);
        match entries.iter().try_for_each(|entry| listing.push(entry)) {
            Ok(()) => Ok(FsReadDirectoryResponse { entries: listing.entries, next: None }),
            Err(NotTaken::Refused(error)) => Err(error),
            Err(NotTaken::Full) => {
                let path = params.path.as_path().display();
                let message = format!(
                    "the names in {path} take more than {} MiB; set limit to read the directory in \
                     pages",
                    MAX_LISTING_BYTES >> 20
                );
                Err(RpcError::invalid_request(message).with_kind(ErrorKind::TooManyEntries))
            }
        }
    }
}

impl LargeFileCall for rpc::FsReadDirectory {
    const LARGEST_ANSWER: usize = MAX_LISTING_BYTES;

    fn run_bounded(
        params: &FsReadDirectoryParams,
        _: &CancelFlag,
    ) -> Result<Option<FsReadDirectoryResponse>, RpcError> {
        let limit = page_limit(params)?;
        // A request for a further page means that the directory is large.
        if page_start(params)?.is_some() {
            return Ok(None);
        }
        let few = limit.map_or(SMALL_ENTRIES, |limit| limit.get().min(SMALL_ENTRIES));
        let entries = match fs::read_directory(params.path.as_path(), entry_types(params), few) {
            Ok(entries) => entries,
            Err(FsError::TooManyEntries { .. }) => return Ok(None),
            Err(error) => return Err(to_rpc_error(error)),
        };
        let mut listing = Listing::new(&params.path, SMALL_BYTES);
        match entries.iter().try_for_each(|entry| listing.push(entry)) {
            Ok(()) => Ok(Some(FsReadDirectoryResponse { entries: listing.entries, next: None })),
            Err(NotTaken::Full) => Ok(None),
            Err(NotTaken::Refused(error)) => Err(error),
        }
    }
}

fn entry_types(params: &FsReadDirectoryParams) -> EntryTypes {
    if params.details { EntryTypes::Own } else { EntryTypes::Followed }
}

/// Returns `None` if the whole directory is requested.
fn page_limit(params: &FsReadDirectoryParams) -> Result<Option<NonZeroUsize>, RpcError> {
    if params.limit.is_none() && params.after.is_none() {
        return Ok(None);
    }
    limit_of(&params.path, "limit", params.limit, params.most_entries()).map(Some)
}

fn page_start(params: &FsReadDirectoryParams) -> Result<Option<&OsStr>, RpcError> {
    let Some(after) = &params.after else { return Ok(None) };
    let nameless = || {
        let after = after.as_path().display();
        RpcError::invalid_request(format!("after: {after} does not end in a file name"))
    };
    after.as_path().file_name().ok_or_else(nameless).map(Some)
}

fn page(
    params: &FsReadDirectoryParams,
    types: EntryTypes,
    after: Option<&OsStr>,
    limit: NonZeroUsize,
    max_bytes: usize,
) -> Result<FsReadDirectoryResponse, RpcError> {
    let directory = params.path.as_path();
    let page = fs::read_directory_page(directory, types, after, limit).map_err(to_rpc_error)?;
    let mut listing = Listing::new(&params.path, max_bytes);
    let taken = page.entries.iter().try_for_each(|entry| listing.push(entry));
    let next = match taken {
        Ok(()) => page.last.map(|last| uri(&directory.join(last))).transpose()?,
        // The page ends before the entry that did not fit.
        Err(NotTaken::Full) => listing.entries.last().map(|entry| entry.path.clone()),
        Err(NotTaken::Refused(error)) => return Err(error),
    };
    Ok(FsReadDirectoryResponse { entries: listing.entries, next })
}

/// The entries of one directory in wire form, and the size of their text.
struct Listing<'a> {
    directory: &'a PathUri,
    directory_bytes: usize,
    max_bytes: usize,
    bytes: usize,
    entries: Vec<DirectoryEntry>,
}

enum NotTaken {
    Full,
    Refused(RpcError),
}

impl<'a> Listing<'a> {
    fn new(directory: &'a PathUri, max_bytes: usize) -> Self {
        let directory_bytes = directory.encoded_len() + "/".len();
        Self { directory, directory_bytes, max_bytes, bytes: 0, entries: Vec::new() }
    }

    /// The first entry always fits.
    fn push(&mut self, entry: &Entry) -> Result<(), NotTaken> {
        let file_name = entry.name.to_string_lossy();
        let detail_bytes = entry.details.map_or(0, |_| DETAIL_BYTES);
        let special = entry.details.and_then(|_| special(entry.kind));
        let special_bytes = special.map_or(0, |_| SPECIAL_BYTES);
        self.bytes += MEMBER_BYTES + detail_bytes + special_bytes + json_len(&file_name);
        self.bytes += self.directory_bytes + PathUri::encoded_len_of(&entry.name);
        if self.bytes > self.max_bytes && !self.entries.is_empty() {
            return Err(NotTaken::Full);
        }
        let path = uri(&self.directory.as_path().join(&entry.name)).map_err(NotTaken::Refused)?;
        self.entries.push(DirectoryEntry {
            path,
            file_name: file_name.into_owned(),
            is_directory: entry.kind == FileKind::Directory,
            is_file: entry.kind == FileKind::Regular,
            is_symlink: entry.details.map(|_| entry.is_symlink),
            mode: entry.details.map(|details| details.mode),
            size: entry.details.map(|details| details.size),
            modified_at_ms: entry.details.map(|details| details.modified_at_ms),
            special,
        });
        Ok(())
    }
}

/// Returns an upper bound on the length of the text in JSON, without its quotes.
fn json_len(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        0..0x20 => "\\u0000".len(),
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}

impl FileCall for rpc::FsWalk {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsWalkParams>,
        stop: &CancelFlag,
    ) -> Result<FsWalkResponse, RpcError> {
        walk(&params, MAX_WALK_BYTES, stop)
    }
}

impl LargeFileCall for rpc::FsWalk {
    const LARGEST_ANSWER: usize = MAX_WALK_BYTES + WALK_SLACK;

    fn run_bounded(
        params: &FsWalkParams,
        stop: &CancelFlag,
    ) -> Result<Option<FsWalkResponse>, RpcError> {
        Ok(Some(walk(params, SMALL_BYTES, stop)?).filter(|found| !found.truncated))
    }
}

fn walk(
    params: &FsWalkParams,
    max_bytes: usize,
    stop: &CancelFlag,
) -> Result<FsWalkResponse, RpcError> {
    let (path, options) = (&params.path, &params.options);
    let max_depth = bound(path, "maxDepth", options.max_depth, WalkOptions::MAX_DEPTH)?;
    let most_directories = WalkOptions::MAX_DIRECTORIES;
    let max_directories =
        limit_of(path, "maxDirectories", options.max_directories, most_directories)?.get();
    let most_entries = WalkOptions::MAX_ENTRIES;
    let max_entries = limit_of(path, "maxEntries", options.max_entries, most_entries)?.get();
    let options = fs::WalkOptions {
        max_depth,
        max_directories,
        max_entries,
        max_bytes,
        follow_directory_symlinks: options.follow_directory_symlinks,
        prune_hidden_directories: options.prune_hidden_directories,
    };
    wire_tree(fs::walk(path.as_path(), &options, stop).map_err(to_rpc_error)?)
}

impl FileCall for rpc::FsGlob {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsGlobParams>,
        stop: &CancelFlag,
    ) -> Result<FsWalkResponse, RpcError> {
        find(&params, MAX_WALK_BYTES, stop)
    }
}

impl LargeFileCall for rpc::FsGlob {
    const LARGEST_ANSWER: usize = MAX_WALK_BYTES + WALK_SLACK;

    fn run_bounded(
        params: &FsGlobParams,
        stop: &CancelFlag,
    ) -> Result<Option<FsWalkResponse>, RpcError> {
        Ok(Some(find(params, SMALL_BYTES, stop)?).filter(|found| !found.truncated))
    }
}

fn find(
    params: &FsGlobParams,
    max_bytes: usize,
    stop: &CancelFlag,
) -> Result<FsWalkResponse, RpcError> {
    let path = &params.path;
    let most_entries = WalkOptions::MAX_ENTRIES;
    let options = glob::GlobOptions {
        max_entries: limit_of(path, "maxEntries", params.max_entries, most_entries)?.get(),
        max_bytes,
        patterns: params.patterns.clone(),
        hidden: params.hidden,
        ignored: params.ignored,
    };
    match glob::glob(path.as_path(), &options, stop) {
        Ok(tree) => wire_tree(tree),
        Err(glob::GlobError::Fs(error)) => Err(to_rpc_error(error)),
        Err(error) => Err(bad_pattern(&error.to_string())),
    }
}

fn bound(path: &PathUri, name: &str, asked: Option<u64>, most: u64) -> Result<usize, RpcError> {
    let bound = asked.unwrap_or(most);
    if bound > most {
        let path = path.as_path().display();
        let message = format!("{path}: {name} {bound} exceeds the limit of {most}");
        return Err(RpcError::invalid_request(message));
    }
    Ok(usize::try_from(bound).unwrap_or(usize::MAX))
}

fn limit_of(
    path: &PathUri,
    name: &str,
    asked: Option<u64>,
    most: u64,
) -> Result<NonZeroUsize, RpcError> {
    NonZeroUsize::new(bound(path, name, asked, most)?).ok_or_else(|| {
        let path = path.as_path().display();
        RpcError::invalid_request(format!("{path}: {name} must be at least 1"))
    })
}

fn wire_tree(tree: fs::Tree) -> Result<FsWalkResponse, RpcError> {
    let entries = tree.entries.into_iter().map(|entry| {
        let kind = match entry.kind {
            fs::TreeKind::Directory => TreeEntryKind::Directory,
            fs::TreeKind::File => TreeEntryKind::File,
        };
        Ok(TreeEntry { path: uri(&entry.path)?, kind })
    });
    let errors = tree
        .errors
        .into_iter()
        .map(|error| Ok(TreeError { path: uri(&error.path)?, message: error.message }));
    Ok(FsWalkResponse {
        entries: entries.collect::<Result<_, RpcError>>()?,
        errors: errors.collect::<Result<_, RpcError>>()?,
        truncated: tree.truncated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use exec_server_host::fs::EntryDetails;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn the_counted_size_of_a_listing_is_a_close_upper_bound() {
        let names: [&[u8]; 5] =
            [b"plain.txt", b"\x01\n\t\"\\", b"\xff\xfe", "プロジェクト".as_bytes(), b"a b"];
        for details in
            [None, Some(EntryDetails { mode: 0o7777, size: u64::MAX, modified_at_ms: i64::MIN })]
        {
            let directory: PathUri = "/dev/shm/資料".parse().unwrap();
            let mut listing = Listing::new(&directory, usize::MAX);
            let kinds = [FileKind::Regular, FileKind::CharacterDevice].into_iter().cycle();
            for (name, kind) in names.into_iter().zip(kinds) {
                let name = OsStr::from_bytes(name).to_owned();
                let entry = Entry { name, kind, is_symlink: false, details };
                assert!(listing.push(&entry).is_ok());
            }
            let counted = listing.bytes;
            let text = serde_json::to_string(&listing.entries).unwrap().len();
            assert!(text <= counted, "{text} bytes, {counted} counted");
            assert!(counted <= text + 80 * names.len(), "{text} bytes, {counted} counted");
        }
    }

    #[test]
    fn a_listing_stops_at_its_limit_and_is_never_empty() {
        let directory: PathUri = "/d".parse().unwrap();
        let entry = |name: &str| Entry {
            name: name.into(),
            kind: FileKind::Regular,
            is_symlink: false,
            details: None,
        };
        let mut listing = Listing::new(&directory, 1);
        assert!(listing.push(&entry("a")).is_ok());
        assert!(matches!(listing.push(&entry("b")), Err(NotTaken::Full)));
        assert_eq!(listing.entries.len(), 1);
    }
}
