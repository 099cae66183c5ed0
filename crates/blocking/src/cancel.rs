//! Cancelling work from another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Cancels work from any thread. Clones are the same token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    is_cancelled: AtomicBool,
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl CancelToken {
    /// A token that isn't cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels the work, now or when it starts.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        if let Some(wake) = &*self.0.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Calls `wake` at each cancellation from now on, in place of an earlier one: for work that waits for events.
    pub fn on_cancel(&self, wake: impl Fn() + Send + 'static) {
        *self.0.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn cancelling_a_clone_sets_the_flag_and_wakes() {
        let (token, woken) = (CancelToken::new(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&woken);
        token.on_cancel(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        assert!(!token.is_cancelled());
        token.clone().cancel();
        assert!(token.is_cancelled());
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }
}
