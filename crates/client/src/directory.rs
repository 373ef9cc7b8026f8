//! Directories of any size, which a server answers in pages.

use exec_server_protocol::{DirectoryEntry, FsReadDirectoryParams};

use crate::{ExecServerClient, ExecServerError, Violation};

impl ExecServerClient {
    /// All entries of a directory from `after` on, however many there are: `limit` is the size of the pages in which they are
    /// read. A server that knows no pages answers with everything or with an error.
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
