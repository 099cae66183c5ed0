//! Secrets in this process's memory.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Keeps this process out of core dumps, and its memory from other processes of its user, from now on: it is about to have a secret.
pub fn protect() {
    if let Err(errno) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        let error = std::io::Error::from(errno);
        tracing::warn!(%error, "keys and passwords may end in a core dump: this process could not be kept out of them");
    }
}
