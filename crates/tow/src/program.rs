//! Whether a command can be executed, found out before it is needed.

use crate::exit::Failure;
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where commands are looked for if the environment has no PATH, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Refuses what can't be executed: a path that is no executable file, or a name that no folder of PATH has.
pub fn executable(program: &OsStr) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    check(program, &path).map_err(|why| Failure::usage(format!("{}: {why}", program.display())))
}

fn check(program: &OsStr, path: &OsStr) -> Result<(), String> {
    if program.as_bytes().contains(&b'/') {
        return check_file(Path::new(program));
    }
    // A folder without a name is the current one.
    let found = |folder: &Path| check_file(&Path::new(".").join(folder).join(program)).is_ok();
    if !program.is_empty() && std::env::split_paths(path).any(|folder| found(&folder)) {
        return Ok(());
    }
    Err("there is no such command in PATH".to_owned())
}

fn check_file(path: &Path) -> Result<(), String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    access(path, Access::EXEC_OK).map_err(|errno| format!("it can't be executed: {}", std::io::Error::from(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_can_be_executed_are_found_by_path_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (tool, text) = (folder.path().join("tool"), folder.path().join("text"));
        for (file, mode) in [(&tool, 0o755), (&text, 0o644)] {
            std::fs::write(file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        for good in [OsStr::new("tool"), tool.as_os_str()] {
            assert_eq!(check(good, &path), Ok(()));
        }
        for wrong in [OsStr::new("text"), text.as_os_str(), folder.path().as_os_str(), OsStr::new("no"), OsStr::new("")]
        {
            assert!(check(wrong, &path).is_err(), "{wrong:?}");
        }
        assert!(check(OsStr::new("tool"), OsStr::new("/nowhere")).is_err());
    }
}
