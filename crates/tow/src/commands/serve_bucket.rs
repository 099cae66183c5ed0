//! Options of `tow serve` for objects in S3.

use super::cache_args::CacheArgs;
use crate::cli::exit::Failure;
#[cfg(feature = "s3")]
use crate::cli::exit::Status;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use towpath_files::server::source::Source;

/// Options of a served bucket.
#[derive(clap::Args)]
#[command(next_help_heading = "S3")]
pub struct BucketArgs {
    /// URL of the store, if it isn't AWS or the one in AWS_ENDPOINT_URL.
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
    /// Ask without credentials, for public buckets.
    #[arg(long)]
    s3_anonymous: bool,
}

/// A bucket that is served.
pub struct ServedBucket {
    /// Its objects as files.
    pub source: Arc<dyn Source>,
    /// Directory in which pushed files arrive, if there is a cache.
    pub staging: Option<PathBuf>,
}

/// Whether a path is an address of objects.
pub fn is_bucket(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"s3://")
}

impl BucketArgs {
    /// An option that is for a bucket alone, if one was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [("--s3-endpoint", self.s3_endpoint.is_some()), ("--s3-anonymous", self.s3_anonymous)];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// The bucket at an address.
    #[cfg(feature = "s3")]
    pub fn open(&self, path: &Path, cache: &CacheArgs) -> Result<ServedBucket, Failure> {
        use super::bucket_source::BucketSource;
        use towpath_objects::{Bucket, Error, Kind, ObjectUrl, Options};

        let url: ObjectUrl = path.to_string_lossy().parse().map_err(Failure::usage)?;
        let mut options = Options::default();
        options.endpoint.clone_from(&self.s3_endpoint);
        options.anonymous = self.s3_anonymous;
        let failed = |error: Error| match error.kind {
            Kind::NoBucket | Kind::NotFound => Failure::new(Status::NotFound, error),
            Kind::Denied | Kind::Expired => Failure::new(Status::Refused, error),
            Kind::Unreachable | Kind::SlowDown => Failure::new(Status::NoServer, error),
            Kind::Settings | Kind::NoCredentials => Failure::usage(error),
            _ => Failure::failed(error),
        };
        let bucket = Bucket::open(&url, &options).map_err(failed)?;
        let cache = cache.open()?;
        // Of this bucket and prefix alone: others may have the same cache.
        let place = format!("{} {}", bucket.endpoint(), bucket.url().prefix);
        let place = blake3::hash(place.as_bytes()).to_hex();
        let staging = cache.as_ref().map(|cache| cache.directory().join("incoming").join(place.as_str()));
        let source = BucketSource::open(bucket, cache).map_err(failed)?;
        Ok(ServedBucket { source: Arc::new(source), staging })
    }

    #[cfg(not(feature = "s3"))]
    #[expect(clippy::unused_self, reason = "as with S3")]
    pub fn open(&self, _: &Path, _: &CacheArgs) -> Result<ServedBucket, Failure> {
        Err(Failure::usage("s3://: this build of tow has no S3; build it with `cargo build --release --features s3`"))
    }
}
