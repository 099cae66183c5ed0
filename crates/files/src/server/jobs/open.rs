//! Opening a file for the plain dialect.

use super::pool::{Pool, Requester};
use super::{Answer, RequestState};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::server::Failure;
use crate::server::client_root::ClientRoot;
use crate::server::open_file::OpenFile;
use crate::server::snapshot::RootSnapshot;
use bytes::Bytes;
use std::sync::Arc;

/// Opens a file; without a path, the only one that is served.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) path: Option<Bytes>,
}

impl Open {
    /// Opens the file at once if that can't block. Small files are asked for one by one in the plain dialect, and two changes of
    /// threads would take longer than all the rest.
    pub(super) fn start(
        self,
        pool: &mut Pool,
        requester: Requester,
        request: &Arc<RequestState>,
    ) -> Option<Result<(OpenFile, u64), Failure>> {
        let with_size = |file: OpenFile| (file.clone(), file.attributes.size);
        let permissions = request.permissions.clone();
        if let Some(root) = pool.context.served.look_in_memory() {
            let root = ClientRoot::new(root, permissions.clone());
            match self.path(&root).and_then(|path| OpenFile::open_cached(&root, &path)) {
                Ok(None) => {}
                opened => return opened.map(|file| file.map(with_size)).transpose(),
            }
        }
        let snapshot = RootSnapshot::default();
        let path = self.path.as_deref().and_then(|path| RelPath::new(path).ok());
        let (_, group) = pool.group(requester, &snapshot, path.as_ref());
        pool.run(
            &pool.files,
            group,
            requester,
            |failure| Answer::Open(Err(failure)),
            move |context| {
                let root = ClientRoot::new(snapshot.root(&context.served), permissions.clone());
                let opened = self.path(&root).and_then(|path| OpenFile::open(&root, &path));
                Answer::Open(opened.map(with_size))
            },
        );
        None
    }

    fn path(&self, root: &ClientRoot) -> Result<RelPath, Failure> {
        match (self.path.as_deref(), root.only_file()) {
            (Some(path), _) => RelPath::new(path).map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string())),
            (None, Some(only)) => Ok(only.clone()),
            (None, None) => Err(Failure::new(ErrorCode::BadRequest, "a directory is served: name a file in it")),
        }
    }
}
