//! Files of this machine. Every function here may block; the caller chooses the thread.
//!
//! Paths are absolute. `path` resolves them to descriptors for the other modules: in it,
//! `destination` finds the name that a write to a path replaces or creates, and `confined_resolve`
//! resolves paths on a confined thread. Code that works on a name in an open directory checks that
//! name with `confinement`.

mod confinement;
mod error;
mod path;
mod read;
pub mod search;
mod tree;
pub mod watch;
mod write;

pub use confinement::{Confinement, ConfinementError, is_confined};
pub use error::{Extent, FsError};
pub use path::kind::FileKind;
pub use path::resolve::Symlinks;
pub use read::links::{canonicalize, read_link, symlink};
pub use read::metadata::{Metadata, metadata};
pub use read::open_file::{Block, OpenFile};
pub use read::read_directory::{
    Entry, EntryDetails, EntryTypes, Page, read_directory, read_directory_page,
};
pub use tree::cancel::CancelFlag;
pub use tree::copy::copy;
pub use tree::create_directory::create_directory;
pub use tree::glob;
pub use tree::permissions::set_permissions;
pub use tree::remove::{RemoveOptions, remove};
pub use tree::rename::{Replace, rename};
pub use tree::walk::{Tree, TreeEntry, TreeError, TreeKind, WalkOptions, walk};
pub use write::condition::{Condition, Written};
pub use write::new_file::{NewFile, NewFileOptions};
pub use write::write_file::{WriteOptions, write_file};
