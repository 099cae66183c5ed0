//! NULL: metadata is exchanged, nobody is authenticated (RFC 23).

use super::{Mechanism, Step, parse, unexpected};
use crate::command::{self, Command};
use crate::error::Error;
use crate::metadata::Metadata;
use bytes::Bytes;

#[derive(Debug)]
pub(super) struct Null;

impl Mechanism for Null {
    fn name(&self) -> &'static str {
        "NULL"
    }

    fn start(&mut self, metadata: &Metadata) -> Result<Option<Bytes>, Error> {
        Ok(Some(command::ready(metadata)))
    }

    fn command(&mut self, body: Bytes, _: &Metadata) -> Result<Step, Error> {
        match parse(&body)? {
            Command::Ready(metadata) => Ok(Step::Done { send: None, metadata }),
            _ => unexpected(&body, "READY"),
        }
    }
}
