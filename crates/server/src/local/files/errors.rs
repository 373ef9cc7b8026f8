//! What clients are told about operations on files that failed.

use exec_server_host::fs::FsError;
use exec_server_protocol::{ErrorCode, RpcError};
use std::io;

pub(super) fn refusal(error: FsError) -> RpcError {
    let message = error.to_string();
    let kinded = |code, kind: &str| RpcError::new(code, message.clone()).with_kind(kind);
    match error {
        FsError::Os { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => kinded(ErrorCode::NotFound, "notFound"),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                kinded(ErrorCode::InvalidRequest, "permissionDenied")
            }
            io::ErrorKind::AlreadyExists => kinded(ErrorCode::InvalidRequest, "conflict"),
            io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::ExecutableFileBusy => RpcError::invalid_request(message),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                kinded(ErrorCode::InternalError, "storageFull")
            }
            // Not for want of room: to free some would not help.
            io::ErrorKind::FileTooLarge => kinded(ErrorCode::InvalidRequest, "fileSizeLimit"),
            _ => RpcError::internal(message),
        },
        FsError::Symlink { .. } => kinded(ErrorCode::InvalidRequest, "symlink"),
        FsError::WrongKind { .. } => kinded(ErrorCode::InvalidRequest, "wrongFileKind"),
        FsError::TooLarge { .. } => {
            let message = format!("{message}; read it in blocks with fs/open");
            RpcError::invalid_request(message).with_kind("fileTooLarge")
        }
        FsError::TooManyEntries { .. } => kinded(ErrorCode::InvalidRequest, "tooManyEntries"),
        FsError::Conflict { .. } => kinded(ErrorCode::InvalidRequest, "conflict"),
        FsError::Unsuitable { .. } | FsError::Leased { .. } => RpcError::invalid_request(message),
        FsError::Denied { .. } => kinded(ErrorCode::InvalidRequest, "sandboxDenied"),
    }
}
