//! A single file to a writer: in order, every leaf checked before any of it is written.

mod state;

use std::io::Write;
use std::time::Instant;

use super::connection::{CancelHandle, ConnectOptions, Connection, Happened};
use super::get::{GetError, Summary};
use super::idle_timer::IdleTimer;
use super::reconnects::Reconnects;
use super::transfer::{Progress, Source, TransferError};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::Compression;
use state::{Step, Stream};

/// What to get, and how.
pub(super) struct StreamOptions {
    pub(super) connect: ConnectOptions,
    pub(super) source: Source,
    pub(super) chunk_bytes: u64,
    pub(super) window_bytes: u64,
    pub(super) compress: Option<Compression>,
    pub(super) verify: bool,
}

/// Gets a file. Blocks as long as the writer does: what it does not take stays on the other side of the wire.
pub(super) fn get_to_writer(
    options: StreamOptions,
    mut output: Box<dyn Write + Send>,
    progress: &mut dyn FnMut(Progress),
    cancel: &CancelHandle,
) -> Result<Summary, GetError> {
    let begun = Instant::now();
    let path: RelPath = match &options.source {
        Source::Path(path) => path.clone(),
        Source::Glob(_) => {
            let message = "a pattern, where a single file is needed".to_owned();
            return Err(TransferError::Unmet { code: ErrorCode::NotAFile, message }.into());
        }
    };
    let mut connection = Connection::open(&options.connect, cancel)?;
    let mut stream = Stream::new(path, &options);
    let result = run(&mut connection, &mut stream, &mut *output, &options.connect, progress, cancel);
    if result.is_err() {
        stream.cancel().iter().for_each(|request| connection.send(request));
    }
    connection.close();
    result?;
    output.flush()?;
    Ok(Summary {
        files: 1,
        bytes: stream.written(),
        received_bytes: stream.received_bytes(),
        seconds: begun.elapsed().as_secs_f64(),
        verified: options.verify,
        ..Summary::default()
    })
}

fn run(
    connection: &mut Connection,
    stream: &mut Stream,
    output: &mut dyn Write,
    connect: &ConnectOptions,
    progress: &mut dyn FnMut(Progress),
    cancel: &CancelHandle,
) -> Result<(), GetError> {
    let (mut ever_connected, mut connected, mut last_reason) = (false, false, None);
    let mut waiting = IdleTimer::new(Instant::now());
    let mut breaks = Reconnects::default();
    loop {
        if cancel.is_cancelled() {
            return Err(TransferError::Cancelled.into());
        }
        let limit = if ever_connected { connect.idle_timeout } else { connect.connect_timeout };
        let left = limit.saturating_add(stream.patience()).saturating_sub(waiting.since().elapsed());
        if left.is_zero() {
            return Err(match last_reason {
                Some(reason) if !connected => GetError::Connect { endpoint: connect.endpoint.to_string(), reason },
                _ => TransferError::Stalled { seconds: waiting.since().elapsed().as_secs(), connected }.into(),
            });
        }
        connection.turn(left)?;
        while let Some(happened) = connection.next() {
            let mut steps = match happened {
                Happened::Up => {
                    (ever_connected, connected) = (true, true);
                    stream.connected()
                }
                Happened::Down { reason } => {
                    (connected, last_reason) = (false, Some(reason));
                    if let Some(times) = breaks.broke_at(stream.written()) {
                        return Err(TransferError::Breaking { times }.into());
                    }
                    continue;
                }
                Happened::Failed { reason } => {
                    (connected, last_reason) = (false, Some(reason));
                    continue;
                }
                Happened::Refused { reason } => return Err(connect.refused(reason)),
                Happened::Broken(error) => return Err(TransferError::from(error).into()),
                Happened::Inbound(inbound) => {
                    let steps = stream.inbound(inbound)?;
                    if stream.came_to_nothing() {
                        waiting.came_to_nothing();
                        continue;
                    }
                    steps
                }
                Happened::Arriving => {
                    waiting.arriving(Instant::now());
                    continue;
                }
            };
            waiting.progressed(Instant::now());
            loop {
                for step in steps {
                    match step {
                        Step::Send(request) => connection.send(&request),
                        Step::Write(data) => {
                            output.write_all(&data)?;
                            waiting.progressed(Instant::now());
                        }
                        Step::Finished => return Ok(()),
                    }
                }
                // There may be much more of it: a hole of any size is a few bytes on the wire.
                if cancel.is_cancelled() {
                    return Err(TransferError::Cancelled.into());
                }
                steps = stream.more()?;
                if steps.is_empty() {
                    break;
                }
            }
            progress(stream.progress());
        }
    }
}
