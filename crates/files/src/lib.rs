//! Files over ZMTP: serving them and fetching them, under credit, verified, restartable.
//!
//! The protocol is specified in `docs/protocol/files.md`.
//!
//! Serving a directory, until something calls [`server::Handle::shutdown`]:
//!
//! ```
//! use towpath_files::server::{Server, ServerOptions};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let server = Server::bind(ServerOptions::new(directory).listen("tcp://127.0.0.1:0".parse()?))?;
//! println!("serving {} on {}", directory.display(), server.endpoints()[0]);
//! let handle = server.handle();
//! let thread = std::thread::spawn(move || server.run());
//!
//! handle.shutdown();
//! thread.join().expect("the server doesn't panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod catalogue;
pub mod client;
mod counted;
pub mod digest;
mod fields;
#[cfg(test)]
mod follow_model;
pub mod limits;
pub mod path;
pub mod protocol;
mod random;
mod record_log;
pub mod relay;
pub mod root;
pub mod server;

pub use counted::{counted, counted_are};
