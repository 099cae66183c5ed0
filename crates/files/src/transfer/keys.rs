//! A fast hash for keys that are counted up.

use std::hash::{BuildHasherDefault, Hasher};

/// The hasher of maps whose keys are consecutive numbers of this side. Nobody else chooses them, so they can't be made
/// to collide, and one multiplication spreads them. Each message looks files up several times.
pub(super) type Counted = BuildHasherDefault<CountedHasher>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountedHasher(u64);

/// 2^64 divided by the golden ratio: consecutive numbers come far apart, in the high bits too.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for CountedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(SPREAD);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
