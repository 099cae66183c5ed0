//! Connections that break one after another without progress.

/// Connections in a row that may break without progress before the transfer fails. A server that is down doesn't
/// count: then there is no connection to break.
const IN_A_ROW_MAX: u32 = 20;

/// Counts such connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reconnects {
    in_a_row: u32,
    furthest: u64,
}

impl Reconnects {
    /// A connection broke when the progress was `reached`, in any unit that only grows. Returns how many broke in a
    /// row, if that is too many.
    pub(crate) fn lost_at(&mut self, reached: u64) -> Option<u32> {
        self.in_a_row = if reached > self.furthest { 0 } else { self.in_a_row + 1 };
        self.furthest = self.furthest.max(reached);
        (self.in_a_row > IN_A_ROW_MAX).then_some(self.in_a_row)
    }

    /// Whether the last connection brought no progress.
    pub(crate) fn is_without_progress(&self) -> bool {
        self.in_a_row > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_without_progress_count() {
        let mut reconnects = Reconnects::default();
        assert!((1..100).all(|reached| reconnects.lost_at(reached).is_none() && !reconnects.is_without_progress()));
        assert!((0..IN_A_ROW_MAX).all(|_| reconnects.lost_at(99).is_none()));
        assert_eq!(reconnects.lost_at(50), Some(IN_A_ROW_MAX + 1));
        assert!(reconnects.is_without_progress());
    }
}
