//! Which threads the work of a request is done on: ones that are kept to its policy, or free ones if it has none.
//!
//! There is no other way from the params of a request to work on files, so none can forget its policy.

use std::sync::Arc;

use exec_server_host::sandbox::Policy;
use exec_server_protocol::{
    FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsOpenParams, FsReadDirectoryParams, FsReadFileParams,
    FsReadLinkParams, FsRemoveParams, FsRenameParams, FsSearchParams, FsSetPermissionsParams,
    FsSymlinkParams, FsWalkParams, FsWatchParams, FsWriteFileParams, RpcError, SandboxRequest,
};

use super::confined::ConfinedPools;
use super::errors::no_thread;
use super::pool::{ExpectedJob, FilePool};
use crate::adapter::SandboxResolver;

/// What a request about files asks to be kept to.
pub(crate) trait Sandboxed {
    fn sandbox(&self) -> Option<&SandboxRequest>;
}

macro_rules! sandboxed {
    ($($params:ty,)*) => {
        $(
            impl Sandboxed for $params {
                fn sandbox(&self) -> Option<&SandboxRequest> {
                    self.sandbox.as_ref()
                }
            }
        )*
    };
}

sandboxed! {
    FsCanonicalizeParams,
    FsCopyParams,
    FsCreateDirectoryParams,
    FsCreateParams,
    FsGetMetadataParams,
    FsGlobParams,
    FsOpenParams,
    FsReadDirectoryParams,
    FsReadFileParams,
    FsReadLinkParams,
    FsRemoveParams,
    FsRenameParams,
    FsSearchParams,
    FsSetPermissionsParams,
    FsSymlinkParams,
    FsWalkParams,
    FsWatchParams,
    FsWriteFileParams,
}

/// The params of a request on a thread that is kept to their policy, and only there.
#[derive(Debug)]
pub(crate) struct PolicyScoped<P> {
    pub(crate) params: P,
    /// Where whatever comes of it has to be done, too.
    pub(crate) executor: FileExecutor,
}

/// Clones share threads.
#[derive(Debug, Clone)]
pub(crate) struct FileExecutors {
    free: FilePool,
    confined: ConfinedPools,
    sandboxes: Arc<SandboxResolver>,
}

impl FileExecutors {
    pub(crate) fn new(free: FilePool, sandboxes: Arc<SandboxResolver>) -> Self {
        Self { free, confined: ConfinedPools::default(), sandboxes }
    }

    /// For what is about no file that a client has named.
    pub(crate) fn free(&self) -> &FilePool {
        &self.free
    }

    /// Does the work where the policy of the params holds, or says why that cannot be.
    pub(crate) fn run<P: Sandboxed + Send + 'static>(
        &self,
        params: P,
        work: impl FnOnce(Result<PolicyScoped<P>, RpcError>) + Send + 'static,
    ) {
        match self.sandboxes.known_file_policy(params.sandbox()) {
            Some(policy) => self.run_under(policy, params, work),
            // To find out what a policy means on this machine takes a look at it.
            None => {
                let this = self.clone();
                self.free.run_or_tell(move |thread| {
                    let policy = thread.map_err(no_thread);
                    match policy.and_then(|()| this.sandboxes.file_policy(params.sandbox())) {
                        Ok(Some(policy)) => this.run_under(Some(policy), params, work),
                        Ok(None) => {
                            let executor = this.executor(None);
                            work(Ok(PolicyScoped { params, executor }));
                        }
                        Err(error) => work(Err(error)),
                    }
                });
            }
        }
    }

    fn run_under<P: Send + 'static>(
        &self,
        policy: Option<Policy>,
        params: P,
        work: impl FnOnce(Result<PolicyScoped<P>, RpcError>) + Send + 'static,
    ) {
        let executor = self.executor(policy);
        executor.clone().run(move |kept| work(kept.map(|()| PolicyScoped { params, executor })));
    }

    fn executor(&self, policy: Option<Policy>) -> FileExecutor {
        let free = self.free.clone();
        FileExecutor { free, confined: policy.map(|policy| (self.confined.clone(), policy)) }
    }
}

/// Threads that are kept to one policy, or free ones.
#[derive(Debug, Clone)]
pub(crate) struct FileExecutor {
    free: FilePool,
    confined: Option<(ConfinedPools, Policy)>,
}

impl FileExecutor {
    /// The job is told if there is no thread that is kept to the policy. It must not touch anything then, nor block.
    pub(crate) fn run(&self, job: impl FnOnce(Result<(), RpcError>) + Send + 'static) {
        let Some((pools, policy)) = &self.confined else {
            return self.free.run_or_tell(move |thread| job(thread.map_err(no_thread)));
        };
        // Whoever waits for the pool to be idle waits for this as well.
        let coming = self.expect_job();
        pools.run(policy, move |kept| {
            job(kept);
            drop(coming);
        });
    }

    /// A job will come.
    pub(crate) fn expect_job(&self) -> ExpectedJob {
        self.free.expect_job()
    }
}
