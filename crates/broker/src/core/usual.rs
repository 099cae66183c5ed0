//! How long a service usually takes for a request.

use super::settings::Millis;

/// Classes of durations: each is up to twice as long as the one before. The last has all from nine hours on.
const CLASSES: usize = 26;

/// Replies after which older ones count half.
const REPLIES_MAX: u16 = 512;

/// Durations of the latest replies of a service, by class.
#[derive(Debug, Default, Clone)]
pub(super) struct UsualTime {
    classes: [u16; CLASSES],
    all: u16,
}

impl UsualTime {
    /// A reply took so long.
    #[inline]
    pub fn observe(&mut self, took: Millis) {
        let class = (Millis::BITS - took.leading_zeros()) as usize;
        self.classes[class.min(CLASSES - 1)] += 1;
        self.all += 1;
        if self.all >= REPLIES_MAX {
            self.classes.iter_mut().for_each(|count| *count /= 2);
            self.all = self.classes.iter().sum();
        }
    }

    /// Milliseconds within which 19 of 20 replies came, rounded up to a power of two. `None`: there was none.
    pub fn usual_ms(&self) -> Option<Millis> {
        self.within(19, 20)
    }

    /// The same of half of the replies.
    pub fn median_ms(&self) -> Option<Millis> {
        self.within(1, 2)
    }

    /// Milliseconds within which this part of the replies came.
    fn within(&self, part: u32, whole: u32) -> Option<Millis> {
        let wanted = (u32::from(self.all) * part).div_ceil(whole);
        let mut seen = 0;
        let class = self.classes.iter().position(|count| {
            seen += u32::from(*count);
            seen >= wanted
        });
        class.filter(|_| self.all > 0).map(|class| 1 << class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_reply_in_twenty_is_not_usual() {
        let mut usual = UsualTime::default();
        assert_eq!(usual.usual_ms(), None);
        (0..19).for_each(|_| usual.observe(5));
        usual.observe(60_000);
        assert_eq!((usual.usual_ms(), usual.median_ms()), (Some(8), Some(8)));
        (0..2).for_each(|_| usual.observe(60_000));
        assert_eq!((usual.usual_ms(), usual.median_ms()), (Some(65_536), Some(8)));
    }

    #[test]
    fn a_service_that_becomes_slower_is_soon_usually_slow() {
        let mut usual = UsualTime::default();
        (0..100_000).for_each(|_| usual.observe(0));
        assert_eq!(usual.usual_ms(), Some(1));
        (0..50).for_each(|_| usual.observe(1_000));
        assert_eq!(usual.usual_ms(), Some(1_024));
        usual.observe(Millis::MAX);
    }
}
