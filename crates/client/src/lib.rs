//! Requests over ZeroMQ's wire protocol: asynchronous clients and workers that hold outstanding requests and resend them.
//!
//! A client calls a service of any number of workers through a broker:
//!
//! ```no_run
//! use towpath_client::Status;
//! use towpath_client::client::{CallOptions, Client, ClientOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&["tcp://127.0.0.1:5555".parse()?], ClientOptions::default())?;
//! let reply = client.call("upper", "some text").await?;
//! println!("{}", String::from_utf8_lossy(&reply.body.to_vec_limited(1 << 20)?));
//!
//! let number = client.send("upper", "more text", CallOptions::default()).await?;
//! while let Some(outcome) = client.receive().await {
//!     if outcome.number == number && outcome.status == Status::OK {
//!         break;
//!     }
//! }
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! A worker answers, here four requests at a time:
//!
//! ```no_run
//! use towpath_client::worker::{Worker, WorkerOptions};
//! use towpath_client::{Body, MechanismConfig, PublicKey, SecretKey, system_random};
//!
//! # async fn example(key: SecretKey, server: PublicKey) -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = WorkerOptions { credit: 4, ..WorkerOptions::default() };
//! options.link.mechanism = MechanismConfig::CurveClient { key, server, random: system_random(), aes: false };
//! let worker = Worker::connect(&["tcp://127.0.0.1:5555".parse()?], "upper", options)?;
//! worker
//!     .run(|request| async move {
//!         let text = request.body().to_vec_limited(1 << 20).map_err(|error| error.to_string())?;
//!         Ok(Body::from(text.to_ascii_uppercase()))
//!     })
//!     .await;
//! # Ok(())
//! # }
//! ```
//!
//! [`client`] and [`worker`] say more. `docs/protocol/requests.md` specifies the protocol and its guarantees.

#![warn(missing_debug_implementations)]

pub mod client;
mod connection;
#[doc(hidden)]
pub mod sans_io;
pub mod worker;

pub use connection::{Dialect, LinkOptions};
pub use towpath_requests::numbered::{ClientId, RequestId, Status};
pub use towpath_requests::{Body, BodyReader, LargeBody};
/// Used by the options of clients and workers, by what they report, and by bodies in files.
pub use towpath_sockets::{
    Endpoint, FileRange, MechanismConfig, PublicKey, Random, Refusal, SecretKey, SocketError, system_random,
};
pub use towpath_spool::{Spool, SpoolWriter, SpooledBody, default_spool_folder};
