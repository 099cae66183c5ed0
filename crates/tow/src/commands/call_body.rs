//! The body of a request of `tow call`, from words, files or standard input.

use super::call::run_blocking;
use crate::cli::body_io::{ReadBodyError, read_body};
use crate::cli::exit::Failure;
use bytes::Bytes;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use towpath_requests::Body;

/// Body from the command line, or else from standard input.
pub async fn request_body(
    words: Vec<OsString>,
    as_frames: bool,
    spool_folder: Option<PathBuf>,
) -> Result<Body, Failure> {
    match &words[..] {
        [] => read("-".into(), spool_folder).await,
        [word] if !as_frames => match Word::of(word) {
            Word::File(path) => read(path, spool_folder).await,
            Word::Text(text) => Ok(Body::from(text)),
        },
        words if as_frames => {
            let mut frames = Vec::with_capacity(words.len());
            for word in words {
                frames.push(match Word::of(word) {
                    Word::File(path) => one_frame(&path, read(path.clone(), spool_folder.clone()).await?)?,
                    Word::Text(text) => text.into(),
                });
            }
            Ok(Body::of_frames(frames))
        }
        words => Ok(Body::from(words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>().join(&b' '))),
    }
}

/// A word that is a body or a frame: `@FILE`, as of curl, or itself; `@@` is `@`.
enum Word {
    File(PathBuf),
    Text(Vec<u8>),
}

impl Word {
    fn of(word: &OsStr) -> Word {
        match word.as_bytes().strip_prefix(b"@") {
            Some(literal @ [b'@', ..]) => Word::Text(literal.to_vec()),
            Some(path @ [_, ..]) => Word::File(OsStr::from_bytes(path).into()),
            _ => Word::Text(word.as_bytes().to_vec()),
        }
    }
}

/// Content of a file; `-` is standard input.
async fn read(path: PathBuf, spool_folder: Option<PathBuf>) -> Result<Body, Failure> {
    let is_input = path.as_os_str() == "-";
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    let body = run_blocking(move || match is_input {
        true => read_body(std::io::stdin().lock(), spool_folder),
        false => read_body(File::open(path)?, spool_folder),
    });
    body.await?.map_err(|error| match error {
        ReadBodyError::Stream(error) => Failure::failed(format!("{name}: {error}")),
        ReadBodyError::Spool(error) => Failure::failed(error),
    })
}

fn one_frame(path: &Path, body: Body) -> Result<Bytes, Failure> {
    let frame = body.to_frames().map(|frames| frames.concat());
    frame.map(Bytes::from).ok_or_else(|| {
        Failure::usage(format!(
            "{}: a frame from a file may have 1 MiB; send it as the body of its own",
            path.display()
        ))
    })
}
