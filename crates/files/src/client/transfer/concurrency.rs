//! How much is asked for at a time.

/// Fetches open at a time: enough that the server never waits for the next one.
const FETCHES_OPEN_MAX: usize = 4;
/// Small files in one fetch.
const SMALL_BATCH_MAX: usize = 1024;

/// How much the server takes at a time: less than all while it has many clients, as it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    /// Fetches.
    pub(super) fetches: usize,
    /// Small files in each.
    pub(super) files: usize,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { fetches: FETCHES_OPEN_MAX, files: SMALL_BATCH_MAX }
    }
}

impl Concurrency {
    /// Becomes less, as the server has refused one more beside so many that are open. Not if it was as little as can be.
    pub(super) fn shrink(&mut self, open: usize) -> bool {
        match open {
            0 if self.files == 1 => return false,
            0 => self.files /= 2,
            _ => self.fetches = open,
        }
        true
    }

    /// One was finished, so that there may be room for another, and for one that is longer.
    pub(super) fn grow(&mut self) {
        self.fetches = (self.fetches + 1).min(FETCHES_OPEN_MAX);
        self.files = (self.files + 1).min(SMALL_BATCH_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_becomes_less_to_the_last_and_comes_back() {
        let mut share = Concurrency::default();
        assert!(share.shrink(3));
        assert_eq!((share.fetches, share.files), (3, SMALL_BATCH_MAX));
        let refusals = (0..100).take_while(|_| share.shrink(0)).count();
        assert_eq!((1 << refusals, share.files), (SMALL_BATCH_MAX, 1));
        (0..SMALL_BATCH_MAX).for_each(|_| share.grow());
        assert_eq!((share.fetches, share.files), (FETCHES_OPEN_MAX, SMALL_BATCH_MAX));
    }
}
