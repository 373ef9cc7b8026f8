//! `exec-server cp`: copies files and trees between machines, or on one machine.
//!
//! First lists each source and creates its directories. Then copies files and symlinks
//! concurrently, and sets the final permissions of directories. A copy on one machine is a single
//! call instead. Errors are reported and do not stop the rest.

mod bar;
mod destination;
mod directories;
mod endpoint;
mod progress;
mod resume;
mod retry_budget;
mod transfer;
mod tree;
mod unfinished;

use std::cell::Cell;
use std::collections::HashSet;
use std::convert::Infallible;
use std::rc::Rc;

use anyhow::Context as _;
use exec_server_client::{ExecServerError, Violation};
use exec_server_protocol::{
    ErrorKind, FsCanonicalizeParams, FsCopyParams, FsGetMetadataParams, FsMetadata, PathUri,
};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};

use self::destination::Destination;
use self::directories::{Directories, Existing, RestrictedDirectory, below};
use self::endpoint::{Endpoint, EndpointPath, Endpoints};
use self::progress::{Progress, add};
use self::transfer::{Job, Links, Transfer};
use self::tree::Tree;
use self::unfinished::UnfinishedMarker;
use super::servers::Servers;
use super::wording::{one_line, without_path};
use crate::cli::files::Cp;
use crate::program::exit_code::ExitStatus;
use crate::terminal::outage;

/// The number of files and symlinks copied concurrently.
const AT_ONCE: usize = 16;

pub(super) async fn run(servers: &Servers<'_>, cp: &Cp) -> anyhow::Result<ExitStatus> {
    let progress = Progress::new(cp.quiet, cp.verbose);
    progress.if_interrupted(match cp.no_resume {
        true => "interrupted; run the command again without --no-resume to resume",
        false => "interrupted; run the same command again to resume",
    });
    let copying = async {
        let endpoints = Endpoints::new(servers);
        let mut copy = Copying::begin(&endpoints, cp, &progress).await?;
        for source in cp.sources() {
            if copy.is_lost() {
                copy.leave_out(1);
                continue;
            }
            match endpoints.locate(source).await {
                Ok(place) => {
                    if let Err(error) = copy.add(&place).await {
                        copy.tell_of(&place.endpoint, &place.path, error);
                    }
                }
                Err(error) => copy.tell(&error, &one_line(&error)),
            }
        }
        tokio::select! {
            () = copy.perform() => anyhow::Ok(()),
            never = report_outages(&endpoints, &progress) => match never {},
        }
    };
    let outcome = progress.draw_during(copying).await;
    progress.end(outcome.is_ok());
    outcome?;
    let problems = progress.counts.failed.get() + progress.counts.skipped.get();
    let status = if problems == 0 { ExitStatus::SUCCESS } else { ExitStatus::FAILURE };
    if cp.json {
        return super::print_result((progress.json() + "\n").as_bytes(), status);
    }
    Ok(status)
}

/// Never returns, even without connections.
async fn report_outages(endpoints: &Endpoints<'_>, progress: &Progress) -> Infallible {
    let tell = |text: &str| progress.warn(text);
    let reports = endpoints.connections().into_iter();
    join_all(reports.map(|state| outage::report(state, tell, true))).await;
    std::future::pending().await
}

/// The state of a copy. [`Self::add`] creates directories and makes copies on one machine at once;
/// [`Self::perform`] copies the files and symlinks that [`Self::add`] has collected.
struct Copying<'a> {
    cp: &'a Cp,
    progress: &'a Progress,
    to: Rc<Endpoint>,
    destination: Destination,
    /// The targets of the sources so far. Two sources must not have the same target.
    targets: HashSet<PathUri>,
    files: Vec<Job>,
    symlinks: Vec<(Rc<Endpoint>, PathUri, PathUri)>,
    to_close: Vec<RestrictedDirectory>,
    /// Set if the copy has one source and creates a directory under a new name, or resumes such a
    /// copy.
    marker: Option<UnfinishedMarker>,
    /// Set once a connection is lost for good and that has been reported.
    is_lost: Cell<bool>,
    /// The number of items left out after that loss. Only the total is reported.
    left_out: Cell<u64>,
}

impl<'a> Copying<'a> {
    async fn begin(
        endpoints: &Endpoints<'_>,
        cp: &'a Cp,
        progress: &'a Progress,
    ) -> anyhow::Result<Self> {
        let place = endpoints.locate(cp.destination()).await?;
        let found = match metadata_of(&place.endpoint, &place.path).await {
            Ok(found) => Some(found),
            Err(error) if error.kind() == Some(&ErrorKind::NotFound) => None,
            Err(error) => {
                let error = anyhow::Error::new(without_path(&place.path, error));
                return Err(error.context(place.show()));
            }
        };
        let (path, sources) = (place.path.clone(), cp.sources().len());
        let destination = Destination::of(path, place.has_slash, found.as_ref(), sources)
            .with_context(|| place.show())?;
        Ok(Self {
            cp,
            progress,
            destination,
            to: place.endpoint,
            targets: HashSet::new(),
            files: Vec::new(),
            symlinks: Vec::new(),
            to_close: Vec::new(),
            marker: None,
            is_lost: Cell::new(false),
            left_out: Cell::new(0),
        })
    }

