//! Tokens of operators by name: a file of hashes, which is read again when it has changed; and tokens for `tow page`, in memory alone.

use super::operator::Operator;
use super::token::{OPERATOR, SCHEME, new_token};
use crate::cli::auth_args::{is_of_user, read_secret};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Name of the file.
pub const TOKENS_FILE: &str = "admin.tokens";

/// Version of its format.
const VERSION: u32 = 1;

/// Named tokens.
const TOKENS_MAX: usize = 100;

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// Tokens for `tow page` that are valid at a time. One more ends the oldest.
const PAGES_MAX: usize = 16;

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Head {
    tokens: u32,
}

/// A token without itself.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    read_only: bool,
    /// BLAKE3 of its characters, in base64 for URLs.
    hash: String,
    /// In seconds since 1970.
    since: u64,
}

/// Tokens of a server, beside the one in the file of `--admin-token-file`. Clones share them.
#[derive(Clone)]
pub struct Tokens(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    file: Option<PathBuf>,
    /// State of the file when it was read.
    seen: Option<Seen>,
    named: Vec<Entry>,
    pages: VecDeque<Entry>,
}

/// A file at one moment: inode, size, and when it was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(u64, u64, i64, i64);

/// Why a token can't be made or revoked, with an HTTP status.
pub type Refused = (u16, String);

impl Tokens {
    /// Those of a file, which need not be there.
    pub fn new(file: Option<PathBuf>) -> Tokens {
        Tokens(Arc::new(Mutex::new(State { file, ..State::default() })))
    }

    /// The state, with what the file has now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh();
        state
    }

    /// The operator whose token a header `Authorization` has.
    pub fn operator(&self, header: &[u8]) -> Option<Operator> {
        let (scheme, token) = header.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        let hash = hash_of(token.trim_ascii());
        let state = self.state();
        let is_it = |entry: &&Entry| bool::from(entry.hash.as_bytes().ct_eq(hash.as_bytes()));
        let found = state.named.iter().chain(&state.pages).find(is_it)?;
        Some(Operator::of_token(&found.name, found.read_only))
    }

    /// Makes a token. Returns it, and whether it is kept across a restart.
    pub fn make(&self, name: &str, read_only: bool) -> Result<(Zeroizing<String>, bool), Refused> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|one| one.is_ascii_alphanumeric() || b"._-@".contains(&one));
        if !is_name {
            return Err((400, format!("a name has 1 to {NAME_BYTES_MAX} letters, digits and ._-@")));
        }
        let mut state = self.state();
        if name == OPERATOR || state.named.iter().any(|entry| entry.name == name) {
            return Err((409, format!("there is a token of {name}; revoke it first, or use another name")));
        }
        if state.named.len() >= TOKENS_MAX {
            return Err((409, format!("there are {TOKENS_MAX} tokens; revoke some")));
        }
        let (token, entry) = made(name, read_only)?;
        state.named.push(entry);
        let kept = state.keep().inspect_err(|_| _ = state.named.pop())?;
        Ok((token, kept))
    }

    /// Makes a token for `tow page`, which is valid until the server ends, or many others were made.
    pub fn make_for_page(&self, name: &str, read_only: bool) -> Result<Zeroizing<String>, Refused> {
        let (token, entry) = made(name, read_only)?;
        let mut state = self.state();
        if state.pages.len() >= PAGES_MAX {
            state.pages.pop_front();
        }
        state.pages.push_back(entry);
        Ok(token)
    }

    /// Revokes a token. Returns whether that is kept across a restart.
    pub fn revoke(&self, name: &str) -> Result<bool, Refused> {
        let mut state = self.state();
        let Some(at) = state.named.iter().position(|entry| entry.name == name) else {
            return Err(match name {
                OPERATOR => (409, "its token is in a file: remove that, and restart the server".to_owned()),
                _ => (404, format!("there is no token of {name}")),
            });
        };
        let entry = state.named.remove(at);
        // It must not be valid again after a restart.
        state.keep().inspect_err(|_| state.named.push(entry))
    }

    /// All named ones.
    pub fn list(&self) -> Vec<Value> {
        let now = now();
        let entry = |entry: &Entry| {
            let age = now.saturating_sub(entry.since);
            json!({ "name": entry.name, "read_only": entry.read_only, "since": entry.since, "age_seconds": age })
        };
        self.state().named.iter().map(entry).collect()
    }
}

impl State {
    /// Reads the file if it has changed. One that can't be read has no tokens.
    fn refresh(&mut self) {
        let Some(file) = &self.file else { return };
        let there =
            std::fs::metadata(file).map(|there| Seen(there.ino(), there.len(), there.mtime(), there.mtime_nsec())).ok();
        if there == self.seen {
            return;
        }
        self.seen = there;
        self.named = match there.map(|_| read(file)) {
            Some(Ok(entries)) => entries,
            Some(Err(why)) => {
                tracing::error!(reason = why, file = %file.display(), "no token of this file is valid: correct it, or make others");
                Vec::new()
            }
            None => Vec::new(),
        };
    }

