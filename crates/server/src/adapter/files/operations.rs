//! Methods that consist of one call to the host: params in, result out. They block.

use std::path::Path;

use exec_server_host::fs::{self, CancelFlag, FileKind, Symlinks};
use exec_server_protocol::{
    Empty, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsGetMetadataParams,
    FsMetadata, FsPathResponse, FsReadLinkParams, FsReadLinkResponse, FsRemoveParams,
    FsRenameParams, FsSetPermissionsParams, FsSymlinkParams, FsWriteFileParams,
    FsWriteFileResponse, PathUri, Rpc, RpcError, SpecialFile, WriteCondition, recycle, rpc,
};

use super::errors::to_rpc_error;
use super::executor::{PolicyScoped, Sandboxed};

const MAX_MODE: u32 = 0o7777;

pub(crate) trait FileCall:
    Rpc<Params: Sandboxed + Send + 'static, Response: Send + 'static>
{
    /// Long work checks `stop` periodically.
    fn run(
        scoped: PolicyScoped<Self::Params>,
        stop: &CancelFlag,
    ) -> Result<Self::Response, RpcError>;
}

impl FileCall for rpc::FsWriteFile {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsWriteFileParams>,
        _: &CancelFlag,
    ) -> Result<FsWriteFileResponse, RpcError> {
        check_mode(&params.path, params.mode)?;
        let condition = params.condition();
        let options = fs::WriteOptions {
            symlinks: symlinks(params.follow_symlinks),
            atomic: params.atomic,
            mode: params.mode,
            condition: host_condition(condition),
        };
        let written = fs::write_file(params.path.as_path(), &params.data_base64, &options);
        recycle(params.data_base64.into_bytes());
        let written = written.map_err(to_rpc_error)?;
        Ok(match condition.is_none() {
            true => FsWriteFileResponse::default(),
            false => FsWriteFileResponse {
                modified_at_ms: Some(written.modified_at_ms),
                size: Some(written.size),
            },
        })
    }
}

impl FileCall for rpc::FsCreateDirectory {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsCreateDirectoryParams>,
        _: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        let recursive = params.recursive.unwrap_or(true);
        let symlinks = symlinks(params.follow_symlinks);
        done(fs::create_directory(params.path.as_path(), recursive, symlinks))
    }
}

impl FileCall for rpc::FsGetMetadata {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsGetMetadataParams>,
        _: &CancelFlag,
    ) -> Result<FsMetadata, RpcError> {
        let found = fs::metadata(params.path.as_path(), symlinks(params.follow_symlinks));
        found.map(|metadata| wire_metadata(&metadata)).map_err(to_rpc_error)
    }
}

impl FileCall for rpc::FsCanonicalize {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsCanonicalizeParams>,
        _: &CancelFlag,
    ) -> Result<FsPathResponse, RpcError> {
        let path = fs::canonicalize(params.path.as_path()).map_err(to_rpc_error)?;
        Ok(FsPathResponse { path: uri(&path)? })
    }
}

impl FileCall for rpc::FsRemove {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsRemoveParams>,
        stop: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        let options = fs::RemoveOptions {
            recursive: params.recursive.unwrap_or(true),
            force: params.force.unwrap_or(true),
            symlinks: symlinks(params.follow_symlinks),
        };
        done(fs::remove(params.path.as_path(), &options, stop))
    }
}

impl FileCall for rpc::FsCopy {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsCopyParams>,
        stop: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        let (source, destination) =
            (params.source_path.as_path(), params.destination_path.as_path());
        done(fs::copy(source, destination, params.recursive, stop))
    }
}

impl FileCall for rpc::FsRename {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsRenameParams>,
        _: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        let (source, destination) =
            (params.source_path.as_path(), params.destination_path.as_path());
        let replace = match params.replace.unwrap_or(true) {
            true => fs::Replace::Yes,
            false => fs::Replace::No,
        };
        done(fs::rename(source, destination, replace, symlinks(params.follow_symlinks)))
    }
}

impl FileCall for rpc::FsSymlink {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsSymlinkParams>,
        _: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        let target = params.link_target().map_err(|error| {
            let path = params.path.as_path().display();
            RpcError::invalid_request(format!("{path}: {error}"))
        })?;
        done(fs::symlink(&target, params.path.as_path(), symlinks(params.follow_symlinks)))
    }
}

impl FileCall for rpc::FsReadLink {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsReadLinkParams>,
        _: &CancelFlag,
    ) -> Result<FsReadLinkResponse, RpcError> {
        let target = fs::read_link(params.path.as_path(), symlinks(params.follow_symlinks));
        target.map(|target| FsReadLinkResponse::new(&target)).map_err(to_rpc_error)
    }
}

impl FileCall for rpc::FsSetPermissions {
    fn run(
        PolicyScoped { params, .. }: PolicyScoped<FsSetPermissionsParams>,
        _: &CancelFlag,
    ) -> Result<Empty, RpcError> {
        check_mode(&params.path, Some(params.mode))?;
        let symlinks = symlinks(params.follow_symlinks);
        done(fs::set_permissions(params.path.as_path(), params.mode, symlinks))
    }
}

pub(super) fn symlinks(follow: Option<bool>) -> Symlinks {
    match follow {
        Some(false) => Symlinks::Refuse,
        Some(true) | None => Symlinks::Follow,
    }
}

pub(super) fn host_condition(condition: WriteCondition) -> fs::Condition {
    let WriteCondition { modified_at_ms, size, create_new } = condition;
    fs::Condition { modified_at_ms, size, create_new }
}

pub(super) fn check_mode(path: &PathUri, mode: Option<u32>) -> Result<(), RpcError> {
    match mode {
        Some(mode) if mode > MAX_MODE => {
            let path = path.as_path().display();
            Err(RpcError::invalid_request(format!("{path}: mode {mode:#o} exceeds {MAX_MODE:#o}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn wire_metadata(metadata: &fs::Metadata) -> FsMetadata {
    FsMetadata {
        is_directory: metadata.kind == FileKind::Directory,
        is_file: metadata.kind == FileKind::Regular,
        is_symlink: metadata.is_symlink,
        size: metadata.size,
        created_at_ms: metadata.created_at_ms,
        modified_at_ms: metadata.modified_at_ms,
        mode: Some(metadata.mode),
        special: special(metadata.kind),
    }
}

pub(super) fn special(kind: FileKind) -> Option<SpecialFile> {
    match kind {
        FileKind::Fifo => Some(SpecialFile::Fifo),
        FileKind::Socket => Some(SpecialFile::Socket),
        FileKind::CharacterDevice => Some(SpecialFile::CharacterDevice),
        FileKind::BlockDevice => Some(SpecialFile::BlockDevice),
        FileKind::Regular | FileKind::Directory | FileKind::Symlink | FileKind::Unknown => None,
    }
}

pub(super) fn uri(path: &Path) -> Result<PathUri, RpcError> {
    PathUri::from_path(path)
        .ok_or_else(|| RpcError::internal(format!("{} is not an absolute path", path.display())))
}

fn done(outcome: Result<(), fs::FsError>) -> Result<Empty, RpcError> {
    outcome.map(|()| Empty {}).map_err(to_rpc_error)
}
