//! Lookup of a command, to refuse a missing one at the start.

use crate::cli::exit::Failure;
use std::ffi::OsStr;

/// Search path without a PATH, as in execvp(3).
const PATH_BY_DEFAULT: &str = "/bin:/usr/bin";

/// Refuses a path that is no executable file, or a name that isn't in PATH.
pub fn check_executable(program: &OsStr) -> Result<(), Failure> {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let why = if is_path { "not an executable file" } else { "no such command in PATH" };
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_BY_DEFAULT.into());
    let folder = std::env::current_dir().unwrap_or_default();
    which::which_in(program, Some(path), folder)
        .map(drop)
        .map_err(|_| Failure::usage(format!("{}: {why}", program.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn executables_are_found_by_path_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (tool, text) = (folder.path().join("tool"), folder.path().join("text"));
        for (file, mode) in [(&tool, 0o755), (&text, 0o644)] {
            std::fs::write(file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        }
        for good in [OsStr::new("sh"), tool.as_os_str()] {
            assert!(check_executable(good).is_ok(), "{good:?}");
        }
        for (wrong, why) in [
            (text.as_os_str(), "not an executable file"),
            (folder.path().as_os_str(), "not an executable file"),
            (OsStr::new("no such command"), "in PATH"),
            (OsStr::new(""), "in PATH"),
        ] {
            let failure = check_executable(wrong).unwrap_err().to_string();
            assert!(failure.contains(why), "{wrong:?}: {failure}");
        }
    }
}
