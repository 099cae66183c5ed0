//! Objects in S3 and in stores that speak its protocol, for threads that may block.
//!
//! [`Bucket`] is a prefix of a bucket. Its calls block, as those on files do, and end by themselves: a store that doesn't answer is
//! [`Kind::Unreachable`]. They may come from many threads at the same time, but not from asynchronous tasks. Credentials, region and
//! endpoint are found where the `aws` tools find them.

#![warn(missing_debug_implementations)]

mod bucket;
mod error;
mod list;
mod profile;
mod request;
mod settings;
mod store;
mod upload;
mod url;
mod version;

pub use bucket::{Bucket, Metadata, Object, Reading};
pub use error::{Error, Kind};
pub use list::{Listed, Page};
pub use settings::Options;
pub use upload::{Condition, Upload};
pub use url::ObjectUrl;
pub use version::Version;
