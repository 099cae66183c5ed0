//! Requests that have one answer each.

use super::assembler::Inbound;
use super::connection::{ConnectOptions, Connection, ConnectionEvent};
use super::get::GetError;
use super::transfer::TransferError;
use crate::limits::HOLDERS_PAGE_MAX;
use crate::path::RelPath;
use crate::protocol::control::{
    ErrorReply, HoldersReply, HoldersRequest, HoldersWanted, KnownHolder, PublishRequest, PublishedReply, Reply,
    Request, request_id,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// Longest wait for an event.
const POLL_MAX: Duration = Duration::from_millis(100);
/// The number of every request: one is open at a time.
const ID: u32 = 1;

/// A connection for requests that have one answer each.
pub struct Asker<'a> {
    options: &'a ConnectOptions,
    cancel: &'a CancelToken,
    connection: Connection,
    is_connected: bool,
}

/// Who has something.
#[derive(Clone, Debug, Default)]
pub struct Holding {
    /// How many have it.
    pub holding: u32,
    /// All that are known, by name; only if they were asked for.
    pub holders: Vec<KnownHolder>,
}

impl<'a> Asker<'a> {
    /// Connects, in the background.
    ///
    /// # Errors
    /// There are no sockets to be had.
    pub fn open(options: &'a ConnectOptions, cancel: &'a CancelToken) -> Result<Asker<'a>, GetError> {
        let connection = Connection::open(options, cancel)?;
        Ok(Asker { options, cancel, connection, is_connected: false })
    }

    /// Who has something; with `named`, their names too.
    ///
    /// # Errors
    /// As of all requests.
    pub fn holding(&mut self, wanted: HoldersWanted, named: bool) -> Result<Holding, GetError> {
        let mut known = BTreeMap::new();
        let mut from = 0;
        loop {
            let count = if named { HOLDERS_PAGE_MAX as u32 } else { 0 };
            let request = Request::Holders(HoldersRequest { id: ID, wanted, from, count });
            let Reply::Holders(HoldersReply { holding, total, holders, .. }) =
                self.ask(&request, Some(self.options.idle_timeout))?
            else {
                return Err(TransferError::Protocol("another answer than was asked for".to_owned()).into());
            };
            from += u32::try_from(holders.len()).unwrap_or(u32::MAX);
            let is_over = holders.is_empty() || from >= total;
            // Some may come twice when others come or go meanwhile.
            known.extend(holders.into_iter().map(|of| ((of.holder.name.clone(), of.holder.copy, of.user.clone()), of)));
            if is_over {
                return Ok(Holding { holding, holders: known.into_values().collect() });
            }
        }
    }

    /// Publishes what is below a path.
    ///
    /// # Errors
    /// As of all requests; `changed` if something is being written.
    pub fn publish(
        &mut self,
        path: &RelPath,
        label: Option<&str>,
        keep: Option<u32>,
    ) -> Result<PublishedReply, GetError> {
        let label = label.map(str::to_owned);
        let request = Request::Publish(PublishRequest { id: ID, path: path.into(), label, keep });
        // Copying may take long. A server that is gone doesn't answer heartbeats.
        match self.ask(&request, None)? {
            Reply::Published(published) => Ok(published),
            _ => Err(TransferError::Protocol("another answer than was asked for".to_owned()).into()),
        }
    }

    /// Sends a request, and waits for its answer: for ever, or for so long.
    fn ask(&mut self, request: &Request, longest: Option<Duration>) -> Result<Reply, GetError> {
        let unreachable = |reason: String| GetError::Connect { endpoint: self.options.endpoint.to_string(), reason };
        let (began, mut last_reason) = (Instant::now(), "no answer".to_owned());
        if self.is_connected {
            self.connection.send(request);
        }
        loop {
            if self.cancel.is_cancelled() {
                return Err(TransferError::Cancelled.into());
            }
            match longest {
                _ if !self.is_connected && began.elapsed() > self.options.connect_timeout => {
                    return Err(unreachable(last_reason));
                }
                Some(longest) if self.is_connected && began.elapsed() > longest => {
                    return Err(TransferError::Stalled { seconds: longest.as_secs(), connected: true }.into());
                }
                _ => {}
            }
            self.connection.poll(POLL_MAX)?;
            while let Some(event) = self.connection.next() {
                match event {
                    ConnectionEvent::Connected => {
                        self.is_connected = true;
                        self.connection.send(request);
                    }
                    ConnectionEvent::Lost { reason } => return Err(unreachable(reason)),
                    ConnectionEvent::Failed { reason } => last_reason = reason,
                    ConnectionEvent::Refused { reason, refusal } => return Err(self.options.refused(reason, refusal)),
                    ConnectionEvent::ProtocolError(error) => return Err(TransferError::from(error).into()),
                    ConnectionEvent::Inbound(Inbound::Control { json, .. }) if request_id(&json) == Some(ID) => {
                        return match Reply::decode(&json).map_err(TransferError::from)? {
                            Reply::Error(ErrorReply { code, message, .. }) => {
                                Err(TransferError::Refused { code, message }.into())
                            }
                            reply => Ok(reply),
                        };
                    }
                    ConnectionEvent::Arriving | ConnectionEvent::FileSent { .. } | ConnectionEvent::Inbound(_) => {}
                }
            }
        }
    }

    /// Ends the connection.
    pub fn close(self) {
        self.connection.close();
    }
}
