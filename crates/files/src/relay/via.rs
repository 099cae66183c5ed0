//! The servers that files come through.

use crate::limits::RELAY_DEPTH_MAX;
use crate::protocol::follow::ServerId;
use crate::random::random;
use std::sync::{Mutex, PoisonError};

/// The servers that a server's files come through.
#[derive(Debug)]
pub struct Via {
    own: ServerId,
    above: Mutex<Vec<ServerId>>,
}

/// Why a relay can't have its files from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViaError {
    /// The relay has its files from itself.
    #[error("a loop: the server that this relay has its files from has them from this relay")]
    Loop,
    /// Too many relays in between.
    #[error("more than {RELAY_DEPTH_MAX} relays in a row; use one that is nearer to the first server")]
    TooDeep,
}

impl Via {
    /// A server whose files are its own.
    pub fn new(own: ServerId) -> Via {
        Via { own, above: Mutex::default() }
    }

    /// A server that draws its number now.
    pub fn drawn() -> Via {
        Via::new(ServerId(random()))
    }

    /// All of them, the first one first, this one last.
    pub fn all(&self) -> Vec<ServerId> {
        let above = self.above.lock().unwrap_or_else(PoisonError::into_inner);
        above.iter().copied().chain([self.own]).collect()
    }

    /// Notes those that come before this one.
    ///
    /// # Errors
    /// This one is among them, or there are too many.
    pub fn set_above(&self, servers: &[ServerId]) -> Result<(), ViaError> {
        if servers.contains(&self.own) {
            return Err(ViaError::Loop);
        }
        if servers.len() > RELAY_DEPTH_MAX {
            return Err(ViaError::TooDeep);
        }
        *self.above.lock().unwrap_or_else(PoisonError::into_inner) = servers.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_and_long_rows_are_refused() {
        let id = |byte| ServerId([byte; 16]);
        let mut above = vec![id(0)];
        for relay in 1..=8 {
            let via = Via::new(id(relay));
            assert_eq!(via.set_above(&above), Ok(()));
            above = via.all();
            assert_eq!(above.len(), usize::from(relay) + 1);
            assert_eq!(via.set_above(&above), Err(ViaError::Loop));
        }
        assert_eq!(Via::new(id(9)).set_above(&above), Err(ViaError::TooDeep));
    }
}
