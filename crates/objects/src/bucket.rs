//! A prefix of a bucket.

use crate::list::{tag, whole_seconds};
use crate::store::Store;
use crate::{Condition, Error, Kind, ObjectUrl, Options, Page, Upload};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, UpdateVersion,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

/// Entries of a page, as S3 has them at most.
const PAGE_ENTRIES_MAX: u32 = 1000;

/// Metadata of an object that its owner chose: names in lower case, and values in ASCII.
pub type Metadata = Vec<(String, String)>;

/// A bucket. Cheap to clone.
#[derive(Clone)]
pub struct Bucket(pub(crate) Arc<Store>);

/// An object, as the store has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Size in bytes.
    pub size: u64,
    /// When it was put there, in whole seconds.
    pub modified: SystemTime,
    /// Its entity tag; other contents have others.
    pub e_tag: Option<String>,
    /// From its owner.
    pub metadata: Metadata,
}

impl Bucket {
    /// Finds the settings. Asks nobody yet: see [`Bucket::check`].
    pub fn open(url: &ObjectUrl, options: &Options) -> Result<Bucket, Error> {
        Store::open(url, options).map(|store| Bucket(Arc::new(store)))
    }

    /// The address that it was opened by.
    pub fn url(&self) -> &ObjectUrl {
        &self.0.url
    }

    /// URL of the bucket itself.
    pub fn endpoint(&self) -> &str {
        &self.0.bucket_endpoint
    }

    /// Fails if the bucket isn't there, or nothing may be listed below its prefix.
    pub fn check(&self) -> Result<(), Error> {
        self.0.block_on(&self.0.url.prefix, self.0.page(&self.directory(""), None, 1)).map(drop)
    }

    /// Whether the store can be asked for an object at a path: some keys are only in listings.
    pub fn may_ask(&self, path: &str) -> bool {
        self.0.key(path).is_ok()
    }

    /// Attributes of the object at a path below the prefix.
    pub fn head(&self, path: &str) -> Result<Object, Error> {
        let key = self.0.key(path)?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let head = async { self.0.objects.get_opts(&key, options).await.map_err(|error| self.0.failed(&key, &error)) };
        self.0.block_on(key.as_ref(), head).map(|result| Object::from(&result))
    }

    /// Opens a range of an object, of this version if there is a tag. Of an object that has fewer bytes, fails.
    pub fn read(&self, path: &str, range: Range<u64>, e_tag: Option<&str>) -> Result<Reading, Error> {
        let key = self.0.key(path)?;
        let length = range.end.saturating_sub(range.start);
        let range = (length > 0).then_some(GetRange::Bounded(range));
        let options = GetOptions { range, if_match: e_tag.map(str::to_owned), ..GetOptions::default() };
        let get = async { self.0.objects.get_opts(&key, options).await.map_err(|error| self.0.failed(&key, &error)) };
        let result = self.0.block_on(key.as_ref(), get)?;
        let object = Object::from(&result);
        // Not all stores know If-Match.
        if e_tag.is_some() && object.e_tag.as_deref() != e_tag {
            return Err(Error::new(Kind::Changed, self.0.place(key.as_ref()), ""));
        }
        Ok(Reading { object, left: length, body: result.into_stream(), key, store: Arc::clone(&self.0) })
    }

    /// A page of what is directly below a directory, which is a path, at a mark from [`Page::next`]. Keys and prefixes in it are whole. An empty one is
    /// the last.
    pub fn list(&self, directory: &str, mark: Option<&str>) -> Result<Page, Error> {
        let prefix = self.directory(directory);
        self.0.block_on(&prefix, self.0.page_with_entries(&prefix, mark, PAGE_ENTRIES_MAX))
    }

    /// Whether any key begins with this directory's prefix.
    pub fn is_directory(&self, path: &str) -> Result<bool, Error> {
        let prefix = self.directory(path);
        let page = self.0.block_on(&prefix, self.0.page_with_entries(&prefix, None, 1))?;
        Ok(!page.objects.is_empty() || !page.prefixes.is_empty())
    }

    /// Puts a whole object, and returns its entity tag.
    pub fn put(&self, path: &str, content: Bytes, metadata: &Metadata) -> Result<Option<String>, Error> {
        self.put_in(path, content, metadata, PutMode::Overwrite)
    }

