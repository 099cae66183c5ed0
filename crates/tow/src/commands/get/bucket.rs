//! `tow get` into a bucket of S3.

use crate::cli::exit::Failure;
use std::path::Path;
use towpath_files::client::Destination;

/// Begins addresses of buckets.
const SCHEME: &str = "s3://";

/// Whether a destination is in a bucket.
pub fn is_bucket(destination: &Path) -> bool {
    destination.as_os_str().as_encoded_bytes().starts_with(SCHEME.as_bytes())
}

/// The destination. `into`: for several sources, each under its own name.
#[cfg(feature = "s3")]
pub fn destination(address: &Path, endpoint: Option<&str>, into: bool) -> Result<Destination, Failure> {
    s3::destination(address, endpoint, into)
}

/// The destination.
#[cfg(not(feature = "s3"))]
pub fn destination(_: &Path, _: Option<&str>, _: bool) -> Result<Destination, Failure> {
    Err(Failure::usage("s3://: this build of tow has no S3; build it with `cargo build --release --features s3`"))
}

#[cfg(feature = "s3")]
mod s3 {
    use super::SCHEME;
    use crate::cli::exit::Failure;
    use bytes::Bytes;
    use std::path::Path;
    use std::sync::Arc;
    use towpath_files::client::Destination;
    use towpath_files::client::objects::{ObjectAttributes, ObjectError, ObjectStore, ObjectUpload};
    use towpath_objects::{Bucket, Error, Kind, Metadata, ObjectUrl, Options, Upload};

    pub(super) fn destination(address: &Path, endpoint: Option<&str>, into: bool) -> Result<Destination, Failure> {
        let place = address.to_str().ok_or_else(|| Failure::usage("s3://: the address isn't UTF-8"))?.to_owned();
        let url: ObjectUrl = place.parse().map_err(Failure::usage)?;
        // A slash at the end says that a file goes below it.
        let prefix = place[SCHEME.len()..].split_once('/').map_or("", |(_, prefix)| prefix).to_owned();
        let mut options = Options::default();
        options.endpoint = endpoint.map(str::to_owned);
        let whole = ObjectUrl { bucket: url.bucket, prefix: String::new() };
        let bucket = Bucket::open(&whole, &options).map_err(Failure::usage)?;
        Ok(Destination::Objects { store: Arc::new(Store(bucket)), prefix, into, place })
    }

    /// A bucket that files are put into.
    #[derive(Debug)]
    struct Store(Bucket);

    impl Store {
        fn failed(&self, key: &str) -> impl Fn(Error) -> ObjectError {
            let subject = format!("{}{key}: ", self.0.url());
            move |error| failed(&subject, &error)
        }
    }

    /// An error without the key, which is said beside it.
    fn failed(subject: &str, error: &Error) -> ObjectError {
        let is_for_all = matches!(
            error.kind,
            Kind::NoBucket | Kind::Denied | Kind::Expired | Kind::NoCredentials | Kind::Unreachable | Kind::Settings
        );
        let text = error.to_string();
        ObjectError { is_for_all, message: text.strip_prefix(subject).unwrap_or(&text).to_owned() }
    }

    fn metadata(attributes: &ObjectAttributes) -> Metadata {
        attributes.pairs().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    impl ObjectStore for Store {
        fn is_empty(&self, prefix: &str) -> Result<bool, ObjectError> {
            // The answer without a key names the bucket alone.
            let slash = if prefix.is_empty() { "" } else { "/" };
            let below = format!("{prefix}{slash}");
            self.0.is_directory(prefix).map(|is_there| !is_there).map_err(self.failed(&below))
        }

        fn head(&self, key: &str) -> Result<Option<(u64, ObjectAttributes)>, ObjectError> {
            let object = match self.0.head(key) {
                Err(error) if error.kind == Kind::NotFound => return Ok(None),
                object => object.map_err(self.failed(key))?,
            };
            let get = |wanted: &str| object.metadata.iter().find(|(name, _)| name == wanted).map(|(_, value)| &**value);
            Ok(Some((object.size, ObjectAttributes::parse(get))))
        }

        fn put(&self, key: &str, content: Bytes, attributes: &ObjectAttributes) -> Result<(), ObjectError> {
            self.0.put(key, content, &metadata(attributes)).map(drop).map_err(self.failed(key))
        }

        fn begin(&self, key: &str, attributes: &ObjectAttributes) -> Result<Arc<dyn ObjectUpload>, ObjectError> {
            let upload = self.0.upload(key, &metadata(attributes)).map_err(self.failed(key))?;
            Ok(Arc::new(Parts { upload, subject: format!("{}{key}: ", self.0.url()) }))
        }
    }

    /// An object that is put in parts.
    #[derive(Debug)]
    struct Parts {
        upload: Upload,
        subject: String,
    }

    impl ObjectUpload for Parts {
        fn put_part(&self, index: u32, content: Bytes) -> Result<(), ObjectError> {
            self.upload.part(index as usize, content).map_err(|error| failed(&self.subject, &error))
        }

        fn complete(&self) -> Result<(), ObjectError> {
            self.upload.complete().map(drop).map_err(|error| failed(&self.subject, &error))
        }

        fn abort(&self) -> Result<(), ObjectError> {
            self.upload.abort().map_err(|error| failed(&self.subject, &error))
        }
    }
}
