//! Confirmation of received files ("confirm").

use serde::{Deserialize, Serialize};

use super::bounded::Bounded;
use super::fields::{WirePath, required_path};
use crate::digest::Digest;
use crate::limits::FETCH_FILES_MAX;
use crate::protocol::WireError;

/// "confirm".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confirm {
    /// Id of the fetch.
    pub id: u32,
    /// Files that are in place.
    pub files: Vec<ConfirmedFile>,
}

/// A file that the client has whole, verified and under its final name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfirmedFile {
    /// Index in the fetch.
    pub n: u32,
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// The verified digest; `None` if the client did not verify.
    pub digest: Option<Digest>,
    /// Synced to disk.
    pub durable: bool,
}

#[derive(Deserialize)]
pub(super) struct RawConfirm {
    id: u32,
    files: Bounded<RawConfirmedFile, FETCH_FILES_MAX>,
}

#[derive(Deserialize)]
struct RawConfirmedFile {
    n: u32,
    path: Option<String>,
    path_b64: Option<String>,
    digest: Option<Digest>,
    #[serde(default)]
    durable: bool,
}

impl RawConfirm {
    pub(super) fn check(self) -> Result<Confirm, WireError> {
        let Bounded(files) = self.files;
        let confirmed = |file: RawConfirmedFile| {
            let path = required_path(file.path, file.path_b64)?;
            Ok(ConfirmedFile { n: file.n, path, digest: file.digest, durable: file.durable })
        };
        Ok(Confirm { id: self.id, files: files.into_iter().map(confirmed).collect::<Result<_, WireError>>()? })
    }
}
