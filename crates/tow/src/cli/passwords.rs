//! Files of users and passwords, hashed by Argon2 or in the clear.

use crate::cli::auth_args::read_secret;
use crate::cli::exit::Failure;
use argon2::password_hash::{PasswordHash, PasswordHashString, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use subtle::ConstantTimeEq;
use towpath_files::counted_are;
use towpath_sockets::{Credentials, Principal, system_random};
use zeroize::Zeroizing;

/// Maximum memory and passes that a hash may ask for at each login.
const MEMORY_KIB_MAX: u32 = 64 * 1024;
const PASSES_MAX: u32 = 16;

/// Bytes of a new hash's salt.
const SALT_BYTES: usize = 16;

/// Maximum bytes of a user's name or a password in ZMTP.
const FIELD_BYTES_MAX: usize = 255;

/// The stored side of a password check.
enum Proof {
    Clear(Zeroizing<Vec<u8>>),
    Hashed(PasswordHashString),
}

impl Proof {
    fn is_same(&self, other: &Proof) -> bool {
        match (self, other) {
            (Proof::Clear(one), Proof::Clear(other)) => one == other,
            (Proof::Hashed(one), Proof::Hashed(other)) => one.as_str() == other.as_str(),
            _ => false,
        }
    }
}

/// Passwords by user.
pub struct Passwords {
    users: HashMap<Vec<u8>, Proof>,
    /// A hash that unknown users are compared with, so that the time doesn't reveal which ones exist.
    decoy: Option<PasswordHashString>,
    /// Lines whose password is in the clear.
    clear_lines: Vec<usize>,
}

impl Passwords {
    /// Reads a file with one USER:PASSWORD or USER:HASH a line.
    pub fn read(path: &Path) -> Result<Passwords, Failure> {
        let named = |error: String| Failure::failed(format!("--plain-passwords {}: {error}", path.display()));
        let passwords = Passwords::parse(&read_secret("--plain-passwords", path)?).map_err(named)?;
        if let Some(first) = passwords.clear_lines.first() {
            let count = passwords.clear_lines.len();
            tracing::warn!(
                "--plain-passwords {}: {} not hashed, the first in line {first}; `tow password USER` makes a line to replace each",
                path.display(),
                counted_are(count as u64, "password")
            );
        }
        Ok(passwords)
    }

    fn parse(text: &str) -> Result<Passwords, String> {
        let mut passwords = Passwords { users: HashMap::new(), decoy: None, clear_lines: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((user, password)) = line.split_once(':') else {
                return Err(format!("line {number} is not USER:PASSWORD"));
            };
            let proof = if password.starts_with("$argon2") {
                let hash = parse_hash(password).map_err(|why| format!("line {number}: {why}"))?;
                passwords.decoy.get_or_insert_with(|| hash.clone());
                Proof::Hashed(hash)
            } else {
                passwords.clear_lines.push(number);
                Proof::Clear(password.as_bytes().to_vec().into())
            };
            if passwords.users.insert(user.as_bytes().to_vec(), proof).is_some() {
                return Err(format!("line {number} repeats a user"));
            }
        }
        match passwords.users.is_empty() {
            true => Err("no line is USER:PASSWORD, so no one would be admitted".to_owned()),
            false => Ok(passwords),
        }
    }

    /// Whether there is a user of this name.
    pub fn has(&self, user: &[u8]) -> bool {
        self.users.contains_key(user)
    }

    /// Users who have another password there, or none.
    pub fn changed_in(&self, other: &Passwords) -> HashSet<Vec<u8>> {
        let is_same = |user: &Vec<u8>, proof: &Proof| other.users.get(user).is_some_and(|there| proof.is_same(there));
        let changed = self.users.iter().filter(|(user, proof)| !is_same(user, proof));
        changed.map(|(user, _)| user.clone()).collect()
    }

    /// Checks a user's password, in a time that does not reveal where passwords differ.
    pub fn identify(&self, credentials: &Credentials) -> Option<Principal> {
        let Credentials::Plain { user, password } = credentials else { return None };
        let matches = match self.users.get(&user[..]) {
            Some(Proof::Clear(expected)) => bool::from(expected.ct_eq(password)),
            Some(Proof::Hashed(hash)) => verify(password, hash),
            None => {
                self.decoy.iter().for_each(|hash| _ = verify(password, hash));
                false
            }
        };
        matches.then(|| credentials.principal())
    }
}

fn verify(password: &[u8], hash: &PasswordHashString) -> bool {
    Argon2::default().verify_password(password, &hash.password_hash()).is_ok()
}

/// Parses a hash whose price at each login is bounded.
fn parse_hash(text: &str) -> Result<PasswordHashString, String> {
    let why = |error: argon2::password_hash::Error| format!("not a hash of Argon2: {error}");
    let hash = PasswordHash::new(text).map_err(why)?;
    Algorithm::try_from(hash.algorithm).map_err(why)?;
    let params = Params::try_from(&hash).map_err(why)?;
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err("a hash of Argon2 without salt or without its end".to_owned());
    }
    if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX {
        return Err(format!("its hash takes over {MEMORY_KIB_MAX} KiB (m) or {PASSES_MAX} passes (t) at each login"));
    }
    Ok(hash.serialize())
}

