//! Users and passwords of the PLAIN mechanism.

use crate::cli::exit::Failure;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use subtle::ConstantTimeEq;
use towpath_sockets::{Credentials, MechanismConfig, Principal};

/// Environment variable with the password: other users can read the command line. No child process gets it.
pub const PASSWORD: &str = "TOW_PASSWORD";

/// Reads a file of passwords that was named by an option. One that others can read is refused, since they may have.
fn read_secret(option: &str, path: &Path) -> Result<String, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::failed(format!("{option} {}: {error}", path.display()));
    let mut file = File::open(path).map_err(|error| named(&error))?;
    let metadata = file.metadata().map_err(|error| named(&error))?;
    if is_exposed(&metadata) {
        let (mode, path) = (metadata.permissions().mode() & 0o7777, path.display());
        return Err(named(&format!(
            "others have access to it (mode {mode:04o}); chmod 600 {path}, and change its passwords"
        )));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| named(&error))?;
    Ok(text)
}

/// True for a file that others may read or write. The group may read a file of root's: so it is that services are given secrets.
pub fn is_exposed(file: &Metadata) -> bool {
    let allowed = if file.uid() == 0 { 0o740 } else { 0o700 };
    file.is_file() && file.permissions().mode() & 0o777 & !allowed != 0
}

/// Passwords by user.
pub struct Passwords(HashMap<Vec<u8>, Vec<u8>>);

impl Passwords {
    /// Reads a file with one USER:PASSWORD a line.
    pub fn read(path: &Path) -> Result<Passwords, Failure> {
        let named =
            |error: &dyn std::fmt::Display| Failure::failed(format!("--plain-passwords {}: {error}", path.display()));
        let text = read_secret("--plain-passwords", path)?;
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
    pub fn identify(&self, credentials: &Credentials) -> Option<Principal> {
        let Credentials::Plain { user, password } = credentials else { return None };
        let expected = self.0.get(&user[..])?;
        bool::from(expected.ct_eq(password)).then(|| credentials.principal())
    }
}

/// Mechanism of a client. If there is a user, its password is the first line of a file, or else in the environment.
pub fn mechanism_as(user: Option<&String>, password_file: Option<&Path>) -> Result<MechanismConfig, Failure> {
    let Some(user) = user else { return Ok(MechanismConfig::Null) };
    let password = match password_file {
        Some(path) => read_secret("--password-file", path)?.lines().next().unwrap_or_default().to_owned(),
        None => std::env::var(PASSWORD).map_err(|_| {
            Failure::usage(format!("--user needs a password: use --password-file, or set the variable {PASSWORD}"))
        })?,
    };
    Ok(MechanismConfig::PlainClient { user: user.clone(), password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_compared_whole_and_bad_files_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_exposed(&file.as_file().metadata().unwrap()));
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
            assert_eq!(passwords.identify(&credentials).is_some(), may, "{credentials:?}");
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

    #[test]
    fn files_of_passwords_that_others_can_read_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\nmore\n").unwrap();
        let path = file.path().display().to_string();
        for (mode, cure) in [(0o644, "chmod 600"), (0o602, "chmod 600"), (0o660, "chmod 600"), (0o600, ""), (0o400, "")]
        {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let read = mechanism_as(Some(&"ann".to_owned()), Some(file.path()));
            match read {
                Ok(MechanismConfig::PlainClient { password, .. }) => assert_eq!((&*password, cure), ("secret", "")),
                Ok(other) => panic!("{other:?}"),
                Err(failure) => {
                    let failure = failure.to_string();
                    assert!(!cure.is_empty() && failure.contains(&format!("{cure} {path}")), "{mode:o}: {failure}");
                    assert!(Passwords::read(file.path()).is_err());
                }
            }
        }
    }
}
