//! Reads files again when they change: those of keys, users and rules, and that of the names of followers.

use crate::cli::admission::Admission;
use crate::cli::exit::Failure;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use towpath_sockets::Handle;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

/// Files that are read again together.
pub struct Reloaded {
    /// A number for their content.
    fingerprint: Box<dyn Fn() -> u64 + Send>,
    /// Reads them again, and says so in the log. False if the server has ended.
    reload: Box<dyn Fn() -> bool + Send>,
    /// Fingerprints of what is in use, and of the last look.
    used: u64,
    last: u64,
}

impl Reloaded {
    /// `used`: the fingerprint of what was read first.
    fn new(
        used: u64,
        fingerprint: impl Fn() -> u64 + Send + 'static,
        reload: impl Fn() -> bool + Send + 'static,
    ) -> Reloaded {
        Reloaded { fingerprint: Box::new(fingerprint), reload: Box::new(reload), used, last: used }
    }

    /// The files of keys, users and rules.
    pub fn admission<S: Send + 'static, A: Send + 'static>(
        admission: &Arc<Admission>,
        handle: Handle<S, A>,
    ) -> Option<Reloaded> {
        let (sources, admission) = (admission.sources().clone(), Arc::clone(admission));
        let used = admission.first_fingerprint();
        let is_there = sources.has_files();
        is_there.then(|| Reloaded::new(used, move || sources.fingerprint(), move || judge_again(&admission, &handle)))
    }

    /// A file, which `read` takes into use.
    pub fn file(path: PathBuf, read: impl Fn() -> Result<String, Failure> + Send + 'static) -> Reloaded {
        let name = path.display().to_string();
        let fingerprint = move || {
            let mut hasher = DefaultHasher::new();
            std::fs::read(&path).map_err(|error| error.to_string()).hash(&mut hasher);
            hasher.finish()
        };
        Reloaded::new(fingerprint(), fingerprint, move || {
            match read() {
                Ok(what) => tracing::info!(file = %name, "{what} were read again"),
                Err(failure) => tracing::error!(reason = %failure, "{name} was NOT read again: correct the file"),
            }
            true
        })
    }

    /// Reads them again if they have changed, or if it is wanted. False if the server has ended.
    fn look(&mut self, is_wanted: bool) -> bool {
        // One that is being written is left alone: twice the same is finished.
        let now = (self.fingerprint)();
        let is_settled = std::mem::replace(&mut self.last, now) == now;
        if !is_wanted && (!is_settled || now == self.used) {
            return true;
        }
        self.used = now;
        (self.reload)()
    }
}

/// Starts a thread that looks at files, if there are any. What is returned makes it read them, and open the audit file again, at once.
pub fn watch(
    admission: Option<Arc<Admission>>,
    files: impl IntoIterator<Item = Reloaded>,
) -> Result<Option<impl Fn() + Send + 'static>, Failure> {
    let mut files: Vec<Reloaded> = files.into_iter().collect();
    let admission = admission.filter(|admission| admission.audit().is_some());
    if files.is_empty() && admission.is_none() {
        return Ok(None);
    }
    let (sender, wanted) = channel();
    let look = move || {
        loop {
            let is_wanted = match wanted.recv_timeout(LOOK) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if is_wanted {
                admission.iter().filter_map(|admission| admission.audit()).for_each(|audit| audit.reopen());
            }
            if !files.iter_mut().all(|files| files.look(is_wanted)) {
                return;
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
fn judge_again<S, A>(admission: &Admission, handle: &Handle<S, A>) -> bool {
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
