//! The audit file: logins, refusals and operators' actions, one JSON object per line.

use crate::cli::auth_args::is_own;
use crate::cli::exit::Failure;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};
use tokio::sync::oneshot;
use towpath_rules::{RuleLine, Verb};
use towpath_sockets::{Address, Principal, Tenant};

/// Lines that wait for the disk. A server never waits for it.
const WAITING_MAX: usize = 4096;
/// Bytes at the end of the file that are read when it is opened.
const EARLIER_BYTES_MAX: u64 = 1 << 20;
/// Lines about one user or address at once, and in a second later on.
const BURST: f64 = 50.0;
const PER_SECOND: f64 = 5.0;
/// Users and addresses whose lines are counted.
const COUNTED_MAX: usize = 4096;

/// The audit file. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Arc<Shared>);

struct Shared {
    lines: SyncSender<Line>,
    /// Lines about actions that the file had when it was opened.
    earlier: Vec<Value>,
    /// Lines that found no space.
    lost: AtomicU64,
    counted: Mutex<HashMap<Tenant, Count>>,
}

enum Line {
    /// A line, and the sender to notify once it is written.
    Text(String, Option<oneshot::Sender<io::Result<()>>>),
    Reopen,
}

/// Lines that a user or an address may still write, and those that were left out.
struct Count {
    left: f64,
    at: Instant,
    suppressed: u64,
}

impl Audit {
    /// Opens the file, to write behind what is in it.
    pub fn open(path: &Path) -> Result<Audit, Failure> {
        let named = |error| Failure::failed(format!("--audit {}: {error}", path.display()));
        let mut file = open(path).map_err(named)?;
        let (earlier, is_torn) = read_end(path, &file).map_err(named)?;
        if is_torn {
            // The server before was killed in the middle of a line.
            file.write_all(b"\n").map_err(named)?;
        }
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(&waiting, file, &path))
            .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        Ok(Audit(Arc::new(Shared { lines, earlier, lost: AtomicU64::new(0), counted: Mutex::default() })))
    }

    /// Lines about actions that the end of the file had when it was opened, the latest last.
    pub fn earlier(&self) -> &[Value] {
        &self.0.earlier
    }

    /// Reopens the file, which may have been moved away.
    pub fn reopen(&self) {
        if self.0.lines.try_send(Line::Reopen).is_err() {
            tracing::warn!("the audit file wasn't opened anew: too many lines wait for its disk");
        }
    }

    /// Notes that a peer is there.
    pub fn login(&self, principal: &Principal, address: &Address) {
        self.note(tenant_of(principal, address), principal, address, "login", json!({}));
    }

    /// Notes that a peer wasn't admitted. It claimed to be this one, so that the line counts for its address.
    pub fn login_refused(&self, claimed: &Principal, address: &Address) {
        self.note(Tenant::of_address(address), claimed, address, "login-refused", json!({}));
    }

    /// Notes that a peer isn't admitted any more.
    pub fn revoked(&self, principal: &Principal, address: &Address) {
        self.note(tenant_of(principal, address), principal, address, "revoked", json!({}));
    }

    /// Notes that something was refused, and by which line.
    pub fn refused(
        &self,
        principal: &Principal,
        address: &Address,
        verb: Verb,
        subject: &[u8],
        line: Option<&RuleLine>,
    ) {
        let (number, rule) = line.map(|line| (line.number, &*line.text)).unzip();
        let subject = String::from_utf8_lossy(subject);
        let more = json!({"verb": verb.name(), "subject": subject, "line": number, "rule": rule});
        self.note(tenant_of(principal, address), principal, address, "refused", more);
    }

    /// Notes an operator's action. The receiver learns when the line is written, or why it isn't; it is closed if there is no space for the line.
    pub fn action(&self, line: &Value) -> oneshot::Receiver<io::Result<()>> {
        let (written, receiver) = oneshot::channel();
        self.send(Line::Text(format!("{line}\n"), Some(written)));
        receiver
    }

    fn send(&self, line: Line) {
        if self.0.lines.try_send(line).is_err() {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note(&self, tenant: Tenant, principal: &Principal, address: &Address, event: &str, more: Value) {
        let Some(suppressed) = self.admit(tenant) else { return };
        let (name, key) = match principal {
            Principal::User(name) => (Some(String::from_utf8_lossy(name).into_owned()), None),
            Principal::Key { key, name } => {
                let name = (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned());
                (name, Some(key.to_string()))
            }
            _ => (None, None),
        };
        let mut line = json!({"time": now(), "event": event, "name": name, "key": key, "address": address.to_string()});
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
            if suppressed > 0 {
                line.insert("suppressed".to_owned(), suppressed.into());
            }
            let lost = self.0.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                line.insert("lost".to_owned(), lost.into());
            }
        }
        self.send(Line::Text(format!("{line}\n"), None));
    }

    /// Whether there may be a line about this one now: how many there might not be before it.
    fn admit(&self, tenant: Tenant) -> Option<u64> {
        let mut counted = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= COUNTED_MAX && !counted.contains_key(&tenant) {
            counted.clear();
        }
        let now = Instant::now();
        let count = counted.entry(tenant).or_insert(Count { left: BURST, at: now, suppressed: 0 });
        count.left = (count.left + now.duration_since(count.at).as_secs_f64() * PER_SECOND).min(BURST);
        count.at = now;
        if count.left < 1.0 {
            count.suppressed += 1;
            return None;
        }
        count.left -= 1.0;
        Some(std::mem::take(&mut count.suppressed))
    }
}

