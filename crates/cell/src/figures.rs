//! Figures of a cell for an operator, as one of its members sees it.

use crate::member::Role;
use std::time::Duration;
use towpath_journal::JournalFigures;

/// Figures of a member, and of its cell.
#[derive(Debug, Clone, Default)]
pub struct CellFigures {
    /// The cell's name.
    pub cell: String,
    /// As of a journal: stretches are its segments.
    pub log: JournalFigures,
    /// Its role.
    pub role: Option<Role>,
    /// The current term, and its leader's endpoint.
    pub leader: Option<(u64, String)>,
    /// For how long this broker has led, if it does.
    pub leads_for: Option<Duration>,
    /// For how long no member has said that it leads, although accounts come.
    pub leaderless_for: Option<Duration>,
    /// Sequence number of the last message that was seen.
    pub seen: u64,
    /// Messages that were read to follow the log, since this process started. Those read again count again.
    pub read: u64,
    /// Messages behind it, when the log was last read.
    pub behind: u64,
    /// Most bytes of the stream.
    pub bytes_max: u64,
    /// Why nothing can be appended or read now.
    pub failure: Option<String>,
    /// Why the place of large bodies can't be used now.
    pub bodies_failure: Option<String>,
    /// NATS, as it was last seen.
    pub nats: NatsFigures,
    /// The members of the cell, this one too. None: messages of none arrive, not even its own.
    pub members: Vec<MemberFigures>,
}

impl CellFigures {
    /// The member that leads by its own words.
    pub fn leading(&self) -> Option<&MemberFigures> {
        let leading = self.members.iter().filter(|member| member.is_there && member.role == Role::Leading);
        leading.max_by_key(|member| member.epoch)
    }
}

/// NATS as a member sees it.
#[derive(Debug, Clone, Default)]
pub struct NatsFigures {
    /// The server that it is connected to.
    pub server: String,
    /// The stream, as it was last seen.
    pub stream: StreamState,
    /// Answers of the monitoring ports that are given.
    pub monitored: Vec<Monitored>,
    /// Looks at the stream in a row that had no answer, and why.
    pub unanswered: Option<(u32, String)>,
}

impl NatsFigures {
    /// Replicas of the stream that are current, as far as is known: a stream with one has no followers.
    pub fn current(&self) -> u64 {
        let stream = &self.stream;
        if stream.leader.is_none() && stream.replicas > 1 {
            return 0;
        }
        1 + stream.followers.iter().filter(|(_, why)| why.is_none()).count() as u64
    }
}

/// Answer of the monitoring port of a NATS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitored {
    /// Where it was asked.
    pub url: String,
    /// The server's name, empty if it didn't answer.
    pub server: String,
    /// When it brings to its disk what it acknowledges.
    pub sync: Sync,
}

/// When a NATS server brings messages to its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sync {
    /// Before it acknowledges them.
    Always,
    /// At this interval.
    Every(Duration),
    /// Unknown, for this reason.
    Unknown(String),
}

/// State of a stream.
#[derive(Debug, Clone, Default)]
pub struct StreamState {
    /// Bytes in it, as NATS counts them.
    pub bytes: u64,
    /// Most bytes.
    pub bytes_max: u64,
    /// Messages in it.
    pub messages: u64,
    /// Sequence number of the last message that there ever was.
    pub last: u64,
    /// Replicas.
    pub replicas: u64,
    /// Node that leads the stream, if it is known.
    pub leader: Option<String>,
    /// Nodes that follow it, and why each isn't current, if it isn't.
    pub followers: Vec<(String, Option<&'static str>)>,
    /// Settings that lose data or don't work, each with what to do.
    pub wrong: Vec<String>,
}

/// A member of a cell, by what it says of itself.
#[derive(Debug, Clone)]
pub struct MemberFigures {
    /// Its process, in hexadecimal digits.
    pub broker: String,
    /// Where clients and workers reach it.
    pub endpoint: String,
    /// Whether it is this broker.
    pub is_self: bool,
    /// Whether it has said something within the last seconds.
    pub is_there: bool,
    /// Time since it last did.
    pub age: Duration,
    /// Its role.
    pub role: Role,
    /// The current term, as far as it has read.
    pub epoch: u64,
    /// For how long it has led, if it does.
    pub leads_for: Option<Duration>,
    /// Sequence number of the last message that it has seen.
    pub seen: u64,
    /// Messages behind it, when it last read the log.
    pub behind: u64,
    /// For how long it has been behind, or failed.
    pub behind_for: Option<Duration>,
    /// Version of the log's format that it writes.
    pub format: u16,
    /// Version of its program.
    pub program: String,
    /// Why it can't append or read.
    pub failure: Option<String>,
    /// Its clock less this machine's, in milliseconds.
    pub skew_ms: i64,
}
