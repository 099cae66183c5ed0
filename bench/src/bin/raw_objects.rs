//! Objects of a store that speaks S3, by the crate `object_store` alone: large ones in ranges or parts, small ones several at a time. Nothing
//! is verified, and nothing is between the store and the disk. It's the limit for `tow serve s3://` and `tow get` into a bucket, which use
//! the same crate.
//!
//! Credentials and the store's address are those of the environment.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Parser;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, WriteMultipart};

/// Bytes of a range, and of a part.
const PART_BYTES: u64 = 8 << 20;
/// Ranges and parts at a time.
const PARTS: usize = 8;
/// Small objects at a time.
const OBJECTS: usize = 32;
const THREADS: usize = 2;

/// Objects of a bucket.
#[derive(Parser)]
struct Options {
    #[arg(long)]
    bucket: String,
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Parser)]
enum Operation {
    /// Gets an object, or all below a prefix that ends with a slash
    Get {
        key: String,
        /// Drops what arrives without it
        #[arg(long)]
        to: Option<PathBuf>,
    },
    /// Puts a file, or all files below a folder
    Put { file: PathBuf, key: String },
    /// Removes an object
    Delete { key: String },
}

fn main() -> Result<()> {
    let options = Options::parse();
    // An error would say that there is one already, and any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        let builder = AmazonS3Builder::from_env().with_bucket_name(options.bucket).with_allow_http(true);
        let store = Arc::new(builder.build()?);
        match options.operation {
            Operation::Get { key, to } if key.ends_with('/') => get_all(&store, &key, to.as_deref()).await,
            Operation::Get { key, to } => get(&store, &key.into(), to.as_deref()).await,
            Operation::Put { file, key } if file.is_dir() => put_all(&store, &file, &key).await,
            Operation::Put { file, key } => put(&store, &file, &key.into()).await,
            Operation::Delete { key } => Ok(store.delete(&key.into()).await?),
        }
    })
}

/// One object, in ranges.
async fn get(store: &Arc<AmazonS3>, key: &Key, to: Option<&Path>) -> Result<()> {
    let size = store.head(key).await?.size;
    let file = to.map(File::create).transpose()?.map(Arc::new);
    let ranges = (0..size.div_ceil(PART_BYTES)).map(|number| {
        let begin = number * PART_BYTES;
        let range = GetRange::Bounded(begin..(begin + PART_BYTES).min(size));
        let (store, key, file) = (Arc::clone(store), key.clone(), file.clone());
        async move {
            let options = GetOptions::new().with_range(Some(range));
            let (mut parts, mut at) = (store.get_opts(&key, options).await?.into_stream(), begin);
            while let Some(bytes) = parts.try_next().await? {
                if let Some(file) = &file {
                    file.write_all_at(&bytes, at)?;
                }
                at += bytes.len() as u64;
            }
            Ok(())
        }
    });
    at_a_time(PARTS, ranges).await
}

/// All objects below a prefix, each as a whole.
async fn get_all(store: &Arc<AmazonS3>, prefix: &str, to: Option<&Path>) -> Result<()> {
    let listed = store.list(Some(&prefix.into())).map_err(anyhow::Error::from);
    let to = to.map(Path::to_owned);
    listed
        .try_for_each_concurrent(OBJECTS, |object| {
            let (store, to) = (Arc::clone(store), to.clone());
            let path = object.location.as_ref().strip_prefix(prefix).map(str::to_owned);
            let got = async move {
                let content = store.get(&object.location).await?.bytes().await?;
                let Some(to) = to else { return Ok(()) };
                let path = to.join(path.context("a key without its prefix")?);
                fs::create_dir_all(path.parent().unwrap_or(&to))?;
                fs::write(path, content)?;
                anyhow::Ok(())
            };
            async { tokio::spawn(got).await? }
        })
        .await
}

/// One file, in parts if it has several.
async fn put(store: &Arc<AmazonS3>, file: &Path, key: &Key) -> Result<()> {
    let mut file = File::open(file)?;
    let size = file.metadata()?.len();
    if size <= PART_BYTES {
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        store.put(key, content.into()).await?;
        return Ok(());
    }
    let part_bytes = usize::try_from(PART_BYTES)?;
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(key).await?, part_bytes);
    let mut left = size;
    while left > 0 {
        upload.wait_for_capacity(PARTS).await?;
        let mut part = vec![0; usize::try_from(left.min(PART_BYTES))?];
        file.read_exact(&mut part)?;
        left -= part.len() as u64;
        upload.put(Bytes::from(part));
    }
    upload.finish().await?;
    Ok(())
}

/// All files below a folder.
async fn put_all(store: &Arc<AmazonS3>, folder: &Path, key: &str) -> Result<()> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let puts = files.into_iter().map(|path| {
        let store = Arc::clone(store);
        let key = path.strip_prefix(folder).map(|below| format!("{key}/{}", below.display()));
        async move { put(&store, &path, &key?.into()).await }
    });
    at_a_time(OBJECTS, puts).await
}

/// Runs tasks, some of them at a time, until all have ended or one has failed.
async fn at_a_time(
    most: usize,
    tasks: impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static>,
) -> Result<()> {
    stream::iter(tasks)
        .map(|task| async { tokio::spawn(task).await? })
        .buffer_unordered(most)
        .try_for_each(|()| async { Ok(()) })
        .await
}
