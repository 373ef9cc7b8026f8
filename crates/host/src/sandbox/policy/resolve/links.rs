//! Symlinks that must not decide what a policy grants.
//!
//! A process in a sandbox can make a symlink wherever it can write, and a later request may name a
//! path that leads through it. So no entry is granted through a symlink that such a process can
//! replace, or that one could have made earlier.

use std::path::{Path, PathBuf};

use super::{Origin, Target};
use crate::sandbox::policy::draft::PolicyDraft;
use crate::sandbox::policy::essentials::PROTECTED_NAMES;
use crate::sandbox::policy::resolved_path::real_path;
use crate::sandbox::policy::{
    Access, DeniedGlob, LinkDoubt, LinkTrust, NameKind, Names, PolicyContext, PolicyError,
    WrittenRoots,
};

/// Besides what `TMPDIR` says. Every sandbox of the usual kind may write in the first.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Whoever can write where a symlink is can make it lead elsewhere, and with it, when this policy
/// is resolved the next time, what an entry that passes through it grants or protects. Idempotent is
/// only to grant what is granted without that entry.
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

/// Whether no process in a sandbox, now or earlier, could have decided where the entry leads.
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

/// The same for processes of other sandboxes, which have ended since. An entry through a symlink
/// that one of them could have made may take access away; what it gives must be given without it.
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
    // One that takes access away counts before one that gives some inside of that.
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

/// Who could have made a symlink.
struct LinkOrigins<'a, N> {
    around: &'a PolicyContext,
    names: &'a N,
}

impl<N: Names> LinkOrigins<'_, N> {
    /// Why a process in a sandbox could have made the symlink, which is named by its real path.
    /// What cannot be found out is taken for a reason.
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

    /// No process of this user can make a name there, nor in any directory above, which it could
    /// replace as a whole.
    fn is_out_of_reach(&self, link: &Path) -> bool {
        link.ancestors().skip(1).all(|above| matches!(self.names.is_changeable(above), Ok(false)))
    }

    fn temporary_around(&self, directory: &Path) -> Option<LinkDoubt> {
        let known = TEMPORARY.iter().map(Path::new).chain(self.around.tmpdir.as_deref());
        let mut real = known.filter_map(|path| self.real(path));
        let around = real.find(|temporary| directory.starts_with(temporary))?;
        Some(LinkDoubt::Temporary { directory: around })
    }

    /// Not every workspace is remembered, and some come from elsewhere.
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
