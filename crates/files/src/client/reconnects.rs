//! Connections that break before they brought anything.

/// Connections in a row that broke without having got the transfer further before it is given up. A server that is down isn't meant:
/// then there is no connection to break.
const IN_A_ROW_MAX: u32 = 20;

/// Counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reconnects {
    in_a_row: u32,
    furthest: u64,
}

impl Reconnects {
    /// A connection broke when the transfer had come so far, in any unit that only grows as it gets on. The number of
    /// breaks in a row, if that is too many.
    pub(super) fn broke_at(&mut self, reached: u64) -> Option<u32> {
        self.in_a_row = if reached > self.furthest { 0 } else { self.in_a_row + 1 };
        self.furthest = self.furthest.max(reached);
        (self.in_a_row > IN_A_ROW_MAX).then_some(self.in_a_row)
    }

    /// Whether the last connection brought nothing.
    pub(super) fn is_stuck(&self) -> bool {
        self.in_a_row > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_breaks_without_progress_count() {
        let mut breaks = Reconnects::default();
        assert!((1..100).all(|reached| breaks.broke_at(reached).is_none() && !breaks.is_stuck()));
        assert!((0..IN_A_ROW_MAX).all(|_| breaks.broke_at(99).is_none()));
        assert_eq!(breaks.broke_at(50), Some(IN_A_ROW_MAX + 1));
        assert!(breaks.is_stuck());
    }
}
