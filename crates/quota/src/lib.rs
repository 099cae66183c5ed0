//! Limits that several holders share: bytes of memory or disk, open files.
//!
//! A [`Quota`] counts units. Acquiring some returns a [`Permit`], and dropping the permit releases them. A holder, such as a client, gets
//! a share of the quota, with a maximum of its own and a minimum that others can't use up. Holders that have to wait take turns in a
//! [`FairQueue`]: by tenant, that is by identity, and then by key, such as a connection.
//!
//! ```
//! use towpath_quota::Quota;
//!
//! let memory = Quota::new(1000);
//! let [first, second] = [(), ()].map(|()| memory.share(100, 1000));
//! let permit = first.try_acquire(1000);
//! assert!(permit.is_some() && second.try_acquire(200).is_none());
//! assert!(second.try_acquire(100).is_some());
//! drop(permit);
//! assert!(second.try_acquire(200).is_some());
//! ```

mod fair_queue;
mod turns;

pub use fair_queue::FairQueue;
pub use turns::{Order, Turns};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of units, or a holder's share of another quota.
#[derive(Debug)]
pub struct Quota {
    max: u64,
    min: u64,
    used: AtomicU64,
    parent: Option<Arc<Quota>>,
}

/// Units of a quota, until this is dropped.
#[derive(Debug)]
pub struct Permit {
    quota: Arc<Quota>,
    units: u64,
}

impl Quota {
    /// A quota of this many units.
    pub fn new(max: u64) -> Arc<Quota> {
        Arc::new(Quota { max, min: 0, used: AtomicU64::new(0), parent: None })
    }

    /// A holder's share of this quota: up to `max` units, of which the first `min` are granted even if the quota is used up.
    pub fn share(self: &Arc<Quota>, min: u64, max: u64) -> Arc<Quota> {
        Arc::new(Quota { max, min, used: AtomicU64::new(0), parent: Some(Arc::clone(self)) })
    }

    /// The limit.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Units acquired and not released.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Units that [`Quota::try_acquire`] would grant now.
    pub fn available(&self) -> u64 {
        let used = self.used();
        let within_max = self.max.saturating_sub(used);
        let shared = self.parent.as_ref().map_or(u64::MAX, |parent| parent.available());
        within_max.min(shared.max(self.min.saturating_sub(used)))
    }

    /// Acquires units if all of them are within the limits.
    pub fn try_acquire(self: &Arc<Quota>, units: u64) -> Option<Permit> {
        self.try_acquire_below(self.max, units)
    }

    /// Acquires units if this keeps the quota within a limit lower than its own: the rest is kept for others.
    pub fn try_acquire_below(self: &Arc<Quota>, limit: u64, units: u64) -> Option<Permit> {
        self.try_add(limit.min(self.max), units).then(|| self.permit(units))
    }

    /// Acquires as many units as are available, at least one and at most this many.
    pub fn try_acquire_up_to(self: &Arc<Quota>, units: u64) -> Option<Permit> {
        loop {
            let available = self.available().min(units);
            if available == 0 {
                return None;
            }
            // Fails only if another thread has acquired some meanwhile.
            if let Some(permit) = self.try_acquire(available) {
                return Some(permit);
            }
        }
    }

    /// Acquires units whatever the limits: what is there already, and has to be counted.
    pub fn acquire(self: &Arc<Quota>, units: u64) -> Permit {
        self.add(units);
        self.permit(units)
    }

    fn permit(self: &Arc<Quota>, units: u64) -> Permit {
        Permit { quota: Arc::clone(self), units }
    }

    fn try_add(&self, limit: u64, units: u64) -> bool {
        let within = |used: u64| used.checked_add(units).filter(|used| *used <= limit);
        let Ok(before) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) else { return false };
        let Some(parent) = &self.parent else { return true };
        if parent.try_add(parent.max, units) {
            return true;
        }
        if before.saturating_add(units) <= self.min {
            parent.add(units);
            return true;
        }
        self.used.fetch_sub(units, Ordering::Relaxed);
        false
    }

    fn add(&self, units: u64) {
        self.used.fetch_add(units, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.add(units);
        }
    }

    fn release(&self, units: u64) {
        self.used.fetch_sub(units, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(units);
        }
    }
}

impl Permit {
    /// Units that it holds.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Parts with some of its units; None if it has fewer.
    pub fn split(&mut self, units: u64) -> Option<Permit> {
        self.units = self.units.checked_sub(units)?;
        Some(self.quota.permit(units))
    }

    /// Takes over another permit's units.
    ///
    /// # Errors
    /// The other permit, if it is of another quota.
    pub fn merge(&mut self, mut other: Permit) -> Result<(), Permit> {
        if !Arc::ptr_eq(&self.quota, &other.quota) {
            return Err(other);
        }
        self.units += std::mem::take(&mut other.units);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.release(self.units);
    }
}

#[cfg(test)]
mod tests;
