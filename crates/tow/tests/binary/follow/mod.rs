//! Copies that follow a server, and versions that are published as a whole.

pub mod copies;
mod faults;
mod moves;
mod options;
mod versions;
mod whose_copy;
