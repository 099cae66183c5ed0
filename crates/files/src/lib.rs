//! Files over ZMTP: serving them and fetching them, under credit, verified, restartable.
//!
//! The protocol is specified in `docs/files-protocol.md`.

pub mod digest;
pub mod limits;
pub mod path;
pub mod protocol;
pub mod root;
pub mod serve;
