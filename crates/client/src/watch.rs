//! Watches: changes to files on the server.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::{FsWatchParams, PathUri, rpc};
use futures_core::Stream;

use crate::calls::MAX_LOSSES;
use crate::leases::{Changes, LeaseHandle, PendingChanges, Target};
use crate::{ExecServerClient, ExecServerError};

/// The changes at or below one path, until this is dropped. Outlives connections: after a loss,
/// [`Self::next`] renews the watch and reports a rescan.
pub struct WatchEvents {
    watch: EstablishedWatch,
    params: FsWatchParams,
    state: State,
}

/// A watch on one connection.
#[derive(Debug)]
struct EstablishedWatch {
    handle: LeaseHandle<PendingChanges>,
    path: PathUri,
}

enum State {
    Watching,
    /// The watch was lost with its connection.
    Renewing(Pin<Box<dyn Future<Output = Result<EstablishedWatch, ExecServerError>> + Send>>),
    Failed,
}

impl ExecServerClient {
    /// Watches a file or a directory. Chooses the `watch_id`.
    pub async fn watch(&self, params: FsWatchParams) -> Result<WatchEvents, ExecServerError> {
        let watch = establish(self.clone(), params.clone()).await?;
        Ok(WatchEvents { watch, params, state: State::Watching })
    }
}

impl WatchEvents {
    /// The canonical form of the watched path.
    #[must_use]
    pub fn path(&self) -> &PathUri {
        &self.watch.path
    }

    /// Returns the changes since the last call. An error is the last item. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Changes, ExecServerError>> {
        poll_fn(|context| self.poll_changes(context)).await
    }

    fn poll_changes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Changes, ExecServerError>>> {
        loop {
            match &mut self.state {
                State::Watching => match ready!(self.watch.handle.poll_next(context)) {
                    Some(Err(ExecServerError::Interrupted { .. })) => {
                        let client = self.watch.handle.client().clone();
                        let renewing = establish(client, self.params.clone());
                        self.state = State::Renewing(Box::pin(renewing));
                    }
                    changed => return Poll::Ready(changed),
                },
                State::Renewing(renewing) => match ready!(renewing.as_mut().poll(context)) {
                    Ok(watch) => {
                        self.watch = watch;
                        self.state = State::Watching;
                        // Changes during the interruption are unknown; later ones are reported.
                        return Poll::Ready(Some(Ok(Changes::unknown())));
                    }
                    Err(error) => {
                        self.state = State::Failed;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                State::Failed => return Poll::Ready(None),
            }
        }
    }
}

/// Establishes a watch. Retries after a lost connection: watches end with their connection, so a
/// lost response leaves nothing behind.
async fn establish(
    client: ExecServerClient,
    mut params: FsWatchParams,
) -> Result<EstablishedWatch, ExecServerError> {
    let mut losses = 0;
    loop {
        let (handle, lease) = LeaseHandle::new(&client, PendingChanges::default(), Target::Watch);
        params.watch_id = handle.id().to_owned();
        match client.lease::<rpc::FsWatch>(params.clone(), lease).await?.answer().await {
            Ok(response) => return Ok(EstablishedWatch { handle, path: response.path }),
            Err(ExecServerError::Interrupted { .. }) if losses < MAX_LOSSES => losses += 1,
            Err(error) => return Err(error),
        }
    }
}

impl Stream for WatchEvents {
    type Item = Result<Changes, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_changes(context)
    }
}

impl fmt::Debug for WatchEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchEvents").field("path", &self.watch.path).finish_non_exhaustive()
    }
}
