//! How many files are asked for at a time.

/// Fetches open at a time: enough that the server never waits for the next one.
const FETCHES_OPEN_MAX: usize = 4;
/// Small files in one fetch.
const SMALL_BATCH_MAX: usize = 1024;

/// The number of requests that the server accepts at a time: fewer while it has many clients and answers `busy`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    /// Open fetches.
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
    /// Shrinks, as the server has refused a fetch beside `open` others: `false` if it can't shrink any more.
    pub(super) fn shrink(&mut self, open: usize) -> bool {
        match open {
            0 if self.files == 1 => return false,
            0 => self.files /= 2,
            _ => self.fetches = open,
        }
        true
    }

    /// Grows, as a fetch was finished and there may be space for another or a longer one.
    pub(super) fn grow(&mut self) {
        self.fetches = (self.fetches + 1).min(FETCHES_OPEN_MAX);
        self.files = (self.files + 1).min(SMALL_BATCH_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_shrinks_to_one_file_and_recovers() {
        let mut share = Concurrency::default();
        assert!(share.shrink(3));
        assert_eq!((share.fetches, share.files), (3, SMALL_BATCH_MAX));
        let refusals = (0..100).take_while(|_| share.shrink(0)).count();
        assert_eq!((1 << refusals, share.files), (SMALL_BATCH_MAX, 1));
        (0..SMALL_BATCH_MAX).for_each(|_| share.grow());
        assert_eq!((share.fetches, share.files), (FETCHES_OPEN_MAX, SMALL_BATCH_MAX));
    }
}
