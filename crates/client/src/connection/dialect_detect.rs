//! What a stock broker speaks, as long as it has said nothing.

use super::Dialect;
use towpath_requests::majordomo;

/// What a broker without numbered requests is taken to speak. Majordomo has no way to ask: whoever isn't understood hears nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guess {
    dialect: majordomo::Dialect,
    is_sure: bool,
}

impl Guess {
    /// As it was told; or MDP/0.1, which most speak.
    pub fn first(told: Dialect) -> Guess {
        let dialect = match told {
            Dialect::Auto | Dialect::Mdp01 => majordomo::Dialect::Mdp01,
            Dialect::Mdp02 => majordomo::Dialect::Mdp02,
            Dialect::Majortomo => majordomo::Dialect::Majortomo,
        };
        Guess { dialect, is_sure: told != Dialect::Auto }
    }

    pub fn dialect(self) -> majordomo::Dialect {
        self.dialect
    }

    /// It said something in this dialect.
    pub fn heard(&mut self, dialect: majordomo::Dialect) {
        (self.dialect, self.is_sure) = (dialect, true);
    }

    /// It hasn't been heard: the other one is as good. MDP/0.2 without an empty frame in front is never tried: there are brokers of 0.1
    /// that end when that is missing.
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
    fn both_are_tried_until_one_is_heard_or_told() {
        let mut guess = Guess::first(Dialect::Auto);
        let mut tried = Vec::new();
        for _ in 0..3 {
            tried.push(guess.dialect());
            guess.next();
        }
        assert_eq!(tried, [majordomo::Dialect::Mdp01, majordomo::Dialect::Majortomo, majordomo::Dialect::Mdp01]);
        guess.heard(majordomo::Dialect::Majortomo);
        guess.next();
        assert_eq!(guess.dialect(), majordomo::Dialect::Majortomo);
        let mut told = Guess::first(Dialect::Majortomo);
        told.next();
        assert_eq!(told.dialect(), majordomo::Dialect::Majortomo);
    }
}
