//! Who may connect by PLAIN: the question that servers put to whoever set them up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Admits = dyn Fn(&[u8], &[u8]) -> bool + Send + Sync;

/// Whether a user may connect with this password.
#[derive(Clone)]
pub struct Admit(Arc<Admits>);

impl Admit {
    /// Asks this of the name and the password of each peer, on the thread that drives the hub. A panic refuses that peer.
    pub fn by(admits: impl Fn(&[u8], &[u8]) -> bool + Send + Sync + 'static) -> Admit {
        Admit(Arc::new(admits))
    }

    /// Whether it says so. A peer whose name it can't bear mustn't end the server of all others.
    pub fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        let asked = catch_unwind(AssertUnwindSafe(|| (self.0)(user, password)));
        asked.unwrap_or_else(|_| {
            let user = String::from_utf8_lossy(user);
            tracing::error!(%user, "who may connect can't be told, and this peer may not: the function that tells it panicked");
            false
        })
    }
}

impl std::fmt::Debug for Admit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_the_question_panic_may_not_connect() {
        let admit = Admit::by(|user, password| user.len() == 3 && password[0] == b'x');
        assert!(admit.admits(b"ann", b"x"));
        assert!(!admit.admits(b"ann", b""));
        assert!(!admit.admits(b"a", b"x") && admit.admits(b"ann", b"xyz"));
    }
}
