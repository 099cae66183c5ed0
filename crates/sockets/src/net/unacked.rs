//! What this machine's TCP holds that the other side's hasn't taken.

use procfs::net::{TcpNetEntry, tcp, tcp6};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Instant;

/// One part in so many of the time is spent on looking, at most.
const SHARE: u32 = 20;

/// Bytes of each TCP socket that were written and not acknowledged. It is what `SIOCOUTQ` tells of one socket; procfs has to walk over
/// all of the machine's (45 ms for 18,000), so this is for when a peer's life is in doubt.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    by_inode: HashMap<u64, u64>,
    looked: Option<Instant>,
    next: Option<Instant>,
}

impl Unacknowledged {
    /// Those of one socket, as they are at `now`, which is the same for all that is asked at a time. `None`: it isn't a TCP socket, or
    /// there is no procfs.
    ///
    /// # Errors
    ///
    /// It is too soon for another look; then is the time.
    pub fn of(&mut self, fd: impl AsFd, now: Instant) -> Result<Option<u64>, Instant> {
        if self.looked != Some(now) {
            if let Some(next) = self.next.filter(|next| now < *next) {
                return Err(next);
            }
            self.look();
            self.looked = Some(now);
        }
        let inode = rustix::fs::fstat(fd).map(|stat| stat.st_ino).ok();
        Ok(inode.and_then(|inode| self.by_inode.get(&inode)).copied())
    }

    fn look(&mut self) {
        let begin = Instant::now();
        let entries = [tcp(), tcp6()].into_iter().flat_map(Result::unwrap_or_default);
        self.by_inode = entries.map(|TcpNetEntry { inode, tx_queue, .. }| (inode, u64::from(tx_queue))).collect();
        let end = Instant::now();
        self.next = end.checked_add((end - begin).saturating_mul(SHARE));
    }
}
