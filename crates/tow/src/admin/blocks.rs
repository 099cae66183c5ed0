//! Peers that the operator has blocked: in memory, and in a file (docs/formats/blocked.md) if there is a directory for state.

use super::args::is_below;
use super::place;
use crate::cli::exit::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use towpath_rules::{BLOCKS_MAX, Block, Blocklist, Who};
use towpath_sockets::{Address, Gate, Page, Principal};

/// Name of the file.
const FILE: &str = "blocked";

/// Version of its format.
const VERSION: u32 = 1;

/// Bytes of the file: more than all blocks can have.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Head {
    blocked: u32,
}

/// Another line of it.
#[derive(Serialize, Deserialize)]
struct Line {
    who: String,
    since: u64,
    until: Option<u64>,
    by: String,
    reason: String,
}

/// Blocks of a server. Clones share them.
#[derive(Clone)]
pub struct Blocks(Arc<Shared>);

struct Shared {
    /// The event loop looks into it for each connection, so it is never held across a write.
    list: Mutex<Blocklist>,
    file: Option<PathBuf>,
    /// One writes at a time, and what it writes isn't older than what was written before.
    writing: Mutex<()>,
}

impl Blocks {
    /// Reads those that are kept in a directory: this one, or else systemd's for the service, unless clients could fetch them there.
    ///
    /// # Errors
    /// The file can't be read, or has another format: peers that were blocked must not come in for that.
    pub fn open(state: Option<&Path>, served: Option<&Path>) -> Result<Blocks, Failure> {
        let is_served = |directory: &PathBuf| served.is_some_and(|served| is_below(directory, served));
        let directory = state.map(Path::to_owned).or_else(place::state_directory).filter(|place| !is_served(place));
        let file = directory.map(|directory| directory.join(FILE));
        let list = match &file {
            Some(file) => read(file).map_err(|why| {
                let remove = "correct it, or remove it and block them again";
                Failure::failed(format!("{}: the blocked peers can't be read: {why}; {remove}", file.display()))
            })?,
            None => Blocklist::default(),
        };
        Ok(Blocks(Arc::new(Shared { list: Mutex::new(list), file, writing: Mutex::default() })))
    }

    /// None, and nothing is kept.
    #[cfg(test)]
    pub fn none() -> Blocks {
        Blocks(Arc::new(Shared { list: Mutex::default(), file: None, writing: Mutex::default() }))
    }

    /// The file that keeps them across restarts.
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    fn list(&self) -> MutexGuard<'_, Blocklist> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decision for the server.
    pub fn gate(&self) -> Gate {
        let blocks = self.clone();
        Gate::new(move |principal, address, is_new| blocks.keeps_out(principal, address, is_new))
    }

    fn keeps_out(&self, principal: &Principal, address: &Address, is_new: bool) -> Option<String> {
        let (ip, uid): (Option<IpAddr>, _) = match address {
            Address::Tcp(address) => (Some(address.ip()), None),
            Address::Ipc { uid, .. } => (None, *uid),
            _ => (None, None),
        };
        let now = now();
        let mut list = self.list();
        let block = list.find(principal, ip, uid, now)?;
        if is_new {
            block.refused += 1;
            block.last_refused = Some(now);
        }
        Some(block.reason.clone())
    }

    /// Blocks a peer, from now on. Returns when that ends, and whether it is kept across a restart.
    pub fn block(
        &self,
        who: Who,
        time: Option<Duration>,
        by: &str,
        reason: &str,
    ) -> Result<(Option<u64>, bool), String> {
        let since = now();
        let until = time.map(|time| since.saturating_add(time.as_secs().max(1)));
        let block = Block { since, until, by: by.to_owned(), reason: reason.to_owned(), ..Block::default() };
        {
            let mut list = self.list();
            list.sweep(since);
            if !list.insert(who, block) {
                return Err(format!("{BLOCKS_MAX} are blocked already; block a network instead, or unblock some"));
            }
        }
        Ok((until, self.keep()))
    }

    /// Ends a block. Returns whether that is kept across a restart; `None`: there was no block of this one.
    pub fn unblock(&self, who: &Who) -> Option<bool> {
        self.list().sweep(now());
        self.list().remove(who)?;
        Some(self.keep())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let now = now();
        self.list().iter().filter(|(_, block)| block.until.is_none_or(|until| until > now)).count()
    }

    /// A page of them, the latest first.
    pub fn page(&self, from: u32) -> Page<Value> {
        let now = now();
        self.list().sweep(now);
        let mut blocks: Vec<_> =
            self.list().iter().map(|(who, block)| (block.since, who.clone(), block.clone())).collect();
        blocks.sort_by(|(a_since, a, _), (b_since, b, _)| (b_since, a).cmp(&(a_since, b)));
        let entry = |(_, who, block): &(u64, Who, Block)| {
            json!({
                "who": who.to_string(),
                "since": block.since,
                "until": block.until,
                "left_seconds": block.until.map(|until| until.saturating_sub(now)),
                "by": block.by,
                "reason": block.reason,
                "refused": block.refused,
                "refused_seconds": block.last_refused.map(|last| now.saturating_sub(last)),
            })
        };
        let numbered = blocks.iter().enumerate().skip(from as usize);
        Page::of(numbered.map(|(number, block)| (number as u32, Some(entry(block)))))
    }

