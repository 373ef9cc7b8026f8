//! A marker file beside a directory that a copy creates under a new name. It says that the copy is
//! unfinished.
//!
//! By the rules of cp(1), repeating the command would copy into the directory, which now exists.
//! With the marker the command resumes filling it. The marker is written before the directory is
//! created and removed after everything else, so it exists whenever the copy was interrupted, even
//! by `kill -9`. Its name depends on the source, so that another source does not match; its content
//! is the birth time of the directory, so that another directory does not match.

use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::{FsReadFileParams, FsRemoveParams, FsWriteFileParams, PathUri};

use super::endpoint::{Endpoint, EndpointPath};
use super::resume;
use super::transfer::Links;
use super::{is_missing, metadata_of};

#[derive(Debug)]
pub(super) struct UnfinishedMarker {
    path: PathUri,
    directory: PathUri,
}

impl UnfinishedMarker {
    /// Returns the marker of a copy of `source` to `directory`. `None` for a root, which always
    /// exists and has no parent.
    pub(super) fn of(source: &EndpointPath, directory: &PathUri) -> Option<Self> {
        let parent = directory.as_path().parent()?;
        let word = resume::hash_of(&source.endpoint.identity, &[&source.path, directory]);
        let path = PathUri::from_path(parent.join(format!(".exec-server-cp-{word}.tmp")))?;
        Some(Self { path, directory: directory.clone() })
    }

    pub(super) fn path(&self) -> &PathUri {
        &self.path
    }

    /// Writes a marker that matches any birth time, because the directory does not exist yet.
    pub(super) async fn write(&self, endpoint: &Endpoint) -> Result<(), ExecServerError> {
        self.put(endpoint, Bytes::new()).await
    }

    /// Binds the marker to the birth time of the directory, which now exists, so that no other
    /// directory of this name matches.
    pub(super) async fn bind(&self, endpoint: &Endpoint) -> Result<(), ExecServerError> {
        let birth = self.birth(endpoint).await?;
        self.put(endpoint, birth).await
    }

    /// Whether an interrupted copy from the same source created the directory.
    pub(super) async fn is_of_directory(
        &self,
        endpoint: &Endpoint,
    ) -> Result<bool, ExecServerError> {
        let mut params = FsReadFileParams::new(self.path.clone());
        params.follow_symlinks = Links::Refused.on_the_wire();
        let content = match endpoint.files.read_file(params).await {
            Ok(content) => content,
            // There is no marker, or the file is not a marker.
            Err(ExecServerError::Server(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(content.is_empty() || content == self.birth(endpoint).await?)
    }

    pub(super) async fn remove(&self, endpoint: &Endpoint) -> Result<(), ExecServerError> {
        let params = || FsRemoveParams {
            path: self.path.clone(),
            recursive: Some(false),
            force: Some(true),
            follow_symlinks: None,
            sandbox: None,
        };
        endpoint.retry_interrupted(async || endpoint.files.remove(params()).await).await
    }

    pub(super) async fn has_directory(&self, endpoint: &Endpoint) -> bool {
        !is_missing(endpoint, &self.directory).await
    }

    async fn birth(&self, endpoint: &Endpoint) -> Result<Bytes, ExecServerError> {
        Ok(metadata_of(endpoint, &self.directory).await?.created_at_ms.to_string().into())
    }

    async fn put(&self, endpoint: &Endpoint, content: Bytes) -> Result<(), ExecServerError> {
        let params = || FsWriteFileParams {
            atomic: true,
            follow_symlinks: Links::Refused.on_the_wire(),
            ..FsWriteFileParams::new(self.path.clone(), content.clone())
        };
        endpoint
            .retry_interrupted(async || endpoint.files.write_file(params()).await)
            .await
            .map(drop)
    }
}
