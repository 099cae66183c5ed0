//! Requests that have one answer each.

use super::connection::Connection;
use super::exchange::{Connector, Operation, Turn, WaitLimit};
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

/// Who has something.
#[derive(Clone, Debug, Default)]
pub struct Holding {
    /// How many have it.
    pub holding: u32,
    /// All that are known, by name; only if they were asked for.
    pub holders: Vec<KnownHolder>,
}

pub(super) fn holding(
    connector: &Connector,
    wanted: HoldersWanted,
    named: bool,
    cancel: &CancelToken,
) -> Result<Holding, Error> {
    let mut known = BTreeMap::new();
    let mut from = 0;
    loop {
        let count = if named { HOLDERS_PAGE_MAX as u32 } else { 0 };
        let request = Request::Holders(HoldersRequest { id: ID, wanted, from, count });
        let Reply::Holders(HoldersReply { holding, total, holders, .. }) =
            ask(connector, &request, WaitLimit::Extra(Duration::ZERO), cancel)?
        else {
            return Error::protocol("another answer than was asked for");
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

pub(super) fn publish(
    connector: &Connector,
    path: &RelPath,
    label: Option<&str>,
    keep: Option<u32>,
    cancel: &CancelToken,
) -> Result<PublishedReply, Error> {
    let label = label.map(str::to_owned);
    let request = Request::Publish(PublishRequest { id: ID, path: path.into(), label, keep });
    // Copying may take long.
    match ask(connector, &request, WaitLimit::WhileAlive, cancel)? {
        Reply::Published(published) => Ok(published),
        _ => Error::protocol("another answer than was asked for"),
    }
}

/// Sends a request, and waits for its answer.
fn ask(connector: &Connector, request: &Request, wait_limit: WaitLimit, cancel: &CancelToken) -> Result<Reply, Error> {
    connector.ask(&mut Question { request, wait_limit, answer: None }, cancel)
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
