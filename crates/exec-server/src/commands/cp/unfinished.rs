//! A marker file beside a directory that is being made under a new name: its copy is not finished.
//!
//! By the rules of cp(1) the same command, given again, would copy into the directory that now exists. With the marker it goes
//! on filling it. The marker is written before the directory is made and removed when everything else is done, so it is there
//! whenever the copy is interrupted, by `kill -9` too. It is named after the source, so another source is not taken for
//! this one; and it says when the directory was born, so neither is another directory.

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
    /// Of a copy of `source` that `directory` names. A root has no place beside it, and always exists.
    pub(super) fn of(source: &EndpointPath, directory: &PathUri) -> Option<Self> {
        let parent = directory.as_path().parent()?;
        let word = resume::word_of(&source.endpoint.identity, &[&source.path, directory]);
        let path = PathUri::from_path(parent.join(format!(".exec-server-cp-{word}.tmp")))?;
        Some(Self { path, directory: directory.clone() })
    }

    pub(super) fn path(&self) -> &PathUri {
        &self.path
    }

    /// Before the directory is made: it may be of any birth.
    pub(super) async fn write(&self, endpoint: &Endpoint) -> Result<(), ExecServerError> {
        self.put(endpoint, Bytes::new()).await
    }

    /// Since the directory is there: no other one of its name is meant.
    pub(super) async fn bind(&self, endpoint: &Endpoint) -> Result<(), ExecServerError> {
        let birth = self.birth(endpoint).await?;
        self.put(endpoint, birth).await
    }

    /// Whether the directory is what an interrupted copy has made.
    pub(super) async fn is_of_directory(
        &self,
        endpoint: &Endpoint,
    ) -> Result<bool, ExecServerError> {
        let mut params = FsReadFileParams::new(self.path.clone());
        params.follow_symlinks = Links::Refused.on_the_wire();
        let content = match endpoint.files.read_file(params).await {
            Ok(content) => content,
            // There is none, or it is nothing that was written here.
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

    /// Whether there is a directory that the marker could be about.
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
