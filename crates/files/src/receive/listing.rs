//! Listing what a server has, without getting it.

use std::time::Instant;

use super::connection::{CancelHandle, ConnectOptions, Connection, Happened};
use super::get::GetError;
use super::inbound::Inbound;
use super::transfer::TransferError;
use super::waiting::Waiting;
use crate::protocol::control::{Base, ListEntry, ListPage, ListRequest, ListTarget, Reply, Request};

/// The listing's request; a connection has no other.
const LIST_ID: u32 = 1;

/// What to list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// A path or a pattern there.
    pub target: ListTarget,
    /// With all that is below directories.
    pub recursive: bool,
    /// With digests, which may take the server time.
    pub digest: bool,
}

/// Lists; `take` is called with every entry in the server's order, and what the listed path is comes back.
///
/// Paths and texts in the entries are the server's: escape them before they reach a terminal.
///
/// # Errors
/// No connection, a cut one (a listing is not resumed), a refusal, or nothing for too long.
pub fn list(
    options: &ListOptions,
    take: &mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    cancel: &CancelHandle,
) -> Result<Base, GetError> {
    let mut connection = Connection::open(&options.connect, cancel)?;
    let result = run(&mut connection, options, take, cancel);
    connection.close();
    result
}

fn run(
    connection: &mut Connection,
    options: &ListOptions,
    take: &mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    cancel: &CancelHandle,
) -> Result<Base, GetError> {
    let unreachable = |reason: String| GetError::Connect { endpoint: options.connect.endpoint.to_string(), reason };
    let (mut connected, mut last_reason) = (false, "no answer".to_owned());
    let mut waiting = Waiting::new(Instant::now());
    loop {
        let limit = if connected { options.connect.idle_timeout } else { options.connect.connect_timeout };
        let left = limit.saturating_sub(waiting.since().elapsed());
        if cancel.is_cancelled() {
            connection.send(&Request::Cancel { id: LIST_ID });
            return Err(TransferError::Cancelled.into());
        }
        if left.is_zero() {
            let seconds = limit.as_secs();
            return Err(if connected {
                TransferError::Stalled { seconds, connected }.into()
            } else {
                unreachable(last_reason)
            });
        }
        connection.turn(left)?;
        while let Some(happened) = connection.next() {
            match happened {
                Happened::Up => {
                    connected = true;
                    waiting.progressed(Instant::now());
                    let ListOptions { target, recursive, digest, .. } = options.clone();
                    connection.send(&Request::List(ListRequest { id: LIST_ID, target, recursive, digest }));
                }
                Happened::Down { reason } => return Err(unreachable(reason)),
                Happened::Failed { reason } => last_reason = reason,
                Happened::Refused { reason } => return Err(options.connect.refused(reason)),
                Happened::Broken(error) => return Err(TransferError::from(error).into()),
                Happened::Arriving => waiting.arriving(Instant::now()),
                Happened::Inbound(inbound) => {
                    let Some(page) = page_of(inbound)? else {
                        waiting.came_to_nothing();
                        continue;
                    };
                    waiting.progressed(Instant::now());
                    page.entries.into_iter().try_for_each(&mut *take)?;
                    if !page.more {
                        return Ok(page.base);
                    }
                    connection.send(&Request::More { id: LIST_ID });
                }
            }
        }
    }
}

fn page_of(inbound: Inbound) -> Result<Option<ListPage>, TransferError> {
    let Inbound::Control { json, .. } = inbound else {
        return Err(TransferError::Protocol("data, where a listing was asked for".to_owned()));
    };
    match Reply::decode(&json)? {
        Reply::List(page) if page.id != LIST_ID || (page.more && page.entries.is_empty()) => {
            Err(TransferError::Protocol("a page that was not asked for, or an empty one".to_owned()))
        }
        Reply::List(page) => Ok(Some(page)),
        Reply::Error(error) => Err(TransferError::Refused { code: error.code, message: error.message }),
        _ => Ok(None),
    }
}
