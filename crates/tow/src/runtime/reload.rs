//! Reads files of keys, users and rules again when they change.

use crate::cli::admission::Admission;
use crate::cli::exit::Failure;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use towpath_sockets::Handle;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

/// Starts a thread that looks at the files of an admission, if there are any. What is returned makes it read them, and open the audit file again,
/// at once.
pub fn watch<S: Send + 'static, A: Send + 'static>(
    admission: Option<Arc<Admission>>,
    handle: Handle<S, A>,
) -> Result<Option<impl Fn() + Send + 'static>, Failure> {
    let is_for_this = |admission: &Arc<Admission>| admission.sources().has_files() || admission.audit().is_some();
    let Some(admission) = admission.filter(is_for_this) else { return Ok(None) };
    let (sender, wanted) = channel();
    let look = move || {
        // Between the start and this thread a broker may have read its journal for minutes.
        let mut used = admission.first_fingerprint();
        let mut last = used;
        loop {
            let is_wanted = match wanted.recv_timeout(LOOK) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if is_wanted {
                admission.audit().into_iter().for_each(|audit| audit.reopen());
            }
            if !admission.sources().has_files() {
                continue;
            }
            // One that is being written is left alone: twice the same is finished.
            let now = admission.sources().fingerprint();
            let is_settled = std::mem::replace(&mut last, now) == now;
            if is_wanted || (is_settled && now != used) {
                used = now;
                if !reload(&admission, &handle) {
                    return;
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(look);
    thread
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error} (check ulimit -u and pids.max)")))?;
    Ok(Some(move || {
        let _ = sender.send(());
    }))
}

/// Reads the files, and lets the server judge its peers again. False if that has ended.
fn reload<S, A>(admission: &Admission, handle: &Handle<S, A>) -> bool {
    if let Err(failure) = admission.reload() {
        tracing::error!(
            reason = %failure,
            "keys, users and rules were NOT read again, what was read before stays in force: correct the file"
        );
        return true;
    }
    let Some(disconnected) = handle.judge_again() else { return false };
    admission.judged();
    tracing::info!(disconnected, "keys, users and rules were read again");
    true
}
