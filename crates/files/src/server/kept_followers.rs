//! Followers that are remembered across restarts: a file in the directory of the state, written by a thread of its own.
//!
//! It has a line that says what it is, then a JSON object a line. A file of another version, or one that is damaged, is replaced: followers
//! report again when they connect, and only those that don't would be missed.

use crate::limits::FOLLOWERS_KEPT_MAX;
use crate::protocol::control::{Holder, HolderName};
use crate::protocol::follow::Cursor;
use crate::relay::{Holders, Kept};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use towpath_sockets::Tenant;

const NAME: &str = "followers";
const NEW_NAME: &str = "followers.new";
const FIRST_LINE: &str = "towpath followers 1";

/// Bytes of a file that is read: far more than the kept followers have.
const BYTES_MAX: u64 = 64 << 20;

/// Time between two looks at whether something has changed.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Time after which the file is written though only the times of reports have changed.
const WRITE_EVERY: Duration = Duration::from_secs(300);

/// Longest wait for the last write.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread that writes them, until this is dropped.
#[derive(Debug)]
pub(super) struct KeptFollowers {
    end: Option<SyncSender<()>>,
    ended: Receiver<()>,
}

/// A follower, as its line has it.
#[derive(Serialize, Deserialize)]
struct LineOf {
    tenant: String,
    user: Option<String>,
    via: Option<HolderName>,
    /// When it was last there, in seconds since 1970.
    said: u64,
    holder: Holder,
}

impl KeptFollowers {
    /// Reads those that were kept, and starts the thread. `number` is that of a tenant; `may_have`: whether a cursor is of what is published.
    pub(super) fn start(
        directory: &Path,
        holders: Arc<Mutex<Holders>>,
        number: impl Fn(&Tenant) -> u64,
        may_have: impl Fn(Cursor) -> bool,
    ) -> io::Result<KeptFollowers> {
        let path = directory.join(NAME);
        let read = read(&path).unwrap_or_else(|error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "it isn't known which followers were there; begins anew");
            }
            Vec::new()
        });
        let (now, clock) = (Instant::now(), clock());
        // The last one last: others are forgotten first.
        for LineOf { tenant, user, via, said, mut holder } in read.into_iter().rev() {
            let Some(whose) = tenant_of(&tenant) else { continue };
            let ago = Duration::from_secs(clock.saturating_sub(said));
            holder.cursor = holder.cursor.filter(|cursor| may_have(*cursor));
            let user = user.map(Arc::from);
            let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.restore(&whose, number(&whose), Kept { user, via, holder, ago }, now);
        }
        let (end, is_over) = sync_channel::<()>(1);
        let (says_ended, ended) = sync_channel(1);
        let directory = directory.to_owned();
        std::thread::Builder::new().name("tow-followers".to_owned()).spawn(move || {
            write_until(&is_over, &directory, &holders);
            let _ = says_ended.try_send(());
        })?;
        Ok(KeptFollowers { end: Some(end), ended })
    }
}

impl Drop for KeptFollowers {
    fn drop(&mut self) {
        self.end = None;
        if self.ended.recv_timeout(END_TIMEOUT).is_err() {
            tracing::warn!("the file of followers can't be written in time");
        }
    }
}

/// Writes them when something has changed, and at the end.
fn write_until(is_over: &Receiver<()>, directory: &Path, holders: &Mutex<Holders>) {
    let (mut written, mut written_at) = (0, Instant::now());
    loop {
        let ends = is_over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
        let (lines, revision) = {
            let holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            let revision = holders.revision();
            let is_due = revision != written || (revision > 0 && (ends || written_at.elapsed() >= WRITE_EVERY));
            (is_due.then(|| lines(&holders)), revision)
        };
        if let Some(lines) = lines {
            if let Err(error) = write(directory, &lines) {
                tracing::warn!(path = %directory.join(NAME).display(), %error, "the followers can't be written down");
            }
            (written, written_at) = (revision, Instant::now());
        }
        if ends {
            return;
        }
    }
}

fn lines(holders: &Holders) -> Vec<LineOf> {
    let (now, clock) = (Instant::now(), clock());
    let line = |(whose, kept): (&Tenant, Kept)| LineOf {
        tenant: text_of(whose),
        user: kept.user.map(|user| user.to_string()),
        via: kept.via,
        said: clock.saturating_sub(kept.ago.as_secs()),
        holder: kept.holder,
    };
    holders.kept(FOLLOWERS_KEPT_MAX, now).map(line).collect()
}

/// Seconds since 1970.
fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read(path: &PathBuf) -> io::Result<Vec<LineOf>> {
    let mut lines = BufReader::new(File::open(path)?.take(BYTES_MAX)).lines();
    if lines.next().transpose()?.as_deref() != Some(FIRST_LINE) {
        let reason = format!("it doesn't begin with `{FIRST_LINE}`: another version of tow has written it");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    let lines = lines.take(FOLLOWERS_KEPT_MAX);
    lines
        .map(|line| serde_json::from_str(&line?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error)))
        .collect()
}

fn write(directory: &Path, lines: &[LineOf]) -> io::Result<()> {
    let new = directory.join(NEW_NAME);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut file = BufWriter::new(file);
    writeln!(file, "{FIRST_LINE}")?;
    for line in lines {
        serde_json::to_writer(&mut file, line)?;
        file.write_all(b"\n")?;
    }
    file.into_inner()?.sync_all()?;
    std::fs::rename(&new, directory.join(NAME))
}

