//! A store as all requests need it.

use crate::settings::{PUT_RETRY_TIME, Settings, retry};
use crate::{Error, Kind, ObjectUrl, Options};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::path::Path;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Threads that drive connections. Bodies are read on the caller's.
const THREADS: usize = 2;
/// Time in which a call ends, with all repetitions; of a body, each part of it.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// Slowest rate at which content is put, in bytes a second.
const PUT_RATE_MIN: u64 = 64 << 10;

/// All that requests need, and the threads that run them.
pub(crate) struct Store {
    pub(crate) url: ObjectUrl,
    pub(crate) objects: AmazonS3,
    /// The same for requests with content, which may take long to send.
    pub(crate) puts: AmazonS3,
    pub(crate) client: HttpClient,
    pub(crate) bucket_endpoint: String,
    pub(crate) region: String,
    pub(crate) anonymous: bool,
    pub(crate) request_payer: bool,
}

/// The threads of all buckets of this process. Started once, and never ended: dropping them could block.
fn runtime() -> std::io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("objects")
        .enable_all()
        .build()?;
    // Another thread may have been faster; the runtime that is too many has no tasks yet.
    Ok(RUNTIME.get_or_init(|| runtime))
}

impl Store {
    /// Finds the settings. Asks nobody yet.
    pub(crate) fn open(url: &ObjectUrl, options: &Options) -> Result<Store, Error> {
        let failed = |error: &object_store::Error| Error::new(Kind::Settings, url.to_string(), &error.to_string());
        // Another one may be there already; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = runtime().map_err(|error| Error::new(Kind::Other, url.to_string(), &error.to_string()))?;
        let _entered = runtime.enter();
        let Settings { builder, client, bucket_endpoint, region, anonymous, request_payer } =
            Settings::find(url, options)?;
        let unlimited = client.clone().with_read_timeout_disabled();
        let puts = builder.clone().with_client_options(unlimited).with_retry(retry(PUT_RETRY_TIME));
        let puts = puts.build().map_err(|error| failed(&error))?;
        let client = ReqwestConnector::default().connect(&client).map_err(|error| failed(&error))?;
        let objects = builder.build().map_err(|error| failed(&error))?;
        Ok(Store { url: url.clone(), objects, puts, client, bucket_endpoint, region, anonymous, request_payer })
    }

    /// Runs a call to its end on the caller's thread.
    pub(crate) fn block_on<T>(&self, key: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.block_for(CALL_TIMEOUT, key, call)
    }

    /// The same for a call that puts content of this length.
    pub(crate) fn block_on_put<T>(
        &self,
        key: &str,
        length: usize,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.block_for(put_timeout(length), key, call)
    }

    fn block_for<T>(
        &self,
        limit: Duration,
        key: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let runtime = runtime().map_err(|error| Error::new(Kind::Other, self.place(key), &error.to_string()))?;
        runtime.block_on(async {
            tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
                let why = format!("no answer within {} s", limit.as_secs());
                Err(Error::new(Kind::Unreachable, self.place(key), &why))
            })
        })
    }

    /// Runs a call whose outcome nobody waits for.
    pub(crate) fn detach(call: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = runtime() {
            runtime.spawn(call);
        }
    }

    /// The key of a path below the prefix. A path that can't be a key is not found.
    pub(crate) fn key(&self, path: &str) -> Result<Path, Error> {
        let whole = self.url.key(path);
        let parsed = Path::parse(&whole).ok().filter(|key| key.as_ref() == whole && !whole.is_empty());
        parsed.ok_or_else(|| Error::new(Kind::NotFound, self.place(&whole), ""))
    }

    /// The address of a key, for messages.
    pub(crate) fn place(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.url.bucket)
    }

    pub(crate) fn failed(&self, key: &Path, error: &object_store::Error) -> Error {
        Error::of(self.place(key.as_ref()), error)
    }
}

/// Time in which content of this length has to be put, with all repetitions.
fn put_timeout(length: usize) -> Duration {
    CALL_TIMEOUT + Duration::from_secs(length as u64 / PUT_RATE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_content_has_longer() {
        assert_eq!(put_timeout(1000), CALL_TIMEOUT);
        assert_eq!(put_timeout(8 << 20), CALL_TIMEOUT + Duration::from_secs(128));
    }
}
