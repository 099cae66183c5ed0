//! The last requests that were refused, or failed.

use super::stats::FailureStats;
use std::collections::VecDeque;
use towpath_sockets::Page;

/// Failures that are remembered.
const FAILURES_MAX: usize = 200;
/// The same of one tenant: it must not push out those of all others.
const TENANT_MAX: usize = 50;
/// Bytes of a path, and of a reason, that are remembered.
const TEXT_BYTES_MAX: usize = 1000;

/// Code of what ended with its connection.
pub(super) const LOST: &str = "lost";

/// Failures, the latest last, each with its tenant.
#[derive(Debug, Default)]
pub(super) struct Failures(VecDeque<(u64, FailureStats)>);

impl Failures {
    /// Remembers some, and forgets the oldest.
    pub(super) fn extend(&mut self, tenant: u64, failures: impl IntoIterator<Item = FailureStats>) {
        failures.into_iter().for_each(|failure| self.add(tenant, failure));
    }

    fn add(&mut self, tenant: u64, mut failure: FailureStats) {
        failure.path.truncate(TEXT_BYTES_MAX);
        while failure.reason.len() > TEXT_BYTES_MAX {
            failure.reason.pop();
        }
        let of_tenant = self.0.iter().filter(|(of, _)| *of == tenant).count();
        let oldest = if of_tenant >= TENANT_MAX {
            self.0.iter().position(|(of, _)| *of == tenant)
        } else {
            (self.0.len() >= FAILURES_MAX).then_some(0)
        };
        oldest.map(|at| self.0.remove(at));
        self.0.push_back((tenant, failure));
    }

    /// A page of them, the latest first.
    pub(super) fn page(&self, from: u32) -> Page<FailureStats> {
        let latest = self.0.iter().rev().map(|(_, failure)| failure.clone());
        Page::of((0..).zip(latest).skip(from as usize).map(|(number, failure)| (number, Some(failure))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::stats::RequestKind;
    use std::time::Instant;
    use towpath_sockets::PAGE_MAX;
    use towpath_sockets::PeerId;

    fn failure(number: usize) -> FailureStats {
        FailureStats {
            peer: PeerId::new(0, 0),
            address: String::new(),
            user: None,
            follower: None,
            kind: RequestKind::Fetch,
            path: number.to_string().into_bytes(),
            count: 1,
            at: Instant::now(),
            code: LOST,
            reason: "é".repeat(TEXT_BYTES_MAX),
        }
    }

    #[test]
    fn one_tenant_pushes_out_only_its_own() {
        let mut failures = Failures::default();
        for number in 0..FAILURES_MAX {
            failures.add(number as u64 % 4, failure(number));
        }
        for number in FAILURES_MAX..1000 {
            failures.add(7, failure(number));
        }
        assert_eq!(failures.0.len(), FAILURES_MAX);
        let of = |tenant| failures.0.iter().filter(|(of, _)| *of == tenant).count();
        assert_eq!(of(7), TENANT_MAX);
        assert!((0..4).all(|tenant| of(tenant) >= FAILURES_MAX / 4 - 13), "all lose alike");
        let page = failures.page(0);
        assert_eq!((page.entries.len(), &page.entries[0].1.path[..]), (PAGE_MAX, &b"999"[..]));
        assert!(page.entries[0].1.reason.len() <= TEXT_BYTES_MAX);
        assert_eq!(failures.page(150).entries.len(), 50);
    }
}
