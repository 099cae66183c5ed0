//! PLAIN: the client shows a user and a password, in the clear (RFC 24).

use super::{Mechanism, Step, parse, unexpected};
use crate::command::{self, Command};
use crate::credentials::Credentials;
use crate::error::Error;
use crate::metadata::Metadata;
use bytes::Bytes;
use std::fmt::{self, Debug, Formatter};

pub(super) struct PlainClient {
    user: String,
    password: String,
    welcomed: bool,
}

impl PlainClient {
    pub(super) fn new(user: String, password: String) -> PlainClient {
        PlainClient { user, password, welcomed: false }
    }
}

impl Debug for PlainClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainClient").field("welcomed", &self.welcomed).finish_non_exhaustive()
    }
}

impl Mechanism for PlainClient {
    fn name(&self) -> &'static str {
        "PLAIN"
    }

    fn start(&mut self, _: &Metadata) -> Result<Option<Bytes>, Error> {
        Ok(Some(command::hello(self.user.as_bytes(), self.password.as_bytes())))
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error> {
        match (parse(&body)?, self.welcomed) {
            (Command::Welcome, false) => {
                self.welcomed = true;
                Ok(Step::Send(command::initiate(metadata)))
            }
            (Command::Ready(metadata), true) => Ok(Step::Done { send: None, metadata }),
            (_, false) => unexpected(&body, "WELCOME"),
            (_, true) => unexpected(&body, "READY"),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum PlainServerAwaits {
    Hello,
    Verdict,
    Initiate,
}

#[derive(Debug)]
pub(super) struct PlainServer {
    awaits: PlainServerAwaits,
}

impl PlainServer {
    pub(super) fn new() -> PlainServer {
        PlainServer { awaits: PlainServerAwaits::Hello }
    }
}

impl Mechanism for PlainServer {
    fn name(&self) -> &'static str {
        "PLAIN"
    }

    fn as_server(&self) -> bool {
        true
    }

    fn start(&mut self, _: &Metadata) -> Result<Option<Bytes>, Error> {
        Ok(None)
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error> {
        match (&self.awaits, parse(&body)?) {
            (PlainServerAwaits::Hello, Command::Hello { user, password }) => {
                self.awaits = PlainServerAwaits::Verdict;
                Ok(Step::Authenticate(Credentials::Plain { user, password }))
            }
            // READY only after the verdict: a peer that was not let in learns nothing of us.
            (PlainServerAwaits::Initiate, Command::Initiate(theirs)) => {
                Ok(Step::Done { send: Some(command::ready(metadata)), metadata: theirs })
            }
            (PlainServerAwaits::Hello, _) => unexpected(&body, "HELLO"),
            (PlainServerAwaits::Verdict, _) => unexpected(&body, "nothing before WELCOME"),
            (PlainServerAwaits::Initiate, _) => unexpected(&body, "INITIATE"),
        }
    }

    fn accept(&mut self) -> Step {
        if self.awaits != PlainServerAwaits::Verdict {
            return Step::Wait;
        }
        self.awaits = PlainServerAwaits::Initiate;
        Step::Send(command::welcome())
    }
}