    /// The same if there is no such object yet; [`Kind::Changed`] otherwise.
    pub fn put_new(&self, path: &str, content: Bytes, metadata: &Metadata) -> Result<Option<String>, Error> {
        self.put_in(path, content, metadata, PutMode::Create)
    }

    /// The same on a condition; [`Kind::Changed`] if it isn't fulfilled. After a lost answer, that may come of this object itself.
    pub fn put_if(
        &self,
        path: &str,
        content: Bytes,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Option<String>, Error> {
        let mode = match condition {
            Condition::Anything => PutMode::Overwrite,
            Condition::Nothing => PutMode::Create,
            Condition::Tag(tag) => PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version: None }),
        };
        self.put_in(path, content, metadata, mode)
    }

    fn put_in(&self, path: &str, content: Bytes, metadata: &Metadata, mode: PutMode) -> Result<Option<String>, Error> {
        let key = self.0.key(path)?;
        let options = PutOptions { mode, attributes: attributes(metadata), ..PutOptions::default() };
        let length = content.len();
        let put = async {
            let put = self.0.puts.put_opts(&key, PutPayload::from_bytes(content), options).await;
            put.map_err(|error| match error {
                object_store::Error::AlreadyExists { .. } => {
                    Error::new(Kind::Changed, self.0.place(key.as_ref()), "it exists")
                }
                error => self.0.failed(&key, &error),
            })
        };
        self.0.block_on_put(key.as_ref(), length, put).map(|put| put.e_tag)
    }

    /// Begins to put an object in parts.
    pub fn upload(&self, path: &str, metadata: &Metadata) -> Result<Upload, Error> {
        Upload::begin(Arc::clone(&self.0), self.0.key(path)?, attributes(metadata))
    }

    /// Removes an object; one that isn't there is no error.
    pub fn delete(&self, path: &str) -> Result<(), Error> {
        let key = self.0.key(path)?;
        let delete = async { self.0.objects.delete(&key).await.map_err(|error| self.0.failed(&key, &error)) };
        match self.0.block_on(key.as_ref(), delete) {
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// Keys below a directory begin with it.
    fn directory(&self, path: &str) -> String {
        let key = self.0.url.key(path);
        if key.is_empty() { key } else { key + "/" }
    }
}

fn attributes(metadata: &Metadata) -> Attributes {
    let of = |(name, value): &(String, String)| (Attribute::Metadata(name.clone().into()), value.clone());
    metadata.iter().map(of).collect()
}

impl From<&GetResult> for Object {
    fn from(of: &GetResult) -> Object {
        let metadata = of.attributes.iter().filter_map(|(name, value)| match name {
            Attribute::Metadata(name) => Some((name.to_string(), value.to_string())),
            _ => None,
        });
        let modified = whole_seconds(SystemTime::from(of.meta.last_modified));
        Object { size: of.meta.size, modified, e_tag: tag(of.meta.e_tag.clone()), metadata: metadata.collect() }
    }
}

/// The body of a range, as it comes.
pub struct Reading {
    /// The object whose range it is.
    pub object: Object,
    left: u64,
    body: BoxStream<'static, object_store::Result<Bytes>>,
    key: Path,
    store: Arc<Store>,
}

impl Reading {
    /// The next bytes; `None` once all of the range were there. Blocks.
    pub fn next_bytes(&mut self) -> Result<Option<Bytes>, Error> {
        let Reading { left, body, key, store, .. } = self;
        let next = async { body.next().await.transpose().map_err(|error| store.failed(key, &error)) };
        let Some(bytes) = store.block_on(key.as_ref(), next)? else {
            let missing = |left: u64| {
                Error::new(Kind::Unreachable, store.place(key.as_ref()), &format!("{left} bytes are missing"))
            };
            return if *left == 0 { Ok(None) } else { Err(missing(*left)) };
        };
        *left = left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| Error::new(Kind::Other, store.place(key.as_ref()), "more bytes came than were asked for"))?;
        Ok(Some(bytes))
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.0.url)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("key", &self.key).field("left", &self.left).finish_non_exhaustive()
    }
}
