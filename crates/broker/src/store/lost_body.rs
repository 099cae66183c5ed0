//! Large bodies that came, and aren't here.

use towpath_requests::numbered::Status;
use towpath_spool::NoRoom;

/// When a client may come again with a body for which there was no room. All of it comes again then.
const RETRY_MS: u32 = 1_000;

/// Why a large body isn't here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostBody {
    /// The write failed.
    Unwritten,
    /// There was no room.
    NoRoom(NoRoom),
    /// Several frames, which are held in memory, of more bytes than may be.
    TooLarge,
}

impl LostBody {
    /// The reason for people.
    pub fn reason(self) -> &'static str {
        match self {
            LostBody::Unwritten => "the broker can't write a large body to its disk",
            LostBody::NoRoom(NoRoom::Now) => {
                "large bodies have all the room on the broker's disk, or all the files, that they may have"
            }
            LostBody::NoRoom(NoRoom::Share) => {
                "this user or address has its share of the room, or of the files, for large bodies on the broker's disk"
            }
            LostBody::NoRoom(NoRoom::Ever) => "larger than all the room that such bodies may have on the broker's disk",
            LostBody::TooLarge => "a body of several frames has more than 64 MiB",
        }
    }

    /// How a request is refused, and when it may come again.
    pub fn of_request(self) -> (Status, u32) {
        match self {
            LostBody::Unwritten => (Status::NO_STORAGE, RETRY_MS),
            LostBody::NoRoom(NoRoom::Now | NoRoom::Share) => (Status::UNAVAILABLE, RETRY_MS),
            LostBody::NoRoom(NoRoom::Ever) | LostBody::TooLarge => (Status::TOO_LARGE, 0),
        }
    }

    /// How a request ends of which this was the reply. To keep its worker waiting for room could last for ever: what has the room
    /// may be waiting for this worker.
    pub fn of_reply(self) -> Status {
        match self {
            LostBody::Unwritten | LostBody::NoRoom(NoRoom::Now | NoRoom::Share) => Status::NO_STORAGE,
            LostBody::NoRoom(NoRoom::Ever) | LostBody::TooLarge => Status::TOO_LARGE,
        }
    }
}
