//! Tokens: a worker returns one with its reply, so that the reply finds its request.

use siphasher::sip::SipHasher13;
use towpath_requests::numbered::Token;

/// The attempt at a request that a token names: a slot of the request table, its generation, and the attempt's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub slot: u32,
    pub generation: u32,
    pub attempt: u16,
}

impl Ticket {
    /// The ticket that a token claims. [`TokenMaker::is_genuine`] says whether this broker made it.
    #[inline]
    pub fn read(token: &Token) -> Ticket {
        let [s0, s1, s2, s3, g0, g1, g2, g3, a0, a1, ..] = token.0;
        Ticket {
            slot: u32::from_be_bytes([s0, s1, s2, s3]),
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
            attempt: u16::from_be_bytes([a0, a1]),
        }
    }
}

/// Makes and verifies tokens with a secret of this process, so that no peer can forge one.
#[derive(Debug)]
pub(super) struct TokenMaker {
    secret: [u64; 2],
}

impl TokenMaker {
    pub fn new(secret: [u64; 2]) -> TokenMaker {
        TokenMaker { secret }
    }

    /// The ticket with its tag.
    #[inline]
    pub fn seal(&self, ticket: Ticket) -> Token {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&ticket.slot.to_be_bytes());
        bytes[4..8].copy_from_slice(&ticket.generation.to_be_bytes());
        bytes[8..10].copy_from_slice(&ticket.attempt.to_be_bytes());
        bytes[10..].copy_from_slice(&self.tag(ticket));
        Token(bytes)
    }

    /// Whether this process made the token that `ticket` was read from.
    #[inline]
    pub fn is_genuine(&self, ticket: Ticket, token: &Token) -> bool {
        token.0[10..] == self.tag(ticket)
    }

    #[inline]
    fn tag(&self, ticket: Ticket) -> [u8; 6] {
        let Ticket { slot, generation, attempt } = ticket;
        let name = (u128::from(slot) << 64) | (u128::from(generation) << 32) | u128::from(attempt);
        let hash = SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(&name.to_le_bytes());
        let [tag @ .., _, _] = hash.to_le_bytes();
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_tokens_and_those_of_other_processes_are_not_genuine() {
        let (tokens, others) = (TokenMaker::new([1, 2]), TokenMaker::new([1, 3]));
        let ticket = Ticket { slot: 70_000, generation: 3, attempt: 2 };
        let token = tokens.seal(ticket);
        assert_eq!(Ticket::read(&token), ticket);
        assert!(tokens.is_genuine(ticket, &token) && !others.is_genuine(ticket, &token));
        for index in 0..16 {
            let mut changed = token;
            changed.0[index] ^= 1;
            assert!(!tokens.is_genuine(Ticket::read(&changed), &changed), "{index}");
        }
    }
}
