//! Directory listings of any size, read in pages.

use exec_server_protocol::{DirectoryEntry, FsReadDirectoryParams};

use crate::{ExecServerClient, ExecServerError, Violation};

impl ExecServerClient {
    /// Returns all entries of a directory or, if `after` is set, those that follow it. `limit` is
    /// the page size. A server without paging returns everything, or an error if that is too
    /// large.
    pub async fn list_directory(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<Vec<DirectoryEntry>, ExecServerError> {
        let (mut entries, mut asked) = (Vec::new(), Some(params.in_pages()));
        while let Some(params) = asked {
            let page = self.fs_read_directory(params.clone()).await?;
            asked = params.following(&page).map_err(Violation::PageOrder)?;
            entries.extend(page.with_paths(&params.path).entries);
        }
        Ok(entries)
    }
}
