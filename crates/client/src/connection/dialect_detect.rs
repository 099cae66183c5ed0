//! Guessing the dialect of a stock broker that has sent nothing yet.

use super::Dialect;
use towpath_requests::majordomo;

/// The dialect to try. Majordomo can't be asked for it: a worker that isn't understood gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DialectGuess {
    dialect: majordomo::Dialect,
    is_sure: bool,
}

impl DialectGuess {
    /// The configured dialect, or MDP/0.1, which is the most common.
    pub fn first(configured: Dialect) -> DialectGuess {
        let dialect = match configured {
            Dialect::Auto | Dialect::Mdp01 => majordomo::Dialect::Mdp01,
            Dialect::Mdp02 => majordomo::Dialect::Mdp02,
            Dialect::Majortomo => majordomo::Dialect::Majortomo,
        };
        DialectGuess { dialect, is_sure: configured != Dialect::Auto }
    }

    pub fn dialect(self) -> majordomo::Dialect {
        self.dialect
    }

    /// The broker sent a message in this dialect.
    pub fn received(&mut self, dialect: majordomo::Dialect) {
        (self.dialect, self.is_sure) = (dialect, true);
    }

    /// Tries the other dialect after silence. MDP/0.2 without an empty frame in front is never tried: it crashes some
    /// brokers of MDP/0.1.
    pub fn next(&mut self) {
        if !self.is_sure {
            self.dialect = match self.dialect {
                majordomo::Dialect::Mdp01 => majordomo::Dialect::Majortomo,
                majordomo::Dialect::Majortomo | majordomo::Dialect::Mdp02 => majordomo::Dialect::Mdp01,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_are_tried_until_one_is_understood() {
        let mut guess = DialectGuess::first(Dialect::Auto);
        let mut tried = Vec::new();
        for _ in 0..3 {
            tried.push(guess.dialect());
            guess.next();
        }
        assert_eq!(tried, [majordomo::Dialect::Mdp01, majordomo::Dialect::Majortomo, majordomo::Dialect::Mdp01]);
        guess.received(majordomo::Dialect::Majortomo);
        guess.next();
        assert_eq!(guess.dialect(), majordomo::Dialect::Majortomo);
        let mut informed = DialectGuess::first(Dialect::Majortomo);
        informed.next();
        assert_eq!(informed.dialect(), majordomo::Dialect::Majortomo);
    }
}
