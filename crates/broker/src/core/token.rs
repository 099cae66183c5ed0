//! Tokens: what a worker returns so that its reply finds its request.

use siphasher::sip::SipHasher13;
use towpath_requests::numbered::Token;

/// What a token names: a slot of the table, its generation, and the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub slot: u32,
    pub generation: u32,
    pub attempt: u16,
}

impl Ticket {
    fn tag(self, secret: [u64; 2]) -> [u8; 6] {
        let name = (u128::from(self.slot) << 64) | (u128::from(self.generation) << 32) | u128::from(self.attempt);
        let hash = SipHasher13::new_with_keys(secret[0], secret[1]).hash(&name.to_le_bytes());
        let [tag @ .., _, _] = hash.to_le_bytes();
        tag
    }

    /// The token: the ticket, and a tag without which nobody can make one up.
    #[inline]
    pub fn seal(self, secret: [u64; 2]) -> Token {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.slot.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.generation.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.attempt.to_be_bytes());
        bytes[10..].copy_from_slice(&self.tag(secret));
        Token(bytes)
    }

    /// What a token says, whether or not it is true.
    #[inline]
    pub fn read(token: &Token) -> Ticket {
        let [s0, s1, s2, s3, g0, g1, g2, g3, a0, a1, ..] = token.0;
        Ticket {
            slot: u32::from_be_bytes([s0, s1, s2, s3]),
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
            attempt: u16::from_be_bytes([a0, a1]),
        }
    }

    /// Whether this broker made this token.
    pub fn is_genuine(self, token: &Token, secret: [u64; 2]) -> bool {
        token.0[10..] == self.tag(secret)
    }
}
