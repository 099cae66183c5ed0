//! Admission and permissions; hostile peers, paths and files.

mod bad_connections;
mod blocked;
mod endless_server;
mod escaping_paths;
mod handshake_flood;
mod hidden_files;
mod hostile_publisher;
mod hostile_server;
pub mod keys;
mod local_users;
mod logins;
mod other_users;
mod refused_keys;
mod rules;
mod tampering;
