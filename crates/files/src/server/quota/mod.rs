//! Memory that clients share.

pub(super) mod copies;
pub(super) mod small_files;