/// The time as lines have it.
pub fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn tenant_of(principal: &Principal, address: &Address) -> Tenant {
    match principal {
        Principal::User(name) => Tenant::User(name.clone()),
        Principal::Key { name, .. } if !name.is_empty() => Tenant::User(name.clone()),
        _ => Tenant::of_address(address),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    // Where others can write into the directory, they may have put there a link to any file of this user's.
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    flags.set(OFlags::NOFOLLOW, !is_own(&std::fs::metadata(above)?));
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let there = file.metadata()?;
    if there.is_file() && !is_own(&there) {
        let (owner, mode) = (there.uid(), there.mode() & 0o7777);
        return Err(io::Error::other(format!("others can write to it (user {owner}, mode {mode:04o}): remove it")));
    }
    Ok(file)
}

/// Lines about actions at the end of a file that is open for writing, and whether its last line has no end. Of a pipe or a device there are none.
fn read_end(path: &Path, opened: &File) -> io::Result<(Vec<Value>, bool)> {
    let there = opened.metadata()?;
    if !there.is_file() {
        return Ok((Vec::new(), false));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    // It may have been replaced meanwhile.
    if (found.dev(), found.ino()) != (there.dev(), there.ino()) {
        return Ok((Vec::new(), false));
    }
    let begin = found.len().saturating_sub(EARLIER_BYTES_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(EARLIER_BYTES_MAX).read_to_end(&mut bytes)?;
    // The first one may have begun before, and then is no JSON.
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let is_action = |line: &Value| matches!(line["event"].as_str(), Some("action" | "action-ended"));
    Ok((lines.filter(is_action).collect(), bytes.last().is_some_and(|last| *last != b'\n')))
}

/// Writes lines until there can be no more.
fn write(waiting: &Receiver<Line>, mut file: File, path: &Path) {
    let mut has_failed = false;
    while let Ok(line) = waiting.recv() {
        let (outcome, waits) = match line {
            Line::Text(line, waits) => (file.write_all(line.as_bytes()), waits),
            Line::Reopen => (open(path).map(|opened| file = opened), None),
        };
        match &outcome {
            Ok(()) => has_failed = false,
            Err(error) if !std::mem::replace(&mut has_failed, true) => {
                tracing::error!(%error, path = %path.display(), "the audit file can't be written: lines are missing from it");
            }
            Err(_) => {}
        }
        if let Some(waits) = waits {
            // It may have given up.
            let _ = waits.send(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_are_bounded_by_who_they_are_about() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(open(&path).unwrap_err().to_string().contains("0666"));
        // A link that others may have put there.
        let link = path.with_extension("link");
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(open(&link).is_err() && !path.with_file_name("elsewhere").exists());
        let (ann, bob) = (Principal::User("ann".into()), Principal::User("bob".into()));
        for _ in 0..500 {
            audit.refused(&ann, &Address::Inproc, Verb::Read, b"a\xff\n", None);
        }
        audit.login(&bob, &Address::Inproc);
        let start = Instant::now();
        let lines = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<Value> =
                text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect();
            if lines.last().is_some_and(|line| line["event"] == "login") {
                break lines;
            }
            assert!(start.elapsed().as_secs() < 60, "{text}");
            std::thread::yield_now();
        };
        drop(audit);
        // A line that was cut off neither takes the next one with it nor hides those before.
        let torn = "{\"event\": \"action\", \"by\": \"ann\"}\n{\"event\": \"acti";
        let torn_path = path.with_extension("torn");
        std::fs::write(&torn_path, torn).unwrap();
        let audit = Audit::open(&torn_path).unwrap();
        assert_eq!(audit.earlier().iter().map(|line| &line["by"]).collect::<Vec<_>>(), ["ann"]);
        assert_eq!(std::fs::read_to_string(&torn_path).unwrap(), format!("{torn}\n"));
        let of_ann = lines.iter().filter(|line| line["name"] == "ann").count();
        assert!((BURST as usize..400).contains(&of_ann), "{of_ann}");
        assert_eq!((&lines[0]["verb"], &lines[0]["subject"]), (&"read".into(), &"a\u{fffd}\n".into()));
    }
}
