//! The bodies of the fuzz targets in `fuzz/`. `tests/corpus.rs` runs them on the kept inputs, so that the two can't drift apart.

use bytes::Bytes;
use towpath_requests::majordomo::{self, Dialect, FromPeer, WorkerCommand};
use towpath_requests::numbered::{Block, Content, FromClient, FromWorker, ToClient, ToWorker, WireError};

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 2] = [("requests_majordomo", requests_majordomo), ("requests_records", requests_records)];

/// Bytes as a stock peer's message: each frame behind its length in one byte.
pub fn requests_majordomo(mut data: &[u8]) {
    let mut frames = Vec::new();
    while let Some((&length, rest)) = data.split_first() {
        let (frame, rest) = rest.split_at(rest.len().min(usize::from(length)));
        frames.push(Bytes::copy_from_slice(frame));
        data = rest;
    }
    match majordomo::decode(&frames) {
        Ok(FromPeer::Request { dialect, envelope, service, body }) => {
            assert!(!service.is_empty() && !body.is_empty());
            // The reply begins with the envelope.
            let head = majordomo::reply_head(dialect, envelope.as_ref(), &service, false);
            let has_empty = usize::from(dialect != Dialect::Mdp02);
            let before = envelope.map_or(0, |envelope| envelope.len() + has_empty);
            assert_eq!(head[..before], frames[..before]);
        }
        Ok(FromPeer::Worker { dialect, command: WorkerCommand::Reply { address, .. } }) => {
            if let Some(token) = majordomo::token_of(&address) {
                assert!(majordomo::request_head(dialect, &token).contains(&address));
            }
        }
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Bytes as a block of each of the four kinds; what is understood is said again in the same bytes.
pub fn requests_records(data: &[u8]) {
    let block = Bytes::copy_from_slice(data);
    let all = |decode: &dyn Fn(&mut &[u8]) -> Result<(), WireError>| {
        let mut rest = &block[..];
        while !rest.is_empty() {
            let before = rest.len();
            if decode(&mut rest).is_err() {
                break;
            }
            assert!(rest.len() < before, "a record of no bytes");
        }
    };
    let take = |content: &Content<'_>| {
        let _ = content.to_body(&block, None);
    };
    all(&|rest| {
        let begin = *rest;
        let record = FromClient::decode(rest)?;
        if let FromClient::Request { number, ttl_ms, sent, service, content: content @ Content::One(_) } = &record {
            let body = content.to_body(&block, None)?;
            let mut again = Block::default();
            FromClient::request(&mut again, *number, *ttl_ms, *sent, service, &body);
            let said: Vec<u8> = again.drain().next().map(|message| message.block.to_vec()).unwrap_or_default();
            let known_flags = begin.get(1).is_some_and(|flags| flags & !24 == 0);
            assert!(!known_flags || body.length() > 4096 || begin.starts_with(&said));
        }
        Ok(())
    });
    all(&|rest| {
        if let ToClient::Reply { content, .. } = ToClient::decode(rest)? {
            take(&content);
        }
        Ok(())
    });
    all(&|rest| {
        if let FromWorker::Reply { content, .. } = FromWorker::decode(rest)? {
            take(&content);
        }
        Ok(())
    });
    all(&|rest| {
        if let ToWorker::Request { content, .. } = ToWorker::decode(rest)? {
            take(&content);
        }
        Ok(())
    });
}
