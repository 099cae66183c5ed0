//! Small files, several by one request.

use super::known::KnownFile;
use super::reading::changed;
use crate::client::connection::Connection;
use crate::client::exchange::{Connector, Operation, Turn, WaitLimit};
use crate::digest::{Digest, LEAF_BYTES_MIN};
use crate::error::Error;
use crate::limits::{CHUNK_BYTES_DEFAULT, FETCH_FILES_MAX, PIECE_COST_MIN};
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    DigestWish, ErrorReply, FetchFile, FetchRequest, FileAnswer, FileMetadata, FilesReply, Reply, Request,
};
use crate::protocol::data::{Body, DataEntry};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// The number of the only request.
const ID: u32 = 1;

/// Called with the index of one of several files, and its content.
pub type EachFile<'a> = dyn FnMut(usize, Result<&[u8], Error>) + 'a;

pub(in crate::client) fn read_whole(
    connector: &Connector,
    files: &[&KnownFile],
    each: &mut EachFile<'_>,
    cancel: &CancelToken,
) {
    let mut wholes =
        Wholes { files, each, over: vec![false; files.len()], now: None, content: Vec::new(), is_done: false };
    let error = match wholes.run(connector, cancel) {
        Ok(()) => Error::Protocol("the answers ended before all of them were there".to_owned()),
        Err(error) => error,
    };
    (0..files.len()).for_each(|at| wholes.end(at, Err(error.clone())));
}

/// A fetch of whole files.
struct Wholes<'a> {
    files: &'a [&'a KnownFile],
    each: &'a mut EachFile<'a>,
    /// Those that were handed over, or failed.
    over: Vec<bool>,
    /// The file whose bytes arrive, if they are of use.
    now: Option<usize>,
    content: Vec<u8>,
    is_done: bool,
}

impl Wholes<'_> {
    fn run(&mut self, connector: &Connector, cancel: &CancelToken) -> Result<(), Error> {
        if self.files.len() > FETCH_FILES_MAX || self.files.iter().any(|file| file.size() > LEAF_BYTES_MIN) {
            return Err(Error::Local("too many files, or too large ones".to_owned()));
        }
        let mut exchange = connector.exchange(cancel)?;
        let outcome = exchange.run(self);
        match outcome {
            Ok(()) => connector.keep(exchange, &outcome),
            Err(_) => exchange.close(),
        }
        outcome
    }

    fn end(&mut self, at: usize, outcome: Result<&[u8], Error>) {
        if let Some(over @ false) = self.over.get_mut(at) {
            *over = true;
            (self.each)(at, outcome);
        }
    }

    fn answer(&mut self, answer: FileAnswer) -> Result<(), Error> {
        match answer {
            FileAnswer::Metadata(FileMetadata { n, size, mtime, .. }) => {
                let at = n as usize;
                let Some(file) = self.files.get(at) else { return Error::protocol("a file that wasn't requested") };
                if (size, mtime) != (file.size(), file.modified()) {
                    self.end(at, Err(changed("it is another version by now")));
                    if size > file.size() {
                        // It would use up the credit of the others.
                        let message = "a file among those that were fetched together has grown".to_owned();
                        return Err(Error::Refused { code: ErrorCode::Busy, message });
                    }
                }
            }
            FileAnswer::Error { n, code, message } => self.end(n as usize, Err(refused(code, message))),
            FileAnswer::Same { .. } => return Error::protocol("`same` for a file that wasn't compared"),
        }
        Ok(())
    }

    fn body(&mut self, entry: &DataEntry) -> Result<(), Error> {
        let at = entry.n as usize;
        let Some(file) = self.files.get(at) else { return Error::protocol("a file that wasn't requested") };
        let now = (!self.over.get(at).copied().unwrap_or(true)).then_some(at);
        if entry.offset == 0 || now != self.now {
            self.content.clear();
        }
        self.now = now;
        if self.now.is_none() {
            return Ok(());
        }
        let is_next = entry.offset == self.content.len() as u64
            && file.size().checked_sub(entry.offset).is_some_and(|left| entry.length <= left);
        if !is_next || entry.body == Body::Zstd {
            return Error::protocol("a piece that wasn't requested, or is out of order");
        }
        if entry.body == Body::Hole {
            let length = usize::try_from(entry.length).unwrap_or(usize::MAX);
            self.content.resize(self.content.len() + length, 0);
            self.take();
        }
        Ok(())
    }

    fn bytes(&mut self, data: &[u8]) -> Result<(), Error> {
        let Some(file) = self.now.and_then(|at| self.files.get(at)) else { return Ok(()) };
        if (self.content.len() + data.len()) as u64 > file.size() {
            return Error::protocol("more bytes than the file has");
        }
        self.content.extend_from_slice(data);
        Ok(())
    }

    /// Hands over the file, if all of it is here.
    fn take(&mut self) {
        let Some((at, file)) = self.now.and_then(|at| Some((at, *self.files.get(at)?))) else { return };
        if self.content.len() as u64 == file.size() {
            let content = std::mem::take(&mut self.content);
            let is_right = Digest::of(&content) == file.digest();
            self.end(at, if is_right { Ok(&content) } else { Err(changed("its digest is another one")) });
            self.content = content;
        }
    }
}

impl Operation for Wholes<'_> {
    type Outcome = ();

    fn turn(&mut self, _connection: &mut Connection, _now: Instant) -> Result<Turn<()>, Error> {
        Ok(if self.is_done { Turn::Over(()) } else { Turn::Wait(Duration::MAX) })
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        let files = self.files.iter().map(|file| FetchFile { path: file.path().into(), ranges: None, unless: None });
        connection.send(&Request::Fetch(FetchRequest {
            id: ID,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            compress: None,
            digest: DigestWish::None,
            credit_bytes: self.files.iter().map(|file| file.size() + PIECE_COST_MIN).sum(),
            files: files.collect(),
        }));
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let json = match inbound {
            Inbound::Control { json, .. } => json,
            Inbound::Header(header) if header.id == ID => return Ok(false),
            Inbound::Header(_) => return Error::protocol("an answer to a request that isn't open"),
            Inbound::Body(entry) => return self.body(&entry).map(|()| true),
            Inbound::BodyData(data) => return self.bytes(&data).map(|()| true),
            Inbound::BodyEnd => {
                self.take();
                return Ok(true);
            }
        };
        match Reply::decode(&json)? {
            Reply::Files(FilesReply { id: ID, files }) => {
                files.into_iter().try_for_each(|answer| self.answer(answer))?;
            }
            Reply::Void(void) if void.id == ID => {
                self.end(void.n as usize, Err(refused(void.code, void.message)));
            }
            Reply::Done { id: ID } => self.is_done = true,
            Reply::Error(ErrorReply { code, message, .. }) => return Err(Error::Refused { code, message }),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Extra(Duration::ZERO)
    }
}

fn refused(code: ErrorCode, message: String) -> Error {
    match code {
        ErrorCode::Changed => changed(&message),
        code => Error::Refused { code, message },
    }
}
