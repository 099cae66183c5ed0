//! Objects that are put in parts.

use crate::error::element;
use crate::request::{encode, repeated};
use crate::store::Store;
use crate::{Error, Kind};
use bytes::Bytes;
use http::Method;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use object_store::client::HttpRequestBody;
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{Attributes, MultipartId, PutMultipartOptions, PutPayload};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most parts of an object, as S3 has them.
const PARTS_MAX: usize = 10_000;

/// Largest answer to the completion of an object.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// State of a key without which an object isn't put there. Not all stores know it: one that doesn't puts the object in any case, or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Any.
    Anything,
    /// There is no object.
    Nothing,
    /// There is an object with this entity tag.
    Tag(String),
}

/// An object that is put in parts, from several threads if they like. There is nothing at its key until [`Upload::complete`]. Dropping it
/// aborts it, without waiting for the store's answer.
pub struct Upload {
    store: Arc<Store>,
    key: Path,
    id: MultipartId,
    parts: Mutex<BTreeMap<usize, PartId>>,
    is_over: AtomicBool,
}

impl Upload {
    /// Smallest part but the last, in bytes, as S3 has it. All but the last should have the same size.
    pub const PART_BYTES_MIN: u64 = 5 << 20;

    pub(crate) fn begin(store: Arc<Store>, key: Path, attributes: Attributes) -> Result<Upload, Error> {
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let begin = async {
            store.objects.create_multipart_opts(&key, options).await.map_err(|error| store.failed(&key, &error))
        };
        let id = store.block_on(key.as_ref(), begin)?;
        Ok(Upload { store, key, id, parts: Mutex::default(), is_over: AtomicBool::new(false) })
    }

    /// Puts a part; the first one has number 0. One that was put before is replaced.
    pub fn part(&self, number: usize, content: Bytes) -> Result<(), Error> {
        if number >= PARTS_MAX {
            return Err(self.wrong(&format!("an object has {PARTS_MAX} parts at most")));
        }
        let (length, payload) = (content.len(), PutPayload::from_bytes(content));
        let put = async {
            let put = self.store.puts.put_part(&self.key, &self.id, number, payload).await;
            put.map_err(|error| self.store.failed(&self.key, &error))
        };
        let part = self.store.block_on_put(self.key.as_ref(), length, put)?;
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert(number, part);
        Ok(())
    }

    /// Puts the object in place, and returns its entity tag. Fails if a part is missing.
    pub fn complete(&self) -> Result<Option<String>, Error> {
        self.complete_if(&Condition::Anything)
    }

    /// The same on a condition: [`Kind::Changed`] if it isn't fulfilled. After a lost answer, that may come of this object itself.
    pub fn complete_if(&self, condition: &Condition) -> Result<Option<String>, Error> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if parts.is_empty() || parts.keys().enumerate().any(|(at, number)| at != *number) {
            return Err(self.wrong("a part is missing"));
        }
        let parts: Vec<PartId> = parts.into_values().collect();
        let e_tag = match condition {
            Condition::Anything => {
                let complete = async {
                    let put = self.store.objects.complete_multipart(&self.key, &self.id, parts).await;
                    put.map_err(|error| self.store.failed(&self.key, &error))
                };
                self.store.block_on(self.key.as_ref(), complete)?.e_tag
            }
            // The library has no such request.
            _ => {
                let body = parts_xml(&parts);
                let complete = repeated(|| self.complete_once(condition, &body));
                self.store.block_on(self.key.as_ref(), complete)?
            }
        };
        self.is_over.store(true, Ordering::Relaxed);
        Ok(e_tag)
    }

    async fn complete_once(&self, condition: &Condition, parts: &str) -> Result<Option<String>, Error> {
        let mut url = self.store.bucket_endpoint.clone();
        for name in self.key.as_ref().split('/') {
            url.push('/');
            encode(&mut url, name);
        }
        url.push_str("?uploadId=");
        encode(&mut url, &self.id);
        let request = http::Request::builder().method(Method::POST).uri(url);
        let request = match condition {
            Condition::Anything => request,
            Condition::Nothing => request.header(IF_NONE_MATCH, "*"),
            Condition::Tag(tag) => request.header(IF_MATCH, tag),
        };
        let request = request.body(HttpRequestBody::from(parts.to_owned()));
        let body = self.store.ask(self.key.as_ref(), request, ANSWER_BYTES_MAX).await?;
        let body = String::from_utf8_lossy(&body);
        // A store that takes long begins its answer before it knows.
        if body.contains("<Error>") {
            return Err(Error::of_response(self.store.place(self.key.as_ref()), 500, &body));
        }
        let Some(tag) = element(&body, "ETag") else {
            let place = self.store.place(self.key.as_ref());
            return Err(Error::new(
                Kind::Unreachable,
                place,
                "the answer to the completion of an upload is incomplete",
            ));
        };
        Ok(Some(tag.replace("&quot;", "\"").replace("&#34;", "\"")))
    }

    /// Removes what was put. Waits for the store's answer. Parts that are being put then fail.
    pub fn abort(&self) -> Result<(), Error> {
        self.is_over.store(true, Ordering::Relaxed);
        let abort = async {
            let abort = self.store.objects.abort_multipart(&self.key, &self.id).await;
            abort.map_err(|error| self.store.failed(&self.key, &error))
        };
        self.store.block_on(self.key.as_ref(), abort)
    }

    fn wrong(&self, why: &str) -> Error {
        Error::new(Kind::Other, self.store.place(self.key.as_ref()), why)
    }
}

/// The parts, as a store wants them.
fn parts_xml(parts: &[PartId]) -> String {
    let mut xml = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
    for (number, PartId { content_id, .. }) in (1..).zip(parts) {
        let tag = content_id.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(xml, "<Part><ETag>{tag}</ETag><PartNumber>{number}</PartNumber></Part>");
    }
    xml + "</CompleteMultipartUpload>"
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let (store, key, id) = (Arc::clone(&self.store), self.key.clone(), self.id.clone());
        Store::detach(async move {
            if let Err(error) = store.objects.abort_multipart(&key, &id).await {
                tracing::warn!(key = %key, %error, "the parts of an unfinished upload are left in the store");
            }
        });
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("key", &self.key).field("id", &self.id).finish_non_exhaustive()
    }
}