    /// Examines a source, creates its directories and collects its files and symlinks. A copy on
    /// one machine takes a single call, which is made at once.
    async fn add(&mut self, source: &EndpointPath) -> anyhow::Result<()> {
        let found = metadata_of(&source.endpoint, &source.path).await?;
        anyhow::ensure!(!found.is_directory || self.cp.recursive, "is a directory; use -r");
        anyhow::ensure!(
            found.is_directory || found.is_file,
            "is neither a file nor a directory, and is not copied"
        );
        anyhow::ensure!(
            found.is_directory || !source.has_slash,
            "is not a directory; omit the slash"
        );
        let target = self.destination.path_of(source.name.as_deref(), found.is_directory);
        let mut target = target.with_context(|| self.to.show(self.destination.path()))?;
        if found.is_directory
            && let Some(unfinished) = self.begin_unfinished(source).await?
        {
            target = unfinished;
        }
        let is_only = self.targets.insert(target.clone());
        anyhow::ensure!(is_only, "another source already has this name; copy it separately");
        // A copy by the server would not set the permissions of directories that an interrupted
        // copy left behind.
        let goes_on = self.marker.is_some() && matches!(self.destination, Destination::Into(_));
        let is_there = source.endpoint.is(&self.to) && !goes_on;
        let is_new = self.marker.is_some() || (is_there && is_missing(&self.to, &target).await);
        if is_there {
            match self.copy_there(source, &found, target.clone()).await {
                // The server may have created only a part of the tree; `add_tree` copies the rest.
                Err(ExecServerError::Interrupted { .. }) if found.is_directory && is_new => {}
                outcome => return Ok(outcome?),
            }
        }
        if found.is_directory {
            let existing = if is_new { Existing::OfThisCopy } else { Existing::Foreign };
            return self.add_tree(source, &found, target, existing).await;
        }
        self.add_file(Job {
            from: Rc::clone(&source.endpoint),
            source: source.path.clone(),
            target,
            size: found.size,
            mode: found.mode,
            links: Links::Followed,
        });
        Ok(())
    }

    /// Sets the marker, and returns the target, if the copy creates a directory under a new name,
    /// or resumes such a copy.
    async fn begin_unfinished(&mut self, source: &EndpointPath) -> anyhow::Result<Option<PathUri>> {
        let path = self.destination.path().clone();
        let Some(marker) =
            UnfinishedMarker::of(source, &path).filter(|_| self.cp.sources().len() == 1)
        else {
            return Ok(None);
        };
        let is_marked = match &self.destination {
            // If the marker cannot be written, creating the directory fails too, with a better
            // error.
            Destination::As { .. } => marker.write(&self.to).await.is_ok(),
            Destination::Into(_) => marker.is_of_directory(&self.to).await?,
            Destination::Over(_) => false,
        };
        self.marker = is_marked.then_some(marker);
        Ok(self.marker.is_some().then_some(path))
    }

    /// Lets the target endpoint copy by itself, so that the content is not transferred.
    async fn copy_there(
        &self,
        source: &EndpointPath,
        found: &FsMetadata,
        target: PathUri,
    ) -> Result<(), ExecServerError> {
        let source_path = match found.is_symlink {
            true => canonical(&self.to, &source.path).await?,
            false => source.path.clone(),
        };
        self.progress.begin(source.show());
        let counts = &self.progress.counts;
        if found.is_directory {
            self.progress.expect_unknown();
        } else {
            add(&counts.all_files, 1);
            add(&counts.all_bytes, found.size);
        }
        let params = FsCopyParams {
            source_path,
            destination_path: target,
            recursive: found.is_directory,
            sandbox: None,
        };
        if found.is_directory {
            // Not retried: directories left by the first attempt would keep their temporary
            // permissions.
            return self.to.files.copy(params).await;
        }
        self.to.retry_interrupted(async || self.to.files.copy(params.clone()).await).await?;
        add(&counts.files, 1);
        add(&counts.bytes, found.size);
        Ok(())
    }

