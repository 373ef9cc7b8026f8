mod form;
mod globs;
mod host;
mod links;
mod planted;
mod precedence;
mod properties;
mod protected;
mod special;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fake::FakeNames;
use super::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, Policy, PolicyContext,
    PolicyError, WrittenRoots,
};
use Access::{Deny, Read, Write};

/// A declared policy, with the context and the names for resolving it.
#[derive(Debug, Clone, Default)]
struct Asked {
    entries: Vec<Entry>,
    depth: Option<usize>,
    around: PolicyContext,
    names: FakeNames,
}

/// Each line is an access and a path: `read /usr`, `write root`, `deny glob **/*.pem`, `read
/// project_roots/docs`, `skip read /opt`.
fn asked(lines: &[&str]) -> Asked {
    Asked { entries: lines.iter().map(|line| entry(line)).collect(), ..Asked::default() }
}

impl Asked {
    fn on(self, names: FakeNames) -> Self {
        Self { names, ..self }
    }

    fn cwd(mut self, path: &str) -> Self {
        self.around.cwd = Some(path.into());
        self
    }

    fn workspace(mut self, path: &str) -> Self {
        self.around.workspace_roots.push(path.into());
        self
    }

    fn tmpdir(mut self, path: &str) -> Self {
        self.around.tmpdir = Some(path.into());
        self
    }

    /// Adds a directory in which an earlier sandbox was allowed to write.
    fn written(mut self, path: &str) -> Self {
        let WrittenRoots::Known(roots) = &mut self.around.link_trust.written else {
            panic!("cannot add a root to an unknown history")
        };
        Arc::make_mut(roots).insert(path.into());
        self
    }

    fn trusting(mut self, link: &str) -> Self {
        self.around.link_trust.trusted.push(link.into());
        self
    }

    fn depth(self, depth: usize) -> Self {
        Self { depth: Some(depth), ..self }
    }

    fn resolve(&self) -> Result<Policy, PolicyError> {
        let files = DeclaredFiles::Restricted {
            entries: self.entries.clone(),
            glob_scan_max_depth: self.depth,
        };
        let declared = DeclaredPolicy { files, network: Network::Restricted };
        Policy::resolve(&declared, &self.around, &self.names)
    }

    #[track_caller]
    fn policy(&self) -> Policy {
        self.resolve().unwrap_or_else(|error| panic!("{:?}: {error}", self.entries))
    }

    #[track_caller]
    fn gives(&self, expected: &[(&str, Access)]) {
        let policy = self.policy();
        for (path, access) in expected {
            assert_eq!(policy.access(Path::new(path)), *access, "{path} under {policy:#?}");
        }
    }

    #[track_caller]
    fn error(&self) -> PolicyError {
        match self.resolve() {
            Ok(policy) => panic!("{:?} resolves to {policy:#?}", self.entries),
            Err(error) => error,
        }
    }
}

fn entry(line: &str) -> Entry {
    let (skip_missing, line) = match line.strip_prefix("skip ") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (access, path) = line.split_once(' ').expect("a line has an access and a path");
    let access = match access {
        "deny" => Deny,
        "read" => Read,
        "write" => Write,
        other => panic!("unknown access {other}"),
    };
    let path = match path {
        "root" => EntryPath::Root,
        "minimal" => EntryPath::Minimal,
        "tmpdir" => EntryPath::Tmpdir,
        "slash_tmp" => EntryPath::SlashTmp,
        "cwd" => EntryPath::WorkingDirectory,
        "project_roots" => EntryPath::ProjectRoots { subpath: None },
        path => match (path.strip_prefix("project_roots/"), path.strip_prefix("glob ")) {
            (Some(subpath), _) => EntryPath::ProjectRoots { subpath: Some(subpath.into()) },
            (_, Some(glob)) => EntryPath::Glob(glob.to_owned()),
            _ => EntryPath::Path(PathBuf::from(path)),
        },
    };
    Entry { path, access, skip_missing }
}