    /// Writes the file, and says whether that is done. Blocks are in force even if it can't be written.
    fn keep(&self) -> bool {
        let Some(file) = &self.0.file else { return false };
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines: Vec<_> = self.list().iter().map(|(who, block)| line(who, block)).collect();
        lines.sort_by(|a, b| (a.since, &a.who).cmp(&(b.since, &b.who)));
        match write(file, &lines) {
            Ok(()) => true,
            Err(error) => {
                let file = file.display();
                tracing::error!(%error, %file, "the file of blocked peers can't be written: a restart forgets the last change");
                false
            }
        }
    }
}

fn line(who: &Who, block: &Block) -> Line {
    let Block { since, until, by, reason, .. } = block.clone();
    Line { who: who.to_string(), since, until, by, reason }
}

fn write(path: &Path, lines: &[Line]) -> io::Result<()> {
    let mut text = serde_json::to_string(&Head { blocked: VERSION })?;
    for line in lines {
        text.push('\n');
        text.push_str(&serde_json::to_string(line)?);
    }
    text.push('\n');
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".blocked").tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    File::open(directory)?.sync_all()
}

fn read(path: &Path) -> Result<Blocklist, String> {
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => {
            file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Blocklist::default()),
        Err(error) => return Err(error.to_string()),
    }
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has over {FILE_BYTES_MAX} bytes"));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<Blocklist, String> {
    let mut lines = text.lines();
    match lines.next().map(serde_json::from_str::<Head>) {
        Some(Ok(Head { blocked: VERSION })) => {}
        Some(Ok(Head { blocked })) => {
            return Err(format!("its version is {blocked}, and this tow knows version {VERSION}"));
        }
        _ => return Err(format!("its first line is not {{\"blocked\":{VERSION}}}")),
    }
    if !text.ends_with('\n') {
        return Err("its last line has no end".to_owned());
    }
    let mut list = Blocklist::default();
    for (number, line) in (2..).zip(lines) {
        let named = |why: &dyn std::fmt::Display| format!("line {number}: {why}");
        let Line { who, since, until, by, reason } = serde_json::from_str(line).map_err(|error| named(&error))?;
        let who = who.parse().map_err(|error: String| named(&error))?;
        if !list.insert(who, Block { since, until, by, reason, ..Block::default() }) {
            return Err(named(&format!("there are more than {BLOCKS_MAX}")));
        }
    }
    list.sweep(now());
    Ok(list)
}

/// In seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_kept_in_a_file_and_a_bad_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let blocks = Blocks::open(Some(folder.path()), None).unwrap();
        assert_eq!(blocks.block("10.0.0.0/8".parse().unwrap(), None, "ann", "a \"b\"\n"), Ok((None, true)));
        let ends = blocks.block("user:3.0".parse().unwrap(), Some(Duration::from_secs(100)), "ann", "").unwrap();
        assert!(ends.0.is_some_and(|until| until > now()) && ends.1);
        let address = Address::Tcp("10.1.2.3:4".parse().unwrap());
        assert_eq!(blocks.keeps_out(&Principal::Anonymous, &address, true).as_deref(), Some("a \"b\"\n"));
        assert_eq!(blocks.page(0).entries.iter().map(|(_, block)| block["refused"].as_u64().unwrap()).sum::<u64>(), 1);

        let again = Blocks::open(Some(folder.path()), None).unwrap();
        assert_eq!(again.count(), 2);
        assert!(again.keeps_out(&Principal::User("3.0".into()), &Address::Inproc, false).is_some());
        assert_eq!(again.unblock(&"10.0.0.0/8".parse().unwrap()), Some(true));
        assert_eq!(again.unblock(&"10.0.0.0/8".parse().unwrap()), None);
        assert!(again.keeps_out(&Principal::Anonymous, &address, true).is_none());

        for (text, why) in [
            ("", "first line"),
            ("{\"blocked\":2}\n", "version is 2"),
            ("{\"blocked\":1}\n{\"who\":\"ann\",", "no end"),
            ("{\"blocked\":1}\nann\n", "line 2"),
            (
                "{\"blocked\":1}\n{\"who\":\"::/0\",\"since\":1,\"until\":null,\"by\":\"\",\"reason\":\"\"}\n",
                "everybody",
            ),
        ] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let failure = Blocks::open(Some(folder.path()), None).err().map(|failure| failure.to_string());
            assert!(failure.as_ref().is_some_and(|failure| failure.contains(why)), "{text}: {failure:?}");
        }
    }
}
