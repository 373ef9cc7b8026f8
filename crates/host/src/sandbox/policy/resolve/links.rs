//! Refuses symlinks that must not decide what a policy grants.
//!
//! A sandboxed process can create a symlink wherever it can write, and a later request may name a
//! path through it. So no entry is granted through a symlink that such a process can replace now or
//! could have created earlier.

use std::path::{Path, PathBuf};

use super::{Origin, Target};
use crate::sandbox::policy::draft::PolicyDraft;
use crate::sandbox::policy::essentials::PROTECTED_NAMES;
use crate::sandbox::policy::resolved_path::real_path;
use crate::sandbox::policy::{
    Access, DeniedGlob, LinkDoubt, LinkTrust, NameKind, Names, PolicyContext, PolicyError,
    WrittenRoots,
};

/// Temporary directories other than `TMPDIR`. Almost every sandbox may write in `/tmp`.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Refuses entries through a symlink that a process under this policy could replace. With a
/// replaced symlink the entry would grant or protect another path the next time the policy is
/// resolved. The exception is an entry for write access to a path that other entries make writable
/// anyway.
pub(super) fn refuse_replaceable(
    draft: &PolicyDraft,
    targets: &[Target],
    globs: &[(DeniedGlob, Vec<PathBuf>)],
) -> Result<(), PolicyError> {
    let replaceable =
        |links: &[PathBuf]| links.iter().find(|link| draft.access(link) == Access::Write).cloned();
    let mut certain = PolicyDraft::default();
    let mut doubtful = Vec::new();
    for target in targets {
        match replaceable(&target.links) {
            None => certain.add(&target.path, target.access),
            Some(link) => doubtful.push((target, link)),
        }
    }
    for (target, link) in doubtful {
        if target.access < Access::Write || certain.access(&target.path) < Access::Write {
            return Err(PolicyError::ReplaceableLink { path: target.path.clone(), link });
        }
    }
    for (glob, links) in globs {
        if let Some(link) = replaceable(links) {
            return Err(PolicyError::ReplaceableLink { path: glob.base().to_owned(), link });
        }
    }
    Ok(())
}

/// Whether the target of the entry is certain: no sandboxed process can choose it now, or could
/// have chosen it earlier.
pub(super) fn is_certain(
    target: &Target,
    draft: &PolicyDraft,
    around: &PolicyContext,
    names: &impl Names,
) -> bool {
    let origins = LinkOrigins { around, names };
    let is_sound =
        |link: &PathBuf| draft.access(link) < Access::Write && origins.doubt(link).is_none();
    target.links.iter().all(is_sound)
}

/// Refuses entries through a symlink that a process in an earlier sandbox could have created. Such
/// an entry may take access away, but whatever it grants must already be granted by other entries.
pub(super) fn refuse_planted(
    targets: &[Target],
    around: &PolicyContext,
    names: &impl Names,
) -> Result<(), PolicyError> {
    let origins = LinkOrigins { around, names };
    let mut certain = PolicyDraft::default();
    let mut doubtful = Vec::new();
    for target in targets {
        let is_exempt = target.origin == Origin::System || target.access == Access::Deny;
        let links = if is_exempt { &[] } else { target.links.as_slice() };
        match links.iter().find_map(|link| Some((link, origins.doubt(link)?))) {
            None => certain.add(&target.path, target.access),
            Some(doubt) => doubtful.push((target, doubt)),
        }
    }
    // Entries that take access away come before entries that grant access inside them.
    doubtful.sort_by_key(|(target, _)| target.access);
    for (target, (link, doubt)) in doubtful {
        if target.access > certain.access(&target.path) {
            let (path, link) = (target.path.clone(), link.clone());
            return Err(PolicyError::PlantedLink { path, link, doubt });
        }
        certain.add(&target.path, target.access);
    }
    Ok(())
}

struct LinkOrigins<'a, N> {
    around: &'a PolicyContext,
    names: &'a N,
}

impl<N: Names> LinkOrigins<'_, N> {
    /// Returns why a sandboxed process could have created the symlink at this real path. A name or
    /// directory that cannot be inspected counts as present and changeable.
    fn doubt(&self, link: &Path) -> Option<LinkDoubt> {
        if self.is_trusted(link) || self.is_out_of_reach(link) {
            return None;
        }
        let doubts = [Self::temporary_around, Self::workspace_around, Self::written_around];
        doubts.iter().find_map(|doubt| doubt(self, link.parent()?))
    }

    fn is_trusted(&self, link: &Path) -> bool {
        self.trust().trusted.iter().any(|trusted| {
            let by_real_path = || Some(self.real(trusted.parent()?)?.join(trusted.file_name()?));
            trusted == link || by_real_path().is_some_and(|path| path == link)
        })
    }

    /// Whether processes of this user can create names neither in the symlink's directory nor in
    /// any directory above it, where they could replace a whole directory.
    fn is_out_of_reach(&self, link: &Path) -> bool {
        link.ancestors().skip(1).all(|above| matches!(self.names.is_changeable(above), Ok(false)))
    }

    fn temporary_around(&self, directory: &Path) -> Option<LinkDoubt> {
        let known = TEMPORARY.iter().map(Path::new).chain(self.around.tmpdir.as_deref());
        let mut real = known.filter_map(|path| self.real(path));
        let around = real.find(|temporary| directory.starts_with(temporary))?;
        Some(LinkDoubt::Temporary { directory: around })
    }

    /// Detects workspaces by their protected names: not every workspace is in the write history,
    /// and some were copied from elsewhere.
    fn workspace_around(&self, directory: &Path) -> Option<LinkDoubt> {
        let home = self.trust().home.as_deref().and_then(|home| self.real(home));
        let is_of_home =
            |above: &Path, name: &str| name != ".git" && home.as_deref() == Some(above);
        let name = directory.ancestors().find_map(|above| {
            let mut names = PROTECTED_NAMES.iter().filter(|name| !is_of_home(above, name));
            names.find_map(|name| {
                let path = above.join(name);
                (!matches!(self.names.kind(&path), Ok(NameKind::Missing))).then_some(path)
            })
        })?;
        Some(LinkDoubt::Workspace { name })
    }

    fn written_around(&self, directory: &Path) -> Option<LinkDoubt> {
        match &self.trust().written {
            WrittenRoots::Unknown => Some(LinkDoubt::Unknown),
            WrittenRoots::Known(roots) => {
                let root = directory.ancestors().find(|above| roots.contains(*above))?;
                Some(LinkDoubt::Written { root: root.to_owned() })
            }
        }
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        real_path(self.names, path)
    }

    fn trust(&self) -> &LinkTrust {
        &self.around.link_trust
    }
}