/// A line of a file of passwords, with the password hashed: Argon2id, 19 MiB, two passes.
pub fn hashed_line(user: &str, password: &str) -> Result<String, Failure> {
    if user.is_empty() || user.starts_with('#') || user.contains([':', '\n', '\r']) || user.len() > FIELD_BYTES_MAX {
        return Err(Failure::usage("a user's name has 1 to 255 bytes, no colon, and no # at its beginning"));
    }
    if password.is_empty() || password.len() > FIELD_BYTES_MAX {
        return Err(Failure::usage("a password has 1 to 255 bytes"));
    }
    let mut salt = [0; SALT_BYTES];
    system_random().fill(&mut salt).map_err(Failure::failed)?;
    let salt = SaltString::encode_b64(&salt).map_err(Failure::failed)?;
    let hash = Argon2::default().hash_password(password.as_bytes(), &salt).map_err(Failure::failed)?;
    Ok(format!("{user}:{hash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(passwords: &Passwords, user: &'static str, password: &'static str) -> bool {
        let credentials = Credentials::Plain { user: user.into(), password: bytes::Bytes::from(password).into() };
        passwords.identify(&credentials).is_some()
    }

    #[test]
    fn passwords_are_compared_whole_and_bad_files_refused() {
        let passwords = Passwords::parse("# users\nann:a:b\n\nbob:\n").unwrap();
        for (user, password, expected) in [
            ("ann", "a:b", true),
            ("ann", "a:", false),
            ("ann", "a:B", false),
            ("ann", "", false),
            ("bob", "", true),
            ("# users", "", false),
            ("eve", "", false),
        ] {
            assert_eq!(may(&passwords, user, password), expected, "{user}:{password}");
        }
        assert_eq!(passwords.clear_lines, [2, 4]);
        for (text, line) in [
            ("", "no line is USER:PASSWORD"),
            ("# ann:a\n", "no one"),
            ("ann\n", "line 1"),
            ("ann:a\nbob:b\nann:c\n", "line 3"),
            ("ann:$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ\n", "without its end"),
            ("ann:$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHQ$ZGlnZXN0ZGlnZXN0\n", "takes over"),
            ("ann:$argon2x$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$ZGlnZXN0ZGlnZXN0\n", "line 1: not a hash"),
            ("ann:$argon2id$\n", "line 1: not a hash"),
        ] {
            let Err(failure) = Passwords::parse(text) else { panic!("it was read") };
            assert!(failure.contains(line), "{failure}");
        }
    }

    #[test]
    fn hashed_passwords_are_those_of_the_reference_and_of_our_lines() {
        // Made by argon2-cffi, which is the reference implementation.
        let reference =
            "ann:$argon2id$v=19$m=1024,t=1,p=1$xvVqH8rMTCAWq35btVGGCw$Chenc1N92lFaTUHtnsH2NrUxbgCtvEasVDq47mvmovE";
        let ours = hashed_line("bob", "pass:word").unwrap();
        assert!(ours.starts_with("bob:$argon2id$v=19$m=19456,t=2,p=1$"), "{ours}");
        assert_ne!(ours, hashed_line("bob", "pass:word").unwrap(), "the salt is random");
        let passwords = Passwords::parse(&format!("{reference}\n{ours}\n")).unwrap();
        assert!(passwords.clear_lines.is_empty());
        for (user, password, expected) in [
            ("ann", "lovelace", true),
            ("ann", "Lovelace", false),
            ("bob", "pass:word", true),
            ("bob", "", false),
            ("eve", "lovelace", false),
        ] {
            assert_eq!(may(&passwords, user, password), expected, "{user}:{password}");
        }
        for (user, password) in [("", "a"), ("a:b", "a"), ("#a", "a"), ("a\nb", "a"), ("a", "")] {
            assert!(hashed_line(user, password).is_err(), "{user:?}");
        }
    }
}
