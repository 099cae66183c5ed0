//! Data messages of a fetch.

use super::{Fetch, FileState};
use crate::limits::{DATA_ENTRIES_MAX, PIECE_COST_MIN};
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::server::limits::{DATA_MESSAGE_BYTES_MAX, DATA_MESSAGE_BYTES_MIN, PIPELINE_BYTES_MAX};
use crate::server::session::large::DataPiece;
use crate::server::session::{IfShort, Outgoing, Part, Shared};
use bytes::Bytes;

impl<F: Clone> Fetch<F> {
    /// The next data message, as far as credit allows.
    pub(in crate::server::session) fn next_data(&mut self, shared: &mut Shared<F>) -> Option<Outgoing<F>> {
        match self.files.front() {
            Some(FileState::Small { .. }) => self.next_small(shared),
            Some(FileState::Large(_)) => self.next_large(shared),
            _ => None,
        }
    }

    fn next_large(&mut self, shared: &mut Shared<F>) -> Option<Outgoing<F>> {
        let Some(FileState::Large(large)) = self.files.front_mut() else { return None };
        let (slot, length, piece) = large.pipeline.next_ready()?;
        if shared.in_socket_bytes > 0 && shared.in_socket_bytes + length > PIPELINE_BYTES_MAX {
            return None;
        }
        let DataPiece { piece, bytes, elsewhere, cost, .. } = piece;
        let (piece, cost, bytes, elsewhere) = (*piece, *cost, bytes.take(), elsewhere.take());
        let (body, body_length) = match &bytes {
            _ if piece.hole => (Body::Hole, 0),
            Some((body, bytes)) => (*body, bytes.len() as u64),
            None => (Body::Plain, piece.length),
        };
        let n = large.metadata.n;
        let entry = DataEntry { n, end: false, body, offset: piece.offset, length: piece.length, body_length };
        let (file, offset) = elsewhere.unwrap_or_else(|| (large.file.clone(), piece.offset));
        let part = match bytes {
            _ if piece.hole => Part::Bytes(Bytes::new()),
            Some((_, bytes)) => Part::Bytes(bytes),
            None => Part::File { file: file.clone(), offset, length: piece.length, slot, if_short: IfShort::Pad },
        };
        if let Part::File { .. } = part {
            large.pipeline.handed_over(slot);
            shared.hand_over(self.ticket, slot, piece.length, file);
        } else {
            large.pipeline.remove(slot);
        }
        self.data_message(vec![entry], vec![part], cost, shared)
    }

    fn next_small(&mut self, shared: &mut Shared<F>) -> Option<Outgoing<F>> {
        let (mut entries, mut parts) = (Vec::new(), Vec::new());
        let (mut total_cost, mut complete) = (0, 0);
        let bytes_max = self.chunk_bytes.clamp(DATA_MESSAGE_BYTES_MIN, DATA_MESSAGE_BYTES_MAX);
        for file in self.files.iter_mut().take(self.announced.min(DATA_ENTRIES_MAX)) {
            let FileState::Small { metadata, body, packed, sent } = file else { break };
            let (offset, rest) = (*sent as u64, body.slice((*sent).min(body.len())..));
            let packed = packed.clone().filter(|_| *sent == 0);
            let plain = DataEntry {
                n: metadata.n,
                end: true,
                body: Body::Plain,
                offset,
                length: rest.len() as u64,
                body_length: rest.len() as u64,
            };
            let (entry, bytes) = match packed {
                Some(bytes) => (DataEntry { body: Body::Zstd, body_length: bytes.len() as u64, ..plain }, bytes),
                None => (plain, rest.clone()),
            };
            if total_cost > 0 && total_cost + entry.cost() > bytes_max {
                break;
            }
            if self.credit.take(entry.cost()) {
                total_cost += entry.cost();
                entries.push(entry);
                parts.push(Part::Bytes(bytes));
                complete += 1;
                self.over_bytes = self.over_bytes.saturating_add(metadata.size);
                continue;
            }
            let available = self.credit.available();
            if entries.is_empty() && shared.in_socket.is_empty() && available >= PIECE_COST_MIN {
                // No piece in flight could bring more credit: send what there is covers.
                let length = available.min(rest.len() as u64);
                *sent += length as usize;
                total_cost = length.max(PIECE_COST_MIN);
                self.credit.take(total_cost);
                entries.push(DataEntry { end: false, length, body_length: length, ..plain });
                parts.push(Part::Bytes(rest.slice(..length as usize)));
            }
            break;
        }
        self.files.drain(..complete);
        self.announced -= complete;
        self.data_message(entries, parts, total_cost, shared)
    }

    fn data_message(
        &mut self,
        entries: Vec<DataEntry>,
        mut parts: Vec<Part<F>>,
        cost: u64,
        shared: &mut Shared<F>,
    ) -> Option<Outgoing<F>> {
        if entries.is_empty() {
            return None;
        }
        let sent_bytes: u64 = entries.iter().map(|entry| entry.body_length).sum();
        // Entries are made within the limits here; the codec catches a mistake.
        let header = match (DataHeader { id: self.id(), entries }).encode() {
            Ok(header) => header,
            Err(error) => {
                tracing::error!(%error, "a data header could not be written");
                return None;
            }
        };
        self.sent_bytes += sent_bytes;
        shared.costs.push_back((self.ticket, self.credit.clone(), cost));
        let mut frames: Vec<_> = self.envelope.iter().cloned().map(Part::Bytes).collect();
        frames.push(Part::Bytes(header.into()));
        frames.append(&mut parts);
        Some(Outgoing { ticket: Some(self.ticket), parts: frames })
    }
}
