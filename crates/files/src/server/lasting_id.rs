//! The lasting number of a server, beside its sequence numbers: followers know by it whose files their copy has.

use super::driver::ServeError;
use crate::protocol::follow::ServerId;
use crate::random::random;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "server-id";
const NEW_NAME: &str = "server-id.new";
/// Far more than a number has.
const BYTES_MAX: u64 = 256;

/// The number in the directory of the state, which is made if there is none; the one that was given, if there is one. An error if another one is kept.
pub(super) fn lasting_id(directory: &Path, given: Option<ServerId>) -> Result<ServerId, ServeError> {
    let failed = |reason: String| ServeError::State { path: directory.join(NAME), reason };
    let kept = match read(&directory.join(NAME)) {
        Ok(text) => Some(text.trim_end().parse::<ServerId>().map_err(|error| {
            failed(format!("{error}; put it back, or give the number that followers know by --server-id"))
        })),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error.to_string())),
    };
    match (kept, given) {
        (Some(Ok(kept)), None) => Ok(kept),
        (Some(Ok(kept)), Some(given)) if kept == given => Ok(kept),
        (Some(Ok(kept)), Some(given)) => Err(failed(format!(
            "followers know this server by the number in it, {kept}, and --server-id gives {given}: leave that out, or \
             remove the file, and their copies are another server's"
        ))),
        (Some(Err(error)), None) => Err(error),
        (_, given) => {
            let id = given.unwrap_or_else(|| ServerId(random()));
            write(directory, id).map_err(|error| failed(error.to_string()))?;
            Ok(id)
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn write(directory: &Path, id: ServerId) -> io::Result<()> {
    let new = directory.join(NEW_NAME);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    std::fs::rename(&new, directory.join(NAME))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_kept_and_replaced_only_if_it_was_removed_or_is_damaged() {
        let temp = tempfile::tempdir().unwrap();
        let first = lasting_id(temp.path(), None).unwrap();
        assert_eq!(lasting_id(temp.path(), None).unwrap(), first);
        let other = ServerId([7; 16]);
        let refused = lasting_id(temp.path(), Some(other)).unwrap_err().to_string();
        assert!(refused.contains(&format!("{first}, and --server-id gives {other}")), "{refused}");
        assert_eq!(lasting_id(temp.path(), Some(first)).unwrap(), first);
        std::fs::remove_file(temp.path().join(NAME)).unwrap();
        assert_eq!(lasting_id(temp.path(), Some(other)).unwrap(), other);
        assert_eq!(lasting_id(temp.path(), None).unwrap(), other);
        std::fs::write(temp.path().join(NAME), "half of it").unwrap();
        assert!(lasting_id(temp.path(), None).unwrap_err().to_string().contains("--server-id"));
        assert_eq!(lasting_id(temp.path(), Some(first)).unwrap(), first);
        assert_eq!(lasting_id(temp.path(), None).unwrap(), first);
    }
}