    /// Writes the file. False: there is none.
    fn keep(&mut self) -> Result<bool, Refused> {
        let Some(file) = &self.file else { return Ok(false) };
        let failed = |error: io::Error| (500, format!("{}: {error}", file.display()));
        write(file, &self.named).map_err(failed)?;
        self.seen =
            std::fs::metadata(file).map(|there| Seen(there.ino(), there.len(), there.mtime(), there.mtime_nsec())).ok();
        Ok(true)
    }
}

fn made(name: &str, read_only: bool) -> Result<(Zeroizing<String>, Entry), Refused> {
    let token = new_token().map_err(|error| (500, format!("no random bytes: {error}")))?;
    let entry = Entry { name: name.to_owned(), read_only, hash: hash_of(token.as_bytes()), since: now() };
    Ok((token, entry))
}

/// In seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hash_of(token: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(blake3::hash(token).as_bytes())
}

fn read(path: &Path) -> Result<Vec<Entry>, String> {
    let there = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if there.len() > FILE_BYTES_MAX {
        return Err(format!("it has over {FILE_BYTES_MAX} bytes"));
    }
    if !is_of_user(&there) {
        return Err(format!("it is another user's ({})", there.uid()));
    }
    parse(&read_secret("tokens", path).map_err(|failure| failure.to_string())?)
}

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut lines = text.lines();
    match lines.next().map(serde_json::from_str::<Head>) {
        Some(Ok(Head { tokens: VERSION })) if text.ends_with('\n') => {}
        Some(Ok(Head { tokens })) if tokens != VERSION => {
            return Err(format!("its version is {tokens}, and this tow knows version {VERSION}"));
        }
        _ => return Err(format!("it doesn't begin with {{\"tokens\":{VERSION}}}, or its last line has no end")),
    }
    let entry = |(number, line)| serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"));
    let entries: Vec<Entry> = (2..).zip(lines).map(entry).collect::<Result<_, _>>()?;
    match entries.len() > TOKENS_MAX {
        true => Err(format!("it has over {TOKENS_MAX} tokens")),
        false => Ok(entries),
    }
}

fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    let mut text = serde_json::to_string(&Head { tokens: VERSION })?;
    for entry in entries {
        text.push('\n');
        text.push_str(&serde_json::to_string(entry)?);
    }
    text.push('\n');
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    super::token::make_directory(directory)?;
    let mut file = tempfile::Builder::new().prefix(".admin").tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_from_when_it_is_made_until_it_is_revoked_at_every_server_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join(TOKENS_FILE);
        let [one, other] = [(), ()].map(|()| Tokens::new(Some(file.clone())));
        let (token, kept) = one.make("ann", true).unwrap();
        assert!(kept);
        let header = format!("bearer  {}", token.as_str());
        for tokens in [&one, &other] {
            assert_eq!(tokens.operator(header.as_bytes()), Some(Operator::of_token("ann", true)));
            assert_eq!(tokens.operator(format!("{header}x").as_bytes()), None);
            assert_eq!(tokens.operator(format!("Basic {}", token.as_str()).as_bytes()), None);
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(token.as_str()) && std::fs::metadata(&file).unwrap().mode() & 0o777 == 0o600);
        assert_eq!(other.make("ann", false).unwrap_err().0, 409);
        assert_eq!(other.make("operator", false).unwrap_err().0, 409);
        assert_eq!(other.make("a b", false).unwrap_err().0, 400);
        other.make("bob", false).unwrap();
        assert_eq!(one.list().len(), 2);
        assert_eq!((other.revoke("ann"), one.revoke("eve").unwrap_err().0), (Ok(true), 404));
        assert_eq!(one.operator(header.as_bytes()), None);
        std::fs::write(&file, "{\"tokens\":2}\n").unwrap();
        assert_eq!(one.list().len(), 0);
        for number in 0..TOKENS_MAX {
            one.make(&number.to_string(), false).unwrap();
        }
        assert_eq!(one.make("more", false).unwrap_err().0, 409);
    }

    #[test]
    fn tokens_for_the_page_are_in_memory_and_the_oldest_end() {
        let tokens = Tokens::new(None);
        let made: Vec<_> = (0..=PAGES_MAX).map(|_| tokens.make_for_page("ann (uid 1000)", false).unwrap()).collect();
        let is_valid = |token: &Zeroizing<String>| tokens.operator(format!("Bearer {}", token.as_str()).as_bytes());
        assert!(is_valid(&made[0]).is_none());
        assert_eq!(is_valid(&made[PAGES_MAX]).map(|operator| operator.name).as_deref(), Some("ann (uid 1000)"));
        assert_eq!(tokens.make("ann", false).map(|(_, kept)| kept), Ok(false));
    }
}
