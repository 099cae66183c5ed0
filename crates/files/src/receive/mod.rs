//! The receiver: a client that gets files and trees from a server, checks them, and puts them in place.

pub mod inbound;
mod names;
mod ranges;
pub mod transfer;
