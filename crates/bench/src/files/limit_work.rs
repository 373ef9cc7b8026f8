//! The work of the minimal server for each request, and its responses as JSON text.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use memchr::memmem::Finder;

use super::request::PlainRequest;

/// The state of a connection: one open file, and reused buffers.
#[derive(Debug, Default)]
pub(super) struct Worker {
    open: Option<OpenFile>,
    content: Vec<u8>,
    answer: Vec<u8>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// The final path of a new file; closing the file renames its draft to this path.
    becomes: Option<PathBuf>,
}

impl Worker {
    pub(super) fn answer(&mut self, request: &PlainRequest<'_>) -> io::Result<&[u8]> {
        self.answer.clear();
        write!(self.answer, r#"{{"id":{},"result":{{"#, request.id)?;
        let path = Path::new(request.path);
        match request.verb {
            "stat" => self.stat(path)?,
            "read" => self.read(path)?,
            "write" => {
                self.decode(request.base64)?;
                self.write(path)?;
            }
            "open" => self.open = Some(OpenFile { file: File::open(path)?, becomes: None }),
            "pread" => self.read_block(request.offset, request.len)?,
            "create" => {
                let file = File::create(draft_of(path))?;
                self.open = Some(OpenFile { file, becomes: Some(path.to_owned()) });
            }
            "pwrite" => {
                self.decode(request.base64)?;
                self.opened()?.file.write_all_at(&self.content, request.offset)?;
            }
            "close" => self.close()?,
            "walk" => self.walk(path)?,
            "search" => self.search(path, request.text)?,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        self.answer.extend_from_slice(b"}}");
        Ok(&self.answer)
    }

    fn stat(&mut self, path: &Path) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        let (is_directory, is_file) = (metadata.is_dir(), metadata.is_file());
        write!(
            self.answer,
            r#""isDirectory":{is_directory},"isFile":{is_file},"isSymlink":false,"size":{},"createdAtMs":0,"modifiedAtMs":{}"#,
            metadata.size(),
            metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000,
        )
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        read_whole(path, &mut self.content)?;
        self.append_base64("dataBase64")
    }

    /// Writes a file, and truncates it to its new length afterwards. If a file is truncated to zero
    /// first, ext4 assumes that it is being replaced, and closing it flushes it to disk.
    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.write_all(&self.content)?;
        file.set_len(self.content.len() as u64)
    }

    fn read_block(&mut self, offset: u64, len: usize) -> io::Result<()> {
        self.content.resize(len, 0);
        let file = &self.open.as_ref().ok_or(io::ErrorKind::NotFound)?.file;
        let count = file.read_at(&mut self.content, offset)?;
        self.content.truncate(count);
        self.append_base64("chunk")
    }

    fn close(&mut self) -> io::Result<()> {
        let open = self.open.take().ok_or(io::ErrorKind::NotFound)?;
        let Some(path) = open.becomes else { return Ok(()) };
        open.file.sync_all()?;
        fs::rename(draft_of(&path), &path)?;
        File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?.sync_all()
    }