/// A tenant as text.
fn text_of(tenant: &Tenant) -> String {
    match tenant {
        Tenant::User(name) => format!("user {}", name.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        Tenant::Ipv4(address) => format!("ipv4 {address}"),
        Tenant::Ipv6(network) => format!("ipv6 {}", Ipv6Addr::from_bits(u128::from(*network) << 64)),
        Tenant::Ipc(Some(uid)) => format!("uid {uid}"),
        _ => "local".to_owned(),
    }
}

fn tenant_of(text: &str) -> Option<Tenant> {
    if text == "local" {
        return Some(Tenant::Ipc(None));
    }
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "user" => {
            let digits = rest.as_bytes().chunks(2);
            let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
            Some(Tenant::User(digits.map(byte).collect::<Option<Vec<u8>>>()?.into()))
        }
        "ipv4" => Some(Tenant::Ipv4(rest.parse::<Ipv4Addr>().ok()?)),
        "ipv6" => Some(Tenant::Ipv6((rest.parse::<Ipv6Addr>().ok()?.to_bits() >> 64) as u64)),
        "uid" => Some(Tenant::Ipc(Some(rest.parse().ok()?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{ErrorText, HolderError};
    use crate::protocol::follow::{CopyId, Epoch};
    use crate::relay::{Presence, Reporter};
    use towpath_sockets::PeerId;

    fn start(directory: &Path, holders: &Arc<Mutex<Holders>>) -> KeptFollowers {
        KeptFollowers::start(directory, Arc::clone(holders), |tenant| text_of(tenant).len() as u64, |_| true).unwrap()
    }

    #[test]
    fn followers_are_known_after_a_restart_and_gone_until_they_come_back() {
        let temp = tempfile::tempdir().unwrap();
        let (holders, now) = (Arc::<Mutex<Holders>>::default(), Instant::now());
        let kept = start(temp.path(), &holders);
        let tenants = [Tenant::User(b"a\xff b".to_vec().into()), Tenant::Ipv4([10, 0, 0, 7].into()), Tenant::Ipv6(7)];
        for (index, whose) in tenants.iter().enumerate() {
            let error = HolderError { text: ErrorText::near("no space left"), tries: 3, since_ms: 60_000 };
            let holder = Holder {
                copy: Some(CopyId([7; 16])),
                cursor: Some(Cursor { epoch: Epoch([1; 16]), seq: 9 }),
                error: Some(error),
                ..Holder::new(HolderName::new(&format!("db-{index}")).unwrap())
            };
            let tenant = text_of(whose).len() as u64;
            let reporter = Reporter { whose, tenant, user: None, peer: PeerId::new(1, 0), via: None };
            holders.lock().unwrap().note(reporter, holder, now);
        }
        drop(kept);
        let again = Arc::<Mutex<Holders>>::default();
        let kept = start(temp.path(), &again);
        let later = Instant::now() + Duration::from_secs(11);
        let shown: Vec<_> = again.lock().unwrap().known(later).map(|known| known.stats()).collect();
        let names: Vec<_> = shown.iter().map(|of| (of.name.as_str(), of.seq, of.presence)).collect();
        assert_eq!(names, ["db-0", "db-1", "db-2"].map(|name| (name, Some(9), Presence::Gone)));
        let error = shown[0].error.as_ref().unwrap();
        assert!(later.saturating_duration_since(error.since) >= Duration::from_secs(60), "{error:?}");
        // It is the same one that comes back.
        let whose = &tenants[1];
        let reporter =
            Reporter { whose, tenant: text_of(whose).len() as u64, user: None, peer: PeerId::new(1, 0), via: None };
        let name = HolderName::new("db-1").unwrap();
        let holder = Holder { copy: Some(CopyId([7; 16])), ..Holder::new(name) };
        again.lock().unwrap().note(reporter, holder, now);
        assert_eq!(again.lock().unwrap().count(), 3);
        drop(kept);
        // Another version of the file, or a damaged one.
        for text in ["towpath followers 2\n{}\n", "towpath followers 1\n{\"tenant\":1}\n", ""] {
            std::fs::write(temp.path().join(NAME), text).unwrap();
            let empty = Arc::<Mutex<Holders>>::default();
            drop(start(temp.path(), &empty));
            assert_eq!(empty.lock().unwrap().count(), 0, "{text}");
        }
    }

    #[test]
    fn tenants_have_a_text_each() {
        let tenants = [
            Tenant::User(b"ann".to_vec().into()),
            Tenant::User(Vec::new().into()),
            Tenant::Ipv4([127, 0, 0, 1].into()),
            Tenant::Ipv6(u64::MAX - 3),
            Tenant::Ipc(Some(1000)),
            Tenant::Ipc(None),
        ];
        for tenant in tenants {
            assert_eq!(tenant_of(&text_of(&tenant)), Some(tenant));
        }
        for wrong in ["", "user", "user xx", "user 4", "ipv4 1", "other 1"] {
            assert_eq!(tenant_of(wrong).filter(|_| wrong != "user 4"), None, "{wrong}");
        }
    }
}
