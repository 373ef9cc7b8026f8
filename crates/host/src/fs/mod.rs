//! Files of this machine. Every function here may block, and none knows who asks: the caller chooses the thread.
//!
//! Paths are absolute. `resolve` is the only place that follows them, with `destination` for what is at the end of the
//! path of a write; on a thread that is kept to a policy `confined_way` follows them instead. Whatever then works on a name in an
//! open directory asks `confinement` for that name.

mod cancel;
mod claim;
mod condition;
mod confined_way;
mod confinement;
mod copy;
mod create_directory;
mod descent;
mod destination;
mod error;
pub mod glob;
mod inheritance;
mod kind;
mod links;
mod listing;
mod metadata;
mod new_file;
mod open_file;
mod permissions;
mod procfs;
mod read_directory;
mod remove;
mod rename;
mod resolve;
mod room;
pub mod search;
mod staged_file;
mod survey;
mod walk;
pub mod watch;
mod write;
mod write_lock;

pub use cancel::CancelFlag;
pub use condition::{Condition, Written};
pub use confinement::{Confinement, ConfinementError, is_confined};
pub use copy::copy;
pub use create_directory::create_directory;
pub use error::{Extent, FsError};
pub use kind::FileKind;
pub use links::{canonicalize, read_link, symlink};
pub use metadata::{Metadata, metadata};
pub use new_file::{NewFile, NewFileOptions};
pub use open_file::{Block, OpenFile};
pub use permissions::set_permissions;
pub use read_directory::{
    Entry, EntryDetails, EntryTypes, Page, read_directory, read_directory_page,
};
pub use remove::{RemoveOptions, remove};
pub use rename::{Replace, rename};
pub use resolve::Symlinks;
pub use walk::{Tree, TreeEntry, TreeError, TreeKind, WalkOptions, walk};
pub use write::{WriteOptions, write_file};
