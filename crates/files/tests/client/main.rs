//! Getting files from real and from hostile servers over loopback, into real directories.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping")]

mod hostile_server;
mod interrupted;
mod known_files;
mod opening;
mod real_server;
mod streams;
mod support;
