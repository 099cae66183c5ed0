//! Users and passwords of the PLAIN mechanism.

use crate::cli::exit::Failure;
use std::collections::HashMap;
use std::path::Path;
use subtle::ConstantTimeEq;
use towpath_sockets::{Credentials, MechanismConfig};

/// Environment variable with the password: other users can read the command line.
const PASSWORD: &str = "TOW_PASSWORD";

/// Passwords by user.
pub struct Passwords(HashMap<Vec<u8>, Vec<u8>>);

impl Passwords {
    /// Reads a file with one USER:PASSWORD a line.
    pub fn read(path: &Path) -> Result<Passwords, Failure> {
        let named =
            |error: &dyn std::fmt::Display| Failure::failed(format!("--plain-passwords {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
        let mut passwords = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((user, password)) = line.split_once(':') else {
                return Err(named(&format!("line {} is not USER:PASSWORD", number + 1)));
            };
            if passwords.insert(user.as_bytes().to_vec(), password.as_bytes().to_vec()).is_some() {
                return Err(named(&format!("line {} repeats a user", number + 1)));
            }
        }
        if passwords.is_empty() {
            return Err(named(&"no line is USER:PASSWORD, so no one would be admitted"));
        }
        Ok(Passwords(passwords))
    }

    /// Checks a user's password, in a time that does not tell where passwords differ.
    pub fn allow(&self, credentials: &Credentials) -> bool {
        let Credentials::Plain { user, password } = credentials else { return false };
        self.0.get(&user[..]).is_some_and(|expected| expected.ct_eq(password).into())
    }
}

/// Mechanism of a client, with the password from the environment if there is a user.
pub fn mechanism_as(user: Option<&String>) -> Result<MechanismConfig, Failure> {
    let Some(user) = user else { return Ok(MechanismConfig::Null) };
    let password = std::env::var(PASSWORD)
        .map_err(|_| Failure::usage(format!("--user needs a password: set the environment variable {PASSWORD}")))?;
    Ok(MechanismConfig::PlainClient { user: user.clone(), password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_compared_whole_and_bad_files_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# users\nann:a:b\n\nbob:\n").unwrap();
        let passwords = Passwords::read(file.path()).unwrap();
        for (user, password, may) in [
            ("ann", "a:b", true),
            ("ann", "a:", false),
            ("ann", "a:B", false),
            ("ann", "", false),
            ("bob", "", true),
            ("# users", "", false),
            ("eve", "", false),
        ] {
            let credentials = Credentials::Plain { user: user.into(), password: bytes::Bytes::from(password).into() };
            assert_eq!(passwords.allow(&credentials), may, "{credentials:?}");
        }
        for (text, line) in [
            ("", "no line is USER:PASSWORD"),
            ("# ann:a\n", "no one"),
            ("ann\n", "line 1"),
            ("ann:a\nbob:b\nann:c\n", "line 3"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let Err(failure) = Passwords::read(file.path()) else { panic!("it was read") };
            assert!(failure.to_string().contains(line), "{failure}");
        }
    }
}
