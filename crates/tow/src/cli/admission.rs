//! Admission: keys, users and rules from files, which are read again when they change.

use crate::cli::audit::Audit;
use crate::cli::authorized_keys::AuthorizedKeys;
use crate::cli::exit::Failure;
use crate::cli::passwords::Passwords;
use std::collections::HashSet;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use towpath_rules::{Permissions, Rules};
use towpath_sockets::{Address, Authenticator, Credentials, Principal};

/// The files of keys, users and rules.
#[derive(Clone, Default)]
pub struct Sources {
    /// `--rules`
    pub rules: Option<PathBuf>,
    /// `--authorized-keys`
    pub authorized_keys: Option<PathBuf>,
    /// `--plain-passwords`
    pub passwords: Option<PathBuf>,
    /// `--anyone`
    pub anyone: bool,
}

/// Decides about peers. Shared by the server, which asks, and the thread that looks at the files.
pub struct Admission {
    sources: Sources,
    state: RwLock<Arc<State>>,
    /// Users who have another password since the last time, or none: they have to log in again.
    revoked: RwLock<HashSet<Vec<u8>>>,
    audit: Option<Audit>,
    /// [`Sources::fingerprint`] of what was read first.
    first: u64,
}

/// Content of the files when they were last read.
struct State {
    rules: Option<Rules>,
    keys: Option<AuthorizedKeys>,
    passwords: Option<Passwords>,
}

impl Sources {
    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.rules, &self.authorized_keys, &self.passwords].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Whether there is anything that may change.
    pub fn has_files(&self) -> bool {
        self.files().next().is_some()
    }

    /// A number for what the files have now, and whose they are: passwords that others can read are refused.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for file in self.files() {
            std::fs::read(file).map_err(|error| error.to_string()).hash(&mut hasher);
            std::fs::metadata(file).map(|file| (file.mode(), file.uid())).ok().hash(&mut hasher);
        }
        hasher.finish()
    }

    /// An error if a file is empty or its last line isn't ended: it is just being written, or was cut off. What is left of it could be valid, and
    /// lack the lines that deny.
    fn check_whole(&self) -> Result<(), Failure> {
        for file in self.files() {
            let named = |why: &dyn Display| Failure::failed(format!("{}: {why}", file.display()));
            if !std::fs::read(file).map_err(|error| named(&error))?.ends_with(b"\n") {
                return Err(named(&"it is empty, or its last line has no end: is it complete? A newline ends it"));
            }
        }
        Ok(())
    }

    fn read(&self) -> Result<State, Failure> {
        Ok(State {
            rules: self.rules.as_deref().map(read_rules).transpose()?,
            keys: self.authorized_keys.as_deref().map(AuthorizedKeys::read).transpose()?,
            passwords: self.passwords.as_deref().map(Passwords::read).transpose()?,
        })
    }
}

/// Reads a file of rules. All lines that are wrong are named.
pub fn read_rules(path: &Path) -> Result<Rules, Failure> {
    let path_of = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::failed(format!("cannot read the rules in {path_of}: {error}")))?;
    Rules::parse(&text).map_err(|error| {
        let lines: Vec<_> = error.0.iter().map(|error| format!("{path_of}: {error}")).collect();
        Failure::failed(lines.join("\n"))
    })
}

impl Admission {
    /// Reads the files.
    pub fn new(sources: Sources, audit: Option<Audit>) -> Result<Admission, Failure> {
        let state = sources.read()?;
        let first = sources.fingerprint();
        let has_keys = state.rules.as_ref().is_some_and(|rules| rules.keys() > 0) || state.keys.is_some();
        if sources.passwords.is_none() && !sources.anyone && !has_keys && sources.rules.is_some() {
            tracing::warn!("the rules have no line `key NAME KEY`, so nobody has a name");
        }
        Ok(Admission { sources, state: RwLock::new(Arc::new(state)), revoked: RwLock::default(), audit, first })
    }

    /// Whether the rules have keys.
    pub fn has_keys(&self) -> bool {
        self.state().rules.as_ref().is_some_and(|rules| rules.keys() > 0)
    }

    /// The files of keys and users.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// [`Sources::fingerprint`] of what was read first.
    pub fn first_fingerprint(&self) -> u64 {
        self.first
    }

    /// The audit file.
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again. With an error everything stays as it was. [`Admission::judged`] is to be called when all peers have been judged
    /// again.
    pub fn reload(&self) -> Result<(), Failure> {
        self.sources.check_whole()?;
        let state = self.sources.read()?;
        if let (Some(before), Some(now)) = (&self.state().passwords, &state.passwords) {
            *self.revoked.write().unwrap_or_else(PoisonError::into_inner) = before.changed_in(now);
        }
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        Ok(())
    }

    /// Makes users with another password log in again.
    pub fn judged(&self) {
        self.revoked.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The decision for a server.
    pub fn authenticator(self: &Arc<Self>) -> Authenticator {
        let (deciding, permitting) = (Arc::clone(self), Arc::clone(self));
        let decide = move |credentials: &Credentials| deciding.identify(credentials);
        // Passwords may be hashed, now or later.
        let authenticator = match self.sources.passwords {
            Some(_) => Authenticator::slow(decide),
            None => Authenticator::new(decide),
        };
        let authenticator = match self.audit.clone() {
            Some(audit) => authenticator.on_refusal(move |claimed, address| audit.login_refused(claimed, address)),
            None => authenticator,
        };
        authenticator.permitting(move |principal, address, is_new| permitting.permissions(principal, address, is_new))
    }

    fn identify(&self, credentials: &Credentials) -> Option<Principal> {
        let state = self.state();
        match credentials {
            Credentials::Curve { key } => {
                let named = state.rules.as_ref().and_then(|rules| rules.name_of(key));
                let named = named.or_else(|| state.keys.as_ref()?.name_of(key));
                match named {
                    Some(name) => Some(Principal::Key { key: *key, name: name.to_owned().into() }),
                    None if self.sources.anyone => Some(credentials.principal()),
                    None => None,
                }
            }
            other => state.passwords.as_ref()?.identify(other),
        }
    }

    fn permissions(&self, principal: &Principal, address: &Address, is_new: bool) -> Option<Permissions> {
        let state = self.state();
        let (name, is_admitted) = match principal {
            Principal::User(user) => {
                let is_known = state.passwords.as_ref().is_some_and(|passwords| passwords.has(user));
                let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
                (Some(user), is_known && !revoked.contains(&user[..]))
            }
            Principal::Key { key, name } => {
                let is_same = self.identify(&Credentials::Curve { key: *key }).as_ref() == Some(principal);
                (Some(name).filter(|name| !name.is_empty()), is_same)
            }
            _ => (None, true),
        };
        match &self.audit {
            Some(audit) if !is_admitted => audit.revoked(principal, address),
            Some(audit) if is_new => audit.login(principal, address),
            _ => {}
        }
        if !is_admitted {
            return None;
        }
        let Some(rules) = &state.rules else { return Some(Permissions::unrestricted()) };
        let permissions = rules.permissions(name.map(|name| &name[..]), address.origin());
        let Some(audit) = self.audit.clone() else { return Some(permissions) };
        let (principal, address) = (principal.clone(), address.clone());
        Some(
            permissions.on_refusal(move |verb, subject, line| audit.refused(&principal, &address, verb, subject, line)),
        )
    }
}