    async fn add_tree(
        &mut self,
        source: &EndpointPath,
        found: &FsMetadata,
        target: PathUri,
        existing: Existing,
    ) -> anyhow::Result<()> {
        let (from, counts) = (&source.endpoint, &self.progress.counts);
        // Symlinks in the paths of both roots are resolved here. Below the roots none is followed, so
        // neither tree can lead outside.
        let source_root = canonical(from, &source.path).await?;
        let root = directories::make(&self.to, &target, found.mode, Links::Followed, existing);
        self.to_close.extend(root.await?);
        if let Some(marker) = &self.marker {
            marker.bind(&self.to).await?;
        }
        let root = canonical(&self.to, &target).await?;
        let mut tree = Tree::list(from, &source_root, |more| add(&counts.found, more as u64)).await;
        for (path, error) in tree.unreadable.drain(..) {
            self.tell_of(from, &path, error.into_cause());
        }
        for node in &tree.others {
            let path = from.show(&node.path);
            self.progress.warn(&format!("{path}: neither a file nor a directory; skipped"));
            add(&counts.skipped, 1);
        }
        let tell = |path: &PathUri, error| self.tell_of(&self.to, path, error);
        let directories =
            Directories::make(&self.to, &root, &tree.directories, existing, tell).await;
        add(&counts.directories, 1 + (tree.directories.len() - directories.missing.len()) as u64);
        let is_possible = |relative: &std::path::Path| !directories.is_missing_above(relative);
        for node in tree.symlinks.into_iter().filter(|node| is_possible(&node.relative)) {
            let target = below(&root, &node.relative);
            self.symlinks.push((Rc::clone(from), node.path, target));
        }
        for node in tree.files.into_iter().filter(|node| is_possible(&node.relative)) {
            self.add_file(Job {
                from: Rc::clone(from),
                target: below(&root, &node.relative),
                source: node.path,
                size: node.size,
                mode: node.mode,
                links: Links::Refused,
            });
        }
        self.to_close.extend(directories.to_close);
        Ok(())
    }

    fn add_file(&mut self, job: Job) {
        add(&self.progress.counts.all_files, 1);
        add(&self.progress.counts.all_bytes, job.size);
        self.files.push(job);
    }

    async fn perform(mut self) {
        let counts = &self.progress.counts;
        let transfer = Transfer::new(Rc::clone(&self.to), self.progress, self.cp.no_resume);
        let files = stream::iter(&self.files).for_each_concurrent(AT_ONCE, async |job| {
            if self.is_lost() {
                return self.leave_out(1);
            }
            match transfer.copy(job).await {
                Ok(()) => add(&counts.files, 1),
                Err(error) => self.tell_of(&job.from, &job.source, error.into_cause()),
            }
        });
        files.await;
        let make_link = async |(from, source, target): &(Rc<Endpoint>, PathUri, PathUri)| {
            if self.is_lost() {
                return self.leave_out(1);
            }
            match directories::link(from, source, &self.to, target).await {
                Ok(()) => add(&counts.symlinks, 1),
                Err(error) => self.tell_of(from, source, error),
            }
        };
        stream::iter(&self.symlinks).for_each_concurrent(AT_ONCE, make_link).await;
        if !self.is_lost() {
            let to_close = std::mem::take(&mut self.to_close);
            let tell = |path: &PathUri, error| self.tell_of(&self.to, path, error);
            directories::close(&self.to, to_close, tell).await;
            self.end_unfinished().await;
        }
        match self.left_out.get() {
            0 => {}
            more => {
                self.progress.warn(&format!(
                    "{more} more could not be copied because the connection was lost; run the \
                     command again"
                ));
            }
        }
    }

    /// Removes the marker, unless repeating the command would resume the copy.
    async fn end_unfinished(&self) {
        let Some(marker) = &self.marker else { return };
        if self.progress.counts.failed.get() > 0 && marker.has_directory(&self.to).await {
            return;
        }
        if let Err(error) = marker.remove(&self.to).await {
            self.tell_of(&self.to, marker.path(), error);
        }
    }

    fn tell_of(&self, endpoint: &Endpoint, path: &PathUri, error: impl Into<anyhow::Error>) {
        let error = match error.into().downcast() {
            Ok(error) => anyhow::Error::new(without_path(path, error)),
            Err(error) => error,
        };
        let line = format!("{}: {}", endpoint.show(path), one_line(&error));
        self.tell(&error, &line);
    }

    fn tell(&self, error: &anyhow::Error, line: &str) {
        if is_loss(error) && self.is_lost.replace(true) {
            return self.leave_out(1);
        }
        self.progress.warn(line);
        add(&self.progress.counts.failed, 1);
    }

    fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    fn leave_out(&self, count: u64) {
        add(&self.left_out, count);
        add(&self.progress.counts.failed, count);
    }
}

/// Whether the error ends the connection, not just one call.
fn is_loss(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause: &ExecServerError| match cause {
        ExecServerError::Disconnected(_) | ExecServerError::Closed => true,
        ExecServerError::ProtocolViolation(violation) => {
            !matches!(**violation, Violation::LinkTarget(_))
        }
        _ => false,
    })
}

async fn metadata_of(endpoint: &Endpoint, path: &PathUri) -> Result<FsMetadata, ExecServerError> {
    let params = FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
    endpoint.files.metadata(params).await
}

async fn is_missing(endpoint: &Endpoint, path: &PathUri) -> bool {
    matches!(metadata_of(endpoint, path).await, Err(error) if error.kind() == Some(&ErrorKind::NotFound))
}

async fn canonical(endpoint: &Endpoint, path: &PathUri) -> Result<PathUri, ExecServerError> {
    endpoint.files.canonicalize(FsCanonicalizeParams { path: path.clone(), sandbox: None }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(size: u64, modified_at_ms: i64, created_at_ms: i64) -> FsMetadata {
        FsMetadata {
            is_directory: false,
            is_file: true,
            is_symlink: false,
            size,
            created_at_ms,
            modified_at_ms,
            mode: None,
            special: None,
        }
    }
}
