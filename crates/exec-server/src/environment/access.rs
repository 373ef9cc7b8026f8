//! The file and HTTP operations of an environment. The first operation connects to its server.

use std::ffi::OsString;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{
    ExecServerError, HttpBody, NewFile, OpenFile, SearchResults, WatchEvents,
};
use exec_server_protocol::{
    DirectoryEntry, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsReadFileParams, FsReadLinkParams, FsRemoveParams, FsRenameParams,
    FsSearchParams, FsSetPermissionsParams, FsSymlinkParams, FsWalkParams, FsWalkResponse,
    FsWatchParams, FsWriteFileParams, FsWriteFileResponse, HttpRequestParams, HttpResponse,
    PathUri,
};

use super::file_system::ExecutorFileSystem;
use super::http::HttpClient;
use super::named::Environment;

/// Implements methods of a trait by forwarding to the client.
macro_rules! through {
    ($trait:ident { $($method:ident($params:ty) -> $result:ty;)* }) => {
        #[async_trait]
        impl $trait for Environment {
            $(
                async fn $method(&self, params: $params) -> Result<$result, ExecServerError> {
                    $trait::$method(&self.client().await?, params).await
                }
            )*
        }
    };
}

through! {
    ExecutorFileSystem {
        read_file(FsReadFileParams) -> Bytes;
        write_file(FsWriteFileParams) -> FsWriteFileResponse;
        create_directory(FsCreateDirectoryParams) -> ();
        metadata(FsGetMetadataParams) -> FsMetadata;
        canonicalize(FsCanonicalizeParams) -> PathUri;
        read_directory_page(FsReadDirectoryParams) -> FsReadDirectoryResponse;
        read_directory(FsReadDirectoryParams) -> Vec<DirectoryEntry>;
        walk(FsWalkParams) -> FsWalkResponse;
        glob(FsGlobParams) -> FsWalkResponse;
        remove(FsRemoveParams) -> ();
        copy(FsCopyParams) -> ();
        rename(FsRenameParams) -> ();
        symlink(FsSymlinkParams) -> ();
        read_link(FsReadLinkParams) -> OsString;
        set_permissions(FsSetPermissionsParams) -> ();
        open(FsOpenParams) -> OpenFile;
        create(FsCreateParams) -> NewFile;
        watch(FsWatchParams) -> WatchEvents;
        search(FsSearchParams) -> SearchResults;
    }
}

through! {
    HttpClient {
        request(HttpRequestParams) -> HttpResponse;
        request_streamed(HttpRequestParams) -> (HttpResponse, HttpBody);
    }
}
