#![doc = include_str!("../README.md")]
//! [`Hub`] is the batched interface: one thread owns all peers of a socket and drives them poll by poll.
//!
//! ```
//! use towpath_sockets::{Endpoint, Event, Hub, HubOptions, Message, SocketType};
//!
//! let mut server = Hub::new(HubOptions::new(SocketType::Router))?;
//! let endpoint = server.bind(&"tcp://127.0.0.1:0".parse()?)?;
//! let mut client = Hub::new(HubOptions::new(SocketType::Dealer))?;
//! client.connect(&endpoint)?;
//!
//! let echoed = loop {
//!     server.poll(Some(std::time::Duration::from_millis(1)))?;
//!     while let Some(event) = server.next_event() {
//!         if let Event::Message { peer, frames, .. } = event {
//!             server.send(peer, frames.into_iter().collect::<Message>())?;
//!         }
//!     }
//!     client.poll(Some(std::time::Duration::from_millis(1)))?;
//!     match client.next_event() {
//!         Some(Event::Ready { peer }) => client.send(peer, Message::new().with(&b"hello"[..]))?,
//!         Some(Event::Message { frames, .. }) => break frames,
//!         _ => {}
//!     }
//! };
//! assert_eq!(&echoed[0][..], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Socket`] is the simple one, on tokio: send a message, receive a message.
//!
//! ```
//! use towpath_sockets::{HubOptions, Message, Socket, SocketType};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let server = Socket::new(HubOptions::new(SocketType::Rep))?;
//! let endpoint = server.bind(&"tcp://127.0.0.1:0".parse()?)?;
//! let client = Socket::new(HubOptions::new(SocketType::Req))?;
//! client.connect(&endpoint)?;
//! client.send(Message::new().with(&b"how far?"[..])).await?;
//! let question = server.recv().await?;
//! assert_eq!(&question.frames[0][..], b"how far?");
//! server.send(Message::new().with(&b"ten miles"[..])).await?;
//! assert_eq!(&client.recv().await?.frames[0][..], b"ten miles");
//! // Sends what is queued, and counts what can't be sent.
//! assert!(server.close(std::time::Duration::from_secs(5)).await.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_debug_implementations)]

mod auth;
mod disk;
mod error;
mod event;
mod handle;
mod hub;
mod message;
mod net;
mod on_tokio;
mod options;
mod options_check;
mod peer;
mod peer_id;
mod random;
mod relay;
mod socket;
mod unsent;
mod waker;

pub use auth::{Authenticator, Gate};
pub use disk::page_cache;
pub use error::{SendError, SocketError};
pub use event::Event;
pub use handle::{Command, Handle, PAGE_MAX, Page, Wanted};
pub use hub::{Ends, GonePeer, Hub, HubStats, LargeMessages, SLOW_ROUNDS, Traffic};
pub use message::{ComingFile, FileRange, Frame, IfShort, Message, OpenFile};
pub use net::address::Address;
pub use net::endpoint::{Endpoint, check_openness};
pub use net::ipc::IpcListener;
pub use net::tenant::Tenant;
pub use on_tokio::{HubReady, Turn};
pub use options::{Backoff, Congestion, HubOptions, STABLE_AFTER};
pub use peer::PeerInfo;
pub use peer_id::PeerId;
pub use random::system_random;
pub use relay::{RelayKey, RelayStats, RelayTo};
pub use socket::{Received, Socket};
pub use towpath_tcpinfo::TcpInfo;
pub use towpath_zmtp::limits::DEDICATED_BUFFER_BYTES;
pub use towpath_zmtp::{
    Credentials, Frames, Heartbeat, KeyError, MechanismConfig, Metadata, Principal, ProtocolDeviations, PublicKey,
    Queued, Random, Refusal, Secret, SecretKey, SocketType, has_aes_instructions,
};
pub use unsent::Unsent;
pub use waker::Waker;
