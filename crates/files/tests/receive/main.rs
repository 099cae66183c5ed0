//! Getting files from real and from hostile servers over loopback, into real directories.

mod hostile_server;
mod interrupted;
mod real_server;
mod support;
