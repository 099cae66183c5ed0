//! Cancelling work from another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Cancels work from any thread. Clones are the same token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    is_cancelled: AtomicBool,
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
    children: Mutex<Vec<Weak<Inner>>>,
}

impl CancelToken {
    /// A token that isn't cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// A token for a part of the work: cancelled with this one, or alone.
    pub fn child(&self) -> CancelToken {
        let child = CancelToken::new();
        let mut children = self.0.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child.0));
        // Under the lock: `cancel` sets this first, and then looks for children.
        child.0.is_cancelled.store(self.is_cancelled(), Ordering::Release);
        drop(children);
        child
    }

    /// Cancels the work, now or when it starts.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        if let Some(wake) = &*self.0.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
        let children = std::mem::take(&mut *self.0.children.lock().unwrap_or_else(PoisonError::into_inner));
        children.iter().filter_map(Weak::upgrade).for_each(|child| CancelToken(child).cancel());
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

    #[test]
    fn parts_are_cancelled_with_the_whole_and_not_the_other_way_round() {
        let whole = CancelToken::new();
        let (part, other) = (whole.child(), whole.child());
        part.cancel();
        assert!(part.is_cancelled() && !other.is_cancelled() && !whole.is_cancelled());
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        other.on_cancel(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        whole.cancel();
        assert!(other.is_cancelled() && whole.child().is_cancelled());
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }
}
