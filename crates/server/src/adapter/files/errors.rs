//! Converts failed file operations to errors of the protocol.

use exec_server_host::fs::FsError;
use exec_server_protocol::{ErrorCode, ErrorKind, ErrorSubject, PathUri, RpcError};
use std::io;

pub(super) fn no_thread() -> RpcError {
    let message = "the server cannot start a thread for file operations; try again later";
    RpcError::internal(message).with_kind(ErrorKind::OutOfResources)
}

pub(super) fn to_rpc_error(error: FsError) -> RpcError {
    let subject = error.path().and_then(PathUri::from_path).map(ErrorSubject::Path);
    let reason = error.reason();
    let told = coded(error);
    match subject {
        Some(subject) => told.with_subject(subject, reason),
        None => told,
    }
}

fn coded(error: FsError) -> RpcError {
    let message = error.to_string();
    let kinded = |code, kind| RpcError::new(code, message.clone()).with_kind(kind);
    if error.is_out_of_resources() {
        return kinded(ErrorCode::InternalError, ErrorKind::OutOfResources);
    }
    match error {
        FsError::Os { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => kinded(ErrorCode::NotFound, ErrorKind::NotFound),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                kinded(ErrorCode::InvalidRequest, ErrorKind::PermissionDenied)
            }
            io::ErrorKind::AlreadyExists => kinded(ErrorCode::InvalidRequest, ErrorKind::Conflict),
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                kinded(ErrorCode::InvalidRequest, ErrorKind::WrongFileKind)
            }
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::ExecutableFileBusy => RpcError::invalid_request(message),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                kinded(ErrorCode::InternalError, ErrorKind::StorageFull)
            }
            // Not a lack of space: freeing some would not help.
            io::ErrorKind::FileTooLarge => {
                kinded(ErrorCode::InvalidRequest, ErrorKind::FileSizeLimit)
            }
            _ => RpcError::internal(message),
        },
        FsError::Symlink { .. } => kinded(ErrorCode::InvalidRequest, ErrorKind::Symlink),
        FsError::WrongKind { .. } | FsError::NamesDirectory { .. } => {
            kinded(ErrorCode::InvalidRequest, ErrorKind::WrongFileKind)
        }
        FsError::TooLarge { .. } => {
            let message = format!("{message}; read it in blocks with fs/open");
            RpcError::invalid_request(message).with_kind(ErrorKind::FileTooLarge)
        }
        FsError::TooManyEntries { .. } => {
            let message = format!("{message}; set limit to read the directory in pages");
            RpcError::invalid_request(message).with_kind(ErrorKind::TooManyEntries)
        }
        FsError::Conflict { .. } => kinded(ErrorCode::InvalidRequest, ErrorKind::Conflict),
        FsError::Unsuitable { .. } | FsError::Leased { .. } => RpcError::invalid_request(message),
        FsError::NoWatches { .. } => kinded(ErrorCode::InternalError, ErrorKind::OutOfResources),
        FsError::Denied { .. } => kinded(ErrorCode::InvalidRequest, ErrorKind::SandboxDenied),
    }
}

pub(super) fn bad_pattern(why: &str) -> RpcError {
    RpcError::invalid_request(why).with_kind(ErrorKind::BadPattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_mapped_by_what_a_client_can_do_about_them() {
        let told = |number| {
            let source = io::Error::from_raw_os_error(number);
            let error = to_rpc_error(FsError::Os { action: "open", path: "/x".into(), source });
            (error.code, error.kind().cloned())
        };
        let kinded = |code, kind| (code, Some(kind));
        // ENOTDIR, EISDIR, EMFILE, ENFILE, ENOMEM, EBUSY, ENOTEMPTY, EIO, ENOENT
        for number in [20, 21] {
            assert_eq!(told(number), kinded(-32600, ErrorKind::WrongFileKind));
        }
        for number in [24, 23, 12] {
            assert_eq!(told(number), kinded(-32603, ErrorKind::OutOfResources));
        }
        for number in [16, 39] {
            assert_eq!(told(number), (-32600, None));
        }
        assert_eq!(told(5), (-32603, None));
        assert_eq!(told(2), kinded(-32004, ErrorKind::NotFound));
    }

    #[test]
    fn exhausted_watches_are_not_reported_as_a_full_disk() {
        let refused =
            to_rpc_error(FsError::NoWatches { limit: "sysctl fs.inotify.max_user_watches" });
        assert_eq!(refused.code, ErrorCode::InternalError.value());
        assert_eq!(refused.kind(), Some(&ErrorKind::OutOfResources));
        assert!(refused.message.contains("fs.inotify.max_user_watches"), "{refused:?}");
    }
}
