//! Requests that the library doesn't have, or not as they are needed.

use crate::error::of_http;
use crate::settings::BACKOFF_FIRST;
use crate::store::Store;
use crate::{Error, Kind};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpRequest, HttpResponse};
use std::fmt::Write as _;

/// Repetitions of a request that failed for a passing reason.
const RETRIES_MAX: u32 = 5;
/// Largest answer with an error that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Makes a request until it succeeds, fails for a reason that doesn't pass, or was repeated often enough.
pub(crate) async fn repeated<T, F: Future<Output = Result<T, Error>>>(once: impl Fn() -> F) -> Result<T, Error> {
    let mut wait = BACKOFF_FIRST;
    for _ in 0..RETRIES_MAX {
        match once().await {
            Err(error) if error.kind.is_passing() => tokio::time::sleep(wait).await,
            outcome => return outcome,
        }
        wait *= 2;
    }
    once().await
}

impl Store {
    /// Signs a request about a key, and makes it: the body of its answer, of at most so many bytes.
    pub(crate) async fn ask(
        &self,
        key: &str,
        request: Result<HttpRequest, http::Error>,
        most: usize,
    ) -> Result<Bytes, Error> {
        let failed = |kind, detail: &str| Error::new(kind, self.place(key), detail);
        let mut request = request.map_err(|error| failed(Kind::Settings, &error.to_string()))?;
        if !self.anonymous {
            let credential = self.objects.credentials().get_credential().await;
            let credential = credential.map_err(|error| Error::of(self.place(key), &error))?;
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .with_request_payer(self.request_payer)
                .try_authorize(&mut request, None)
                .map_err(|error| Error::of(self.place(key), &error))?;
        }
        let response =
            self.client.execute(request).await.map_err(|error| failed(of_http(&error), &error.to_string()))?;
        let status = response.status();
        let most = if status.is_success() { most } else { ERROR_BYTES_MAX };
        let body = read(response, most).await.map_err(|why| failed(Kind::Unreachable, &why))?;
        if !status.is_success() {
            return Err(Error::of_response(self.place(key), status.as_u16(), &String::from_utf8_lossy(&body)));
        }
        Ok(body)
    }
}

/// The body of an answer, if it isn't too large.
async fn read(response: HttpResponse, most: usize) -> Result<Bytes, String> {
    let mut body = BytesMut::new();
    let mut stream = response.into_body().bytes_stream();
    while let Some(bytes) = stream.next().await {
        let bytes = bytes.map_err(|error| error.to_string())?;
        if body.len() + bytes.len() > most {
            return Err(format!("the answer has over {most} bytes"));
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body.freeze())
}

/// Appends a value of a query, or a name of a path.
pub(crate) fn encode(url: &mut String, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
}
