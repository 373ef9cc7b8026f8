//! A regular file that is open for reading. It stays the same file even if its name is moved or
//! replaced.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::metadata::{self, Metadata};
use crate::fs::confinement::RequiredAccess;
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Symlinks};

#[derive(Debug)]
pub struct OpenFile {
    file: OwnedFd,
    path: PathBuf,
    metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub bytes: Vec<u8>,
    /// No bytes followed these when they were read. A growing file may have more later.
    pub eof: bool,
}

const MAX_OFFSET: u64 = i64::MAX as u64;
/// At least how much room a buffer gets at a time while it is unknown how much content is left.
const MIN_ROOM: usize = 4 << 10;
/// The largest buffer that is allocated in advance, whatever size a file reports.
const MAX_FORESIGHT: usize = 64 << 20;

impl OpenFile {
    pub fn open(path: &Path, symlinks: Symlinks) -> Result<Self, FsError> {
        let (node, metadata) = find(path, symlinks)?;
        if metadata.kind != FileKind::Regular {
            let (path, found) = (path.to_owned(), metadata.kind);
            return Err(FsError::WrongKind { path, found, wanted: "a regular file" });
        }
        // Some files below /proc and /sys claim to be regular, but block reads until an event
        // occurs.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = resolve::content("open", path, node.as_fd(), metadata.size, flags)?;
        Ok(Self { file, path: path.to_owned(), metadata })
    }

    /// Returns the metadata from when the file was opened.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `len` bytes from `offset`, fewer only at the end of the file.
    pub fn read_block(&self, offset: u64, len: usize) -> Result<Block, FsError> {
        let mut bytes = Vec::new();
        let eof = self.append(&mut bytes, offset, len)?;
        Ok(Block { bytes, eof })
    }

