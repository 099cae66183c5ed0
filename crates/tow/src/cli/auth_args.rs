//! PLAIN on the command line: who may connect, and as whom to.

use crate::cli::exit::Failure;
use std::collections::HashMap;
use std::path::Path;
use towpath_sockets::MechanismConfig;

/// The environment variable that a password is taken from: others could read the command line.
const PASSWORD: &str = "TOW_PASSWORD";

/// Users and their passwords.
pub struct Passwords(HashMap<Vec<u8>, Vec<u8>>);

impl Passwords {
    /// Reads a file of them, one USER:PASSWORD a line.
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
                return Err(named(&format!("line {} names a user for the second time", number + 1)));
            }
        }
        if passwords.is_empty() {
            return Err(named(&"there is no USER:PASSWORD in it, so nobody could come in"));
        }
        Ok(Passwords(passwords))
    }

    /// Whether a user has this password.
    pub fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.get(user).is_some_and(|expected| same_bytes(expected, password))
    }
}

/// Compares in a time that tells nothing of where the difference is.
fn same_bytes(expected: &[u8], given: &[u8]) -> bool {
    let difference = expected.iter().zip(given).fold(0, |difference, (one, other)| difference | (one ^ other));
    expected.len() == given.len() && difference == 0
}

/// The mechanism of somebody who connects, as this user if there is one.
pub fn mechanism_as(user: Option<&String>) -> Result<MechanismConfig, Failure> {
    let Some(user) = user else { return Ok(MechanismConfig::Null) };
    let password = std::env::var(PASSWORD)
        .map_err(|_| Failure::usage(format!("--user needs the password in the environment variable {PASSWORD}")))?;
    Ok(MechanismConfig::PlainClient { user: user.clone(), password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_read_and_compared_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# who may\nann:a:b\n\nbob:\n").unwrap();
        let passwords = Passwords::read(file.path()).unwrap();
        for (user, password, may) in [
            ("ann", "a:b", true),
            ("ann", "a:", false),
            ("ann", "a:B", false),
            ("ann", "", false),
            ("bob", "", true),
            ("# who may", "", false),
            ("eve", "", false),
        ] {
            assert_eq!(passwords.admit(user.as_bytes(), password.as_bytes()), may, "{user} {password}");
        }
        for (text, line) in [
            ("", "no USER:PASSWORD"),
            ("# ann:a\n", "nobody"),
            ("ann\n", "line 1"),
            ("ann:a\nbob:b\nann:c\n", "line 3"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let Err(failure) = Passwords::read(file.path()) else { panic!("it was read") };
            assert!(failure.to_string().contains(line), "{failure}");
        }
    }
}
