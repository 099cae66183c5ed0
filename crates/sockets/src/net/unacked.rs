//! Bytes that this machine's TCP has sent, or is to send, and the other side hasn't acknowledged.

use procfs::net::{TcpNetEntry, tcp, tcp6};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Instant;

/// At most one part in so many of the time is spent on looking.
const TIME_SHARE: u32 = 20;

/// Unacknowledged bytes of each TCP socket. `SIOCOUTQ` gives them for one socket; procfs walks all sockets of the machine (45 ms for 18,000),
/// so it is used only when a peer's liveness is in doubt.
#[derive(Debug, Default)]
pub(crate) struct UnackedBytes {
    by_inode: HashMap<u64, u64>,
    looked_at: Option<Instant>,
    next_look: Option<Instant>,
}

impl UnackedBytes {
    /// Those of one socket at `now`, which is the same for all sockets asked about in one go. `None`: not a TCP socket, or no procfs.
    ///
    /// # Errors
    ///
    /// The time of the next look, if it is too early for one.
    pub fn bytes(&mut self, fd: impl AsFd, now: Instant) -> Result<Option<u64>, Instant> {
        if self.looked_at != Some(now) {
            if let Some(next) = self.next_look.filter(|next| now < *next) {
                return Err(next);
            }
            self.look();
            self.looked_at = Some(now);
        }
        let inode = rustix::fs::fstat(fd).map(|stat| stat.st_ino).ok();
        Ok(inode.and_then(|inode| self.by_inode.get(&inode)).copied())
    }

    fn look(&mut self) {
        let begin = Instant::now();
        let entries = [tcp(), tcp6()].into_iter().flat_map(Result::unwrap_or_default);
        self.by_inode = entries.map(|TcpNetEntry { inode, tx_queue, .. }| (inode, u64::from(tx_queue))).collect();
        let end = Instant::now();
        self.next_look = end.checked_add((end - begin).saturating_mul(TIME_SHARE));
    }
}
