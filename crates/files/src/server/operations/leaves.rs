//! Finding leaves of a file, for a client that looks for the broken ones.

use super::{Answered, Client, Operation};
use crate::digest::FileHasher;
use crate::limits::LEAVES_PAGE_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{LeavesReply, LeavesRequest, Reply, WirePath};
use crate::server::Failure;
use crate::server::access_log::ClientName;
use crate::server::jobs::{Context, RequestState};
use crate::server::open_file::OpenFile;
use crate::server::stats::RequestKind;

/// Finds leaves of a file, which is hashed if need be.
#[derive(Debug)]
pub(super) struct Leaves {
    request: LeavesRequest,
    /// The file, and how far it is hashed.
    begun: Option<(OpenFile, Option<FileHasher>)>,
}

impl Leaves {
    pub(super) fn new(request: LeavesRequest) -> Leaves {
        Leaves { request, begun: None }
    }
}

impl Operation for Leaves {
    fn kind(&self) -> RequestKind {
        RequestKind::Leaves
    }

    fn id(&self) -> u32 {
        self.request.id
    }

    fn path(&self) -> &WirePath {
        &self.request.path
    }

    fn check(&self, _: Client<'_>) -> Result<(), Failure> {
        Ok(())
    }

    fn log(&self, _: &ClientName) {}

    fn step(&mut self, context: &Context, state: &RequestState) -> Result<Option<Answered>, Failure> {
        let request = &self.request;
        let (file, progress) = match &mut self.begun {
            Some(begun) => begun,
            None => {
                let path = request.path.to_rel_path();
                let path = path.map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
                self.begun.insert((OpenFile::open(&state.root(context), &path)?, None))
            }
        };
        let known = context.hasher.leaves(&file.attributes, request.digest).map(Some);
        let Some(digested) = known.map_or_else(|| context.hash(file, progress, &state.cancel), Ok)? else {
            return Ok(None);
        };
        if digested.digest != request.digest {
            return Err(Failure::changed("the file has another digest now"));
        }
        // A file of one leaf has none: its digest is enough.
        let leaves = if digested.leaves.len() > 1 { &*digested.leaves } else { &[] };
        let from = usize::try_from(request.from).unwrap_or(usize::MAX).min(leaves.len());
        let count = request.count.min(LEAVES_PAGE_MAX) as usize;
        let wanted: Vec<_> = leaves.iter().skip(from).take(count).collect();
        let as_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let reply = LeavesReply {
            id: request.id,
            from: as_u32(from),
            count: as_u32(wanted.len()),
            total: as_u32(leaves.len()),
        };
        let attachment = wanted.into_iter().flatten().copied().collect::<Vec<u8>>().into();
        Ok(Some(Answered::new(Reply::Leaves(reply), Some(attachment))))
    }
}
