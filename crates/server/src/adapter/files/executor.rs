//! Runs the work of a request on threads that are confined to its policy or, if the request has no
//! policy, on unconfined threads.
//!
//! This is the only way from the params of a request to file operations, so no method can forget
//! its policy.

use std::sync::Arc;

use exec_server_host::sandbox::Policy;
use exec_server_protocol::{
    FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsOpenParams, FsReadDirectoryParams, FsReadFileParams,
    FsReadLinkParams, FsRemoveParams, FsRenameParams, FsSearchParams, FsSetPermissionsParams,
    FsSymlinkParams, FsWalkParams, FsWatchParams, FsWriteFileParams, RpcError, SandboxRequest,
};

use super::pool::{ExpectedJob, FilePool};
use crate::adapter::SandboxResolver;

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

/// The params of a request, on a thread that is confined to their policy.
#[derive(Debug)]
pub(crate) struct PolicyScoped<P> {
    pub(crate) params: P,
    /// The executor for all later work of the request.
    pub(crate) executor: FileExecutor,
}

/// Clones share threads.
#[derive(Debug, Clone)]
pub(crate) struct FileExecutors {
    pool: FilePool,
    sandboxes: Arc<SandboxResolver>,
}

impl FileExecutors {
    pub(crate) fn new(pool: FilePool, sandboxes: Arc<SandboxResolver>) -> Self {
        Self { pool, sandboxes }
    }

    /// Runs `work` on a thread that is confined to the policy of the params. If that is impossible,
    /// passes `work` the error.
    pub(crate) fn run<P: Sandboxed + Send + 'static>(
        &self,
        params: P,
        work: impl FnOnce(Result<PolicyScoped<P>, RpcError>) + Send + 'static,
    ) {
        match self.sandboxes.known_file_policy(params.sandbox()) {
            Some(policy) => self.run_under(policy, params, work),
            // Resolving a policy on this machine blocks.
            None => {
                let this = self.clone();
                self.pool.run_or_tell(move |thread| {
                    match thread.and_then(|()| this.sandboxes.file_policy(params.sandbox())) {
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
        FileExecutor { pool: self.pool.clone(), policy }
    }
}

/// Threads that are confined to one policy, or unconfined threads.
#[derive(Debug, Clone)]
pub(crate) struct FileExecutor {
    pool: FilePool,
    policy: Option<Policy>,
}

impl FileExecutor {
    /// Runs a job. The job gets an error if no thread can be confined to the policy; it must then
    /// neither touch files nor block.
    pub(crate) fn run(&self, job: impl FnOnce(Result<(), RpcError>) + Send + 'static) {
        self.pool.run_under(&self.policy, job);
    }

    pub(crate) fn expect_job(&self) -> ExpectedJob {
        self.pool.expect_job()
    }
}
