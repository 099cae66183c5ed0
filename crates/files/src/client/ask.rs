//! Requests that have one answer each.

use super::connection::{ConnectOptions, Connection};
use super::exchange::{Exchange, Operation, Turn, WaitLimit};
use crate::error::Error;
use crate::limits::HOLDERS_PAGE_MAX;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    ErrorReply, HoldersReply, HoldersRequest, HoldersWanted, KnownHolder, PublishRequest, PublishedReply, Reply,
    Request, request_id,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// The number of every request: one is open at a time.
const ID: u32 = 1;

/// A connection for requests that have one answer each.
pub struct Asker<'a>(Exchange<'a>);

/// The holders of a change or a version.
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
    pub fn open(options: &'a ConnectOptions, cancel: &'a CancelToken) -> Result<Asker<'a>, Error> {
        Exchange::open(options, cancel).map(Asker)
    }

    /// The holders of a change or a version; with `named`, their names too.
    ///
    /// # Errors
    /// As of all requests.
    pub fn holding(&mut self, wanted: HoldersWanted, named: bool) -> Result<Holding, Error> {
        let mut known = BTreeMap::new();
        let mut from = 0;
        loop {
            let count = if named { HOLDERS_PAGE_MAX as u32 } else { 0 };
            let request = Request::Holders(HoldersRequest { id: ID, wanted, from, count });
            let Reply::Holders(HoldersReply { holding, total, holders, .. }) =
                self.ask(&request, WaitLimit::Extra(Duration::ZERO))?
            else {
                return Err(Error::Protocol("another answer than was asked for".to_owned()));
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
    pub fn publish(&mut self, path: &RelPath, label: Option<&str>, keep: Option<u32>) -> Result<PublishedReply, Error> {
        let label = label.map(str::to_owned);
        let request = Request::Publish(PublishRequest { id: ID, path: path.into(), label, keep });
        // Copying may take long.
        match self.ask(&request, WaitLimit::WhileAlive)? {
            Reply::Published(published) => Ok(published),
            _ => Err(Error::Protocol("another answer than was asked for".to_owned())),
        }
    }

    /// Sends a request, and waits for its answer.
    fn ask(&mut self, request: &Request, wait_limit: WaitLimit) -> Result<Reply, Error> {
        self.0.run(&mut Question { request, wait_limit, answer: None })
    }

    /// Ends the connection.
    pub fn close(self) {
        self.0.close();
    }
}

/// A request, until it has its answer.
struct Question<'a> {
    request: &'a Request,
    wait_limit: WaitLimit,
    answer: Option<Reply>,
}

impl Operation for Question<'_> {
    type Outcome = Reply;

    fn turn(&mut self, _connection: &mut Connection, _now: Instant) -> Result<Turn<Reply>, Error> {
        Ok(self.answer.take().map_or(Turn::Wait(Duration::MAX), Turn::Over))
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        connection.send(self.request);
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let Inbound::Control { json, .. } = inbound else { return Ok(false) };
        if request_id(&json) != Some(ID) {
            return Ok(false);
        }
        match Reply::decode(&json)? {
            Reply::Error(ErrorReply { code, message, .. }) => Err(Error::Refused { code, message }),
            reply => {
                self.answer = Some(reply);
                Ok(true)
            }
        }
    }

    fn wait_limit(&self) -> WaitLimit {
        self.wait_limit
    }
}
