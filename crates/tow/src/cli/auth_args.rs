//! Users and passwords of the PLAIN mechanism.

use crate::cli::exit::Failure;
use crate::cli::secrets;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use towpath_sockets::MechanismConfig;

/// Environment variable with the password: other users can read the command line. No child process gets it.
pub const PASSWORD: &str = "TOW_PASSWORD";

/// Reads a file of passwords or a token that was named by an option. One that others can read is refused, since they may have.
pub fn read_secret(option: &str, path: &Path) -> Result<String, Failure> {
    secrets::protect();
    let named = |error: &dyn std::fmt::Display| Failure::failed(format!("{option} {}: {error}", path.display()));
    let mut file = File::open(path).map_err(|error| named(&error))?;
    let metadata = file.metadata().map_err(|error| named(&error))?;
    if is_exposed(&metadata) {
        let (mode, path) = (metadata.permissions().mode() & 0o7777, path.display());
        return Err(named(&format!(
            "others have access to it (mode {mode:04o}); chmod 600 {path}, and change the secrets in it"
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

/// Whether nobody but this user and root can write to a file or directory.
pub fn is_own(file: &Metadata) -> bool {
    is_of_user(file) && file.permissions().mode() & 0o022 == 0
}

/// Whether a file is this user's or root's.
pub fn is_of_user(file: &Metadata) -> bool {
    file.uid() == 0 || file.uid() == rustix::process::geteuid().as_raw()
}

/// Mechanism of a client. If there is a user, its password is the first line of a file, or else in the environment.
pub fn mechanism_as(user: Option<&String>, password_file: Option<&Path>) -> Result<MechanismConfig, Failure> {
    let Some(user) = user else { return Ok(MechanismConfig::Null) };
    secrets::protect();
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
    use crate::cli::passwords::Passwords;

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
