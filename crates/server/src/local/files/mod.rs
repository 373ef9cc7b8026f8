//! Files, for connections and for this program alike. [`LocalFileSystem`] is the program's way in.

mod confined;
mod errors;
mod handles;
mod listing;
mod operations;
mod pool;
mod reading;
mod searching;
mod system;
mod watching;
mod work;

pub(crate) use confined::can_confine;
pub(crate) use errors::no_thread;
pub(crate) use handles::{Upload, check_block_len, open, read_block};
pub(crate) use listing::LargeFileCall;
pub(crate) use operations::FileCall;
pub(crate) use pool::{FilePool, NoThread};
pub(crate) use reading::Reading;
pub(crate) use searching::Searching;
pub use system::{LocalFile, LocalFileSystem, LocalNewFile, LocalSearch};
pub(crate) use watching::Watches;
pub use watching::{LocalChanges, LocalWatch};
pub(crate) use work::{Admitted, FileWork};
