//! Large bodies that came, and aren't here.

use towpath_requests::numbered::Status;
use towpath_spool::NoSpace;

/// When a client may come again with a body for which there was no space. All of it comes again then.
const RETRY_MS: u32 = 1_000;

/// Why a large body isn't here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostBody {
    /// The write failed.
    Unwritten,
    /// There was no space.
    NoSpace(NoSpace),
    /// The log of a cell takes no such body.
    NotInLog,
    /// The place where the brokers of a cell have large bodies isn't there.
    PlaceAway,
    /// Several frames, which are held in memory, of more bytes than may be.
    TooLarge,
}

impl LostBody {
    /// The reason for people.
    pub fn reason(self) -> &'static str {
        match self {
            LostBody::Unwritten => "the broker can't write a large body to its disk",
            LostBody::NoSpace(NoSpace::Now) => {
                "large bodies have all the space on the broker's disk, or all the files, that they may have"
            }
            LostBody::NoSpace(NoSpace::Share) => {
                "this user or address has its share of the space, or of the files, for large bodies on the broker's disk"
            }
            LostBody::NoSpace(NoSpace::Ever) => {
                "larger than all the space that such bodies may have on the broker's disk"
            }
            LostBody::NotInLog => {
                "the log of a cell takes bodies of at most 16 MiB; larger ones need a directory that all its brokers share (--bodies)"
            }
            LostBody::PlaceAway => "the place where the brokers of the cell have large bodies can't be used",
            LostBody::TooLarge => "a body of several frames has more than 64 MiB",
        }
    }

    /// The refusal of a request, and when it may be sent again.
    pub fn of_request(self) -> (Status, u32) {
        match self {
            LostBody::Unwritten => (Status::NO_STORAGE, RETRY_MS),
            LostBody::NoSpace(NoSpace::Now | NoSpace::Share) | LostBody::PlaceAway => (Status::UNAVAILABLE, RETRY_MS),
            LostBody::NoSpace(NoSpace::Ever) | LostBody::NotInLog | LostBody::TooLarge => (Status::TOO_LARGE, 0),
        }
    }

    /// The outcome of a request whose reply this was. To keep its worker waiting for space could last for ever: what has the space
    /// may be waiting for this worker.
    pub fn of_reply(self) -> Status {
        match self {
            LostBody::Unwritten | LostBody::NoSpace(NoSpace::Now | NoSpace::Share) | LostBody::PlaceAway => {
                Status::NO_STORAGE
            }
            LostBody::NoSpace(NoSpace::Ever) | LostBody::NotInLog | LostBody::TooLarge => Status::TOO_LARGE,
        }
    }
}
