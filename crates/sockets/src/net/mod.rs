//! Endpoints, name look-up and the operating system's sockets.

pub(crate) mod address;
pub(crate) mod congestion;
pub(crate) mod endpoint;
pub(crate) mod ipc;
pub(crate) mod resolver;
pub(crate) mod tenant;
pub(crate) mod transport;
