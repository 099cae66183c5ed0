//! Getting files from real and from hostile servers over loopback, into real directories.

mod real_server;
mod support;
