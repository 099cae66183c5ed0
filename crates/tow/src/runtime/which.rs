//! Whether a command can be executed, found out before it is needed.

use crate::cli::exit::Failure;
use std::ffi::OsStr;

/// Where commands are looked for if there is no PATH, as execvp(3) does.
const PATH_BY_DEFAULT: &str = "/bin:/usr/bin";

/// Refuses what can't be executed: a path that is no executable file, or a name that no folder of PATH has.
pub fn executable(program: &OsStr) -> Result<(), Failure> {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let why = if is_path { "it is not a file that can be executed" } else { "there is no such command in PATH" };
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
    fn what_can_be_executed_is_found_by_path_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (tool, text) = (folder.path().join("tool"), folder.path().join("text"));
        for (file, mode) in [(&tool, 0o755), (&text, 0o644)] {
            std::fs::write(file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        }
        for good in [OsStr::new("sh"), tool.as_os_str()] {
            assert!(executable(good).is_ok(), "{good:?}");
        }
        for (wrong, why) in [
            (text.as_os_str(), "not a file that can be executed"),
            (folder.path().as_os_str(), "not a file that can be executed"),
            (OsStr::new("no such command"), "in PATH"),
            (OsStr::new(""), "in PATH"),
        ] {
            let failure = executable(wrong).unwrap_err().to_string();
            assert!(failure.contains(why), "{wrong:?}: {failure}");
        }
    }
}