    /// Reads the whole file. Fails if it has, or had when it was opened, more than `max` bytes.
    /// Does not trust a smaller reported size: files below /proc report 0, and other files may
    /// grow.
    pub fn read_to_end(&self, max: u64) -> Result<Vec<u8>, FsError> {
        let too_large = || FsError::TooLarge { path: self.path.clone(), max };
        if self.metadata.size > max {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        let len = usize::try_from(max).unwrap_or(usize::MAX);
        if self.append(&mut bytes, 0, len)? { Ok(bytes) } else { Err(too_large()) }
    }

    /// Appends at most `max` bytes from `offset` to `buffer`. Returns whether they end at the end
    /// of the file.
    pub fn read_from(
        &self,
        offset: u64,
        buffer: &mut Vec<u8>,
        max: usize,
    ) -> Result<bool, FsError> {
        self.append(buffer, offset, max)
    }

    /// Appends at most `max` bytes that follow the content of `buffer`. Returns whether they end at
    /// the end of the file.
    pub fn read_more(&self, buffer: &mut Vec<u8>, max: usize) -> Result<bool, FsError> {
        let offset = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        self.append(buffer, offset, max)
    }

    /// Returns whether the appended bytes end at the end of the file. To learn that without a
    /// further call, one byte more than requested is read and dropped.
    fn append(&self, buffer: &mut Vec<u8>, offset: u64, len: usize) -> Result<bool, FsError> {
        let Some(room) = MAX_OFFSET.checked_sub(offset) else { return Ok(true) };
        let wanted = len.saturating_add(1).min(usize::try_from(room).unwrap_or(usize::MAX));
        buffer.reserve_exact(self.expected_room(offset).min(wanted));
        let start = buffer.len();
        loop {
            let have = buffer.len() - start;
            if have == wanted {
                buffer.truncate(start + len.min(have));
                return Ok(have <= len);
            }
            if buffer.len() == buffer.capacity() {
                buffer.reserve(MIN_ROOM);
            }
            let room = buffer.capacity() - buffer.len();
            match self.read_some(buffer, offset + have as u64, wanted - have) {
                Ok(0) => return Ok(true),
                // A short read that ends at the reported size is the end of the file.
                Ok(read) if read < room && self.is_size(offset, have + read) => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(FsError::os("read", &self.path)(errno)),
            }
        }
    }

    /// Returns the room for the content after `offset`, and one more byte to detect the end.
    fn expected_room(&self, offset: u64) -> usize {
        match self.metadata.size.saturating_sub(offset) {
            0 => MIN_ROOM,
            rest => usize::try_from(rest).map_or(MAX_FORESIGHT, |rest| rest.min(MAX_FORESIGHT) + 1),
        }
    }

    /// Whether the read ended at the size that the file had when it was opened. Files below /proc
    /// report 0, whatever they contain.
    fn is_size(&self, offset: u64, read: usize) -> bool {
        self.metadata.size > 0 && offset + read as u64 == self.metadata.size
    }

    /// Reads into the spare capacity of `buffer`, and drops any bytes beyond `max`.
    fn read_some(&self, buffer: &mut Vec<u8>, offset: u64, max: usize) -> Result<usize, Errno> {
        let end = buffer.len() + max;
        let read = rustix::io::pread(&self.file, spare_capacity(buffer), offset)?;
        buffer.truncate(end);
        Ok(read)
    }
}

/// Opens the file at a path with `O_PATH` and returns its metadata, with `is_symlink` set if the
/// name itself is a symlink. Most paths do not end in a symlink; then one lookup is enough.
pub(in crate::fs) fn find(path: &Path, symlinks: Symlinks) -> Result<(OwnedFd, Metadata), FsError> {
    let look = |node: OwnedFd| {
        let metadata = metadata::of_descriptor(node.as_fd(), path)?;
        Ok((node, metadata))
    };
    if symlinks == Symlinks::Refuse {
        return look(resolve::node(path, symlinks, RequiredAccess::Read)?);
    }
    let (own, metadata) = look(resolve::own_node(path, RequiredAccess::Read)?)?;
    if metadata.kind != FileKind::Symlink {
        return Ok((own, metadata));
    }
    let (target, metadata) = look(resolve::node(path, symlinks, RequiredAccess::Read)?)?;
    Ok((target, Metadata { is_symlink: true, ..metadata }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, content).unwrap();
        (root, path)
    }

    fn open(path: &Path) -> OpenFile {
        OpenFile::open(path, Symlinks::Follow).unwrap()
    }

    #[test]
    fn blocks_report_the_end_of_the_file() {
        let (_root, path) = file(b"0123456789");
        let file = open(&path);
        for (offset, len, bytes, eof) in [
            (0, 4, &b"0123"[..], false),
            (4, 5, b"45678", false),
            (4, 6, b"456789", true),
            (4, 7, b"456789", true),
            (9, 0, b"", false),
            (10, 0, b"", true),
            (10, 1, b"", true),
            (0, usize::MAX, b"0123456789", true),
            (1 << 40, 1, b"", true),
            (MAX_OFFSET - 1, 10, b"", true),
            (MAX_OFFSET, 1, b"", true),
            (u64::MAX, usize::MAX, b"", true),
        ] {
            let block = file.read_block(offset, len).unwrap();
            assert_eq!((&block.bytes[..], block.eof), (bytes, eof), "{offset} {len}");
        }
    }

    #[test]
    fn the_end_is_determined_at_each_read() {
        let (_root, path) = file(b"ab");
        let reader = open(&path);
        assert!(reader.read_block(0, 2).unwrap().eof);
        let mut writer = File::options().append(true).open(&path).unwrap();
        writer.write_all(&[b'c'; 100_000]).unwrap();
        assert!(!reader.read_block(0, 2).unwrap().eof);
        assert_eq!(reader.metadata().size, 2);
        assert_eq!(reader.read_to_end(200_000).unwrap().len(), 100_002);
        let error = reader.read_to_end(100_001).unwrap_err();
        assert!(matches!(error, FsError::TooLarge { max: 100_001, .. }), "{error}");
        assert_eq!(reader.read_to_end(100_002).unwrap().len(), 100_002);
    }

    #[test]
    fn read_more_continues_after_the_buffered_content() {
        let content: Vec<u8> = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
        let (_root, path) = file(&content);
        let file = open(&path);
        let mut buffer = Vec::new();
        assert!(!file.read_more(&mut buffer, 7).unwrap());
        assert_eq!(buffer.len(), 7);
        assert!(!file.read_more(&mut buffer, 0).unwrap());
        assert!(file.read_more(&mut buffer, 299_993).unwrap());
        assert_eq!(buffer, content);
        assert!(file.read_more(&mut buffer, 0).unwrap());
        assert!(file.read_more(&mut buffer, 100).unwrap());
        assert_eq!(buffer, content);
    }

    #[test]
    fn proc_files_have_content_despite_size_zero() {
        let status = open(Path::new("/proc/self/status"));
        assert_eq!(status.metadata().size, 0);
        let content = status.read_to_end(1 << 20).unwrap();
        assert!(content.starts_with(b"Name:"), "{:?}", String::from_utf8_lossy(&content));
        assert!(matches!(status.read_to_end(10), Err(FsError::TooLarge { max: 10, .. })));
        assert!(!status.read_block(0, 10).unwrap().eof);
    }

    #[test]
    fn a_sparse_file_reads_as_zeros_without_reading_all_of_it() {
        let (_root, path) = file(b"");
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let file = open(&path);
        let block = file.read_block(1 << 39, 1 << 20).unwrap();
        assert!(block.bytes.len() == 1 << 20 && !block.eof);
        assert!(block.bytes.iter().all(|&byte| byte == 0));
        assert!(
            file.read_block((1 << 40) - 5, 10).unwrap() == Block { bytes: vec![0; 5], eof: true }
        );
        assert!(matches!(file.read_to_end(47 << 20), Err(FsError::TooLarge { .. })));
    }

    #[test]
    fn an_open_file_survives_the_replacement_of_its_name() {
        let (root, path) = file(b"old");
        let link = root.path().join("link");
        symlink("file", &link).unwrap();
        let reader = open(&link);
        assert!(reader.metadata().is_symlink);
        assert!(!open(&path).metadata().is_symlink);
        std::fs::write(root.path().join("new"), "new").unwrap();
        std::fs::rename(root.path().join("new"), &path).unwrap();
        assert_eq!(reader.read_to_end(10).unwrap(), b"old");
        assert_eq!(reader.path(), link);
        let refused = OpenFile::open(&link, Symlinks::Refuse).unwrap_err();
        assert!(matches!(refused, FsError::Symlink { .. }), "{refused}");
    }
}