    fn walk(&mut self, root: &Path) -> io::Result<()> {
        self.answer.extend_from_slice(br#""entries":["#);
        let answer = &mut self.answer;
        let mut first = true;
        visit(root, &mut |path, is_directory| {
            if !std::mem::take(&mut first) {
                answer.push(b',');
            }
            answer.extend_from_slice(br#"{"path":"file://"#);
            answer.extend_from_slice(path.as_os_str().as_bytes());
            answer.extend_from_slice(match is_directory {
                true => br#"","kind":"directory"}"#,
                false => br#"","kind":"file"}"#,
            });
            Ok(())
        })?;
        self.answer.push(b']');
        Ok(())
    }

    /// Reads every file and counts the matches, without splitting lines.
    fn search(&mut self, root: &Path, text: &str) -> io::Result<()> {
        let finder = Finder::new(text);
        let content = &mut self.content;
        let mut matches = 0;
        visit(root, &mut |path, is_directory| {
            if !is_directory {
                read_whole(path, content)?;
                matches += finder.find_iter(content).count();
            }
            Ok(())
        })?;
        write!(self.answer, r#""matches":{matches}"#)
    }

    fn opened(&self) -> io::Result<&OpenFile> {
        self.open.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn decode(&mut self, base64: &[u8]) -> io::Result<()> {
        self.content.clear();
        base64_simd::STANDARD
            .decode_append(base64, &mut self.content)
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn append_base64(&mut self, member: &str) -> io::Result<()> {
        write!(self.answer, r#""{member}":""#)?;
        base64_simd::STANDARD.encode_append(&self.content, &mut self.answer);
        self.answer.push(b'"');
        Ok(())
    }
}

/// Reads the file into the buffer, which keeps its capacity for the next file.
fn read_whole(path: &Path, content: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.size();
    content.resize(usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?, 0);
    file.read_exact(content)
}

fn visit(
    directory: &Path,
    found: &mut impl FnMut(&Path, bool) -> io::Result<()>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, is_directory) = (entry.path(), entry.file_type()?.is_dir());
        found(&path, is_directory)?;
        if is_directory {
            visit(&path, found)?;
        }
    }
    Ok(())
}

fn draft_of(path: &Path) -> PathBuf {
    path.with_extension(OsStr::new("draft"))
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{
        FsMetadata, FsReadBlockResponse, FsReadFileResponse, FsWalkResponse, TreeEntryKind,
    };
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::files::request::Request;

    fn ask<T: DeserializeOwned>(worker: &mut Worker, request: Request<'_>) -> T {
        let mut text = Vec::new();
        request.write_plain(1, &mut text);
        let answer = worker.answer(&PlainRequest::parse(&text).unwrap()).unwrap();
        let mut answer: serde_json::Value = serde_json::from_slice(answer).unwrap();
        // Fields that only the real server sends.
        for (member, value) in
            [("errors", serde_json::json!([])), ("truncated", false.into()), ("eof", true.into())]
        {
            answer["result"][member] = value;
        }
        serde_json::from_value(answer["result"].take()).unwrap()
    }

    #[test]
    fn the_minimal_server_does_the_work_and_responds_in_the_protocol() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (root, a, b) = (path_of(""), path_of("a"), path_of("b"));
        let root = root.trim_end_matches('/');
        let mut worker = Worker::default();
        let _: serde_json::Value =
            ask(&mut worker, Request::WriteFile { path: &a, content: b"a needle" });
        let metadata: FsMetadata = ask(&mut worker, Request::Metadata { path: &a });
        assert_eq!((metadata.size, metadata.is_file), (8, true));
        let read: FsReadFileResponse = ask(&mut worker, Request::ReadFile { path: &a });
        assert_eq!(read.data_base64.into_bytes(), &b"a needle"[..]);

        let _: serde_json::Value = ask(&mut worker, Request::Create { path: &b });
        let _: serde_json::Value =
            ask(&mut worker, Request::WriteBlock { offset: 1, chunk: b"bc" });
        assert!(!Path::new(&b).exists());
        let _: serde_json::Value = ask(&mut worker, Request::Close);
        let _: serde_json::Value = ask(&mut worker, Request::Open { path: &b });
        let block: FsReadBlockResponse =
            ask(&mut worker, Request::ReadBlock { offset: 1, len: 10 });
        assert_eq!(block.chunk.into_bytes(), &b"bc"[..]);

        let tree: FsWalkResponse = ask(&mut worker, Request::Walk { path: root });
        let mut paths: Vec<_> = tree.entries.iter().map(|entry| entry.path.as_path()).collect();
        paths.sort_unstable();
        assert_eq!(paths, [Path::new(&a), Path::new(&b)]);
        assert!(tree.entries.iter().all(|entry| entry.kind == TreeEntryKind::File));
        let found: serde_json::Value =
            ask(&mut worker, Request::Search { path: root, text: "needle" });
        assert_eq!(found["matches"], 1);
    }
}
