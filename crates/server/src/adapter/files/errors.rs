//! What clients are told about operations on files that failed.

use exec_server_host::fs::FsError;
use exec_server_protocol::{ErrorCode, RpcError};
use std::io;

use super::pool::NoThread;

/// A later attempt may succeed.
pub(crate) fn no_thread(_: NoThread) -> RpcError {
    let message = "the server cannot start a thread for work on files; try again later";
    RpcError::internal(message).with_kind("outOfResources")
}

pub(super) fn to_rpc_error(error: FsError) -> RpcError {
    let message = error.to_string();
    let kinded = |code, kind: &str| RpcError::new(code, message.clone()).with_kind(kind);
    if error.is_out_of_resources() {
        return kinded(ErrorCode::InternalError, "outOfResources");
    }
    match error {
        FsError::Os { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => kinded(ErrorCode::NotFound, "notFound"),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                kinded(ErrorCode::InvalidRequest, "permissionDenied")
            }
            io::ErrorKind::AlreadyExists => kinded(ErrorCode::InvalidRequest, "conflict"),
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                kinded(ErrorCode::InvalidRequest, "wrongFileKind")
            }
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::ResourceBusy
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
        FsError::WrongKind { .. } | FsError::NamesDirectory { .. } => {
            kinded(ErrorCode::InvalidRequest, "wrongFileKind")
        }
        FsError::TooLarge { .. } => {
            let message = format!("{message}; read it in blocks with fs/open");
            RpcError::invalid_request(message).with_kind("fileTooLarge")
        }
        FsError::TooManyEntries { .. } => kinded(ErrorCode::InvalidRequest, "tooManyEntries"),
        FsError::Conflict { .. } => kinded(ErrorCode::InvalidRequest, "conflict"),
        FsError::Unsuitable { .. } | FsError::Leased { .. } => RpcError::invalid_request(message),
        FsError::NoWatches { .. } => kinded(ErrorCode::InternalError, "outOfResources"),
        FsError::Denied { .. } => kinded(ErrorCode::InvalidRequest, "sandboxDenied"),
    }
}

/// Of names or of text. No path is to blame.
pub(super) fn bad_pattern(why: &str) -> RpcError {
    RpcError::invalid_request(why).with_kind("badPattern")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_told_by_what_a_client_would_do_about_it() {
        let told = |number| {
            let source = io::Error::from_raw_os_error(number);
            let error = to_rpc_error(FsError::Os { action: "open", path: "/x".into(), source });
            (error.code, error.data.map(|data| data.kind))
        };
        let kinded = |code, kind: &str| (code, Some(kind.to_owned()));
        // ENOTDIR, EISDIR, EMFILE, ENFILE, ENOMEM, EBUSY, ENOTEMPTY, EIO, ENOENT
        for number in [20, 21] {
            assert_eq!(told(number), kinded(-32600, "wrongFileKind"));
        }
        for number in [24, 23, 12] {
            assert_eq!(told(number), kinded(-32603, "outOfResources"));
        }
        for number in [16, 39] {
            assert_eq!(told(number), (-32600, None));
        }
        assert_eq!(told(5), (-32603, None));
        assert_eq!(told(2), kinded(-32004, "notFound"));
    }

    #[test]
    fn watches_that_ran_out_are_not_a_disk_that_is_full() {
        let refused =
            to_rpc_error(FsError::NoWatches { limit: "sysctl fs.inotify.max_user_watches" });
        assert_eq!(refused.code, ErrorCode::InternalError.value());
        assert_eq!(refused.data.as_ref().unwrap().kind, "outOfResources");
        assert!(refused.message.contains("fs.inotify.max_user_watches"), "{refused:?}");
    }
}
