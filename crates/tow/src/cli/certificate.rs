//! Key files of CURVE: certificates as czmq and pyzmq write and read them.
//!
//! A key has two files: `NAME` with the public key, and `NAME_secret` with both.

use crate::cli::auth_args::is_exposed;
use crate::cli::escape::Line;
use crate::cli::secrets;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use towpath_sockets::{KeyError, PublicKey, SecretKey};
use zeroize::Zeroizing;

/// Maximum bytes of a file that is taken for a certificate.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Appended to the name of a public file.
const SECRET_SUFFIX: &str = "_secret";

/// Contents of a key file.
#[derive(Debug)]
pub struct Certificate {
    /// Name in its metadata; empty: none.
    pub name: String,
    /// Public key.
    pub public: PublicKey,
    /// Secret key, if the file has it.
    pub secret: Option<SecretKey>,
}

impl Certificate {
    /// Reads a file. The error says what is wrong with it.
    pub fn read(path: &Path) -> Result<Certificate, String> {
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| format!("{}{}", named(&error), elsewhere(path)))?;
        let metadata = file.metadata().map_err(|error| named(&error))?;
        let mut text = Zeroizing::new(String::new());
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| named(&error))?;
        let certificate = Certificate::parse(&text).map_err(|why| named(&why))?;
        if certificate.secret.is_some() {
            secrets::protect();
        }
        if certificate.secret.is_some() && is_exposed(&metadata) {
            let path = path.display();
            return Err(format!(
                "{path}: other users can read this secret key (mode {:03o}); chmod 600 {path}",
                metadata.mode() & 0o777
            ));
        }
        Ok(certificate)
    }

    /// Reads a file with a secret key.
    pub fn read_secret(path: &Path) -> Result<SecretKey, String> {
        Certificate::read(path)?.secret.ok_or_else(|| {
            let secret = secret_path(path);
            let hint = if secret.exists() { format!("; use {}", secret.display()) } else { String::new() };
            format!("{}: it has no secret key{hint}", path.display())
        })
    }

    /// Takes lines `public-key = "..."`, `secret-key = "..."` and `name = "..."`, whatever is around them.
    fn parse(text: &str) -> Result<Certificate, String> {
        let (mut name, mut public, mut secret) = (String::new(), None, None);
        let wrong = |number: usize, error: KeyError| format!("line {}: {error}", number + 1);
        for (number, line) in text.lines().enumerate() {
            let Some((property, value)) = line.split_once('=').filter(|_| !line.trim_start().starts_with('#')) else {
                continue;
            };
            let value = value.trim().trim_matches(['"', '\'']);
            match property.trim() {
                "name" => value.clone_into(&mut name),
                "public-key" => public = Some(value.parse::<PublicKey>().map_err(|error| wrong(number, error))?),
                "secret-key" => secret = Some(value.parse::<SecretKey>().map_err(|error| wrong(number, error))?),
                _ => {}
            }
        }
        let made = secret.as_ref().map(SecretKey::public_key);
        match public.or(made) {
            None => Err("it has no line public-key = \"...\"".to_owned()),
            Some(public) if made.is_some_and(|made| made != public) => {
                Err("its secret key doesn't belong to its public key".to_owned())
            }
            Some(public) => Ok(Certificate { name, public, secret }),
        }
    }
}

/// Files of a new key: the public one, and the secret one.
pub fn paths_of(name: &Path) -> Result<(PathBuf, PathBuf), String> {
    let is_name = name.file_name().and_then(|last| last.to_str()).filter(|last| is_plain(last)).is_some();
    if !is_name {
        return Err(format!("{}: not the name of a key", Line(&name.display().to_string())));
    }
    let public = match name.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => name.to_owned(),
        _ => config_folder()?.join(name),
    };
    Ok((public.clone(), secret_path(&public)))
}

/// A hint, if a file isn't here but among the user's keys.
fn elsewhere(path: &Path) -> String {
    let is_name = path.parent().is_some_and(|parent| parent.as_os_str().is_empty());
    let there = config_folder().ok().map(|folder| folder.join(path)).filter(|there| is_name && there.exists());
    there.map(|there| format!("; is it {}?", there.display())).unwrap_or_default()
}

/// Whether a name needs no escapes in a certificate or in a list of keys.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('#')
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

fn secret_path(public: &Path) -> PathBuf {
    let mut path = public.as_os_str().to_owned();
    path.push(SECRET_SUFFIX);
    path.into()
}

/// Directory of the user's keys, and of the servers that the user knows.
pub fn config_folder() -> Result<PathBuf, String> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    Ok(config.ok_or("neither HOME nor XDG_CONFIG_HOME is set; give a path")?.join("tow"))
}

/// Writes both files of a new key. None of them may exist.
pub fn write_new(name: &str, key: &SecretKey, public: &Path, secret: &Path) -> Result<(), String> {
    if let Some(folder) = public.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let key_of = key.public_key();
    let head = format!("metadata\n    name = \"{name}\"\ncurve\n    public-key = \"{key_of}\"\n");
    let both = Zeroizing::new(format!(
        "# Secret key of {name}, for CURVE. Give it to nobody.\n{head}    secret-key = \"{}\"\n",
        *key.to_z85()
    ));
    let write = |path: &Path, mode: u32, text: &str| {
        create(path, mode, text).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!("{}: it exists, and is not overwritten", path.display()),
            _ => format!("{}: {error}", path.display()),
        })
    };
    // The secret one first: a public key without it is of no use.
    write(secret, 0o600, &both)?;
    write(public, 0o644, &format!("# Public key of {name}, for CURVE.\n{head}")).inspect_err(|_| {
        let _ = std::fs::remove_file(secret);
    })
}

fn create(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    const SECRET: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

    #[test]
    fn certificates_of_other_programs_are_read() {
        let pyzmq = format!(
            "#   ****  Generated by pyzmq  ****\n#   public-key = nonsense\n\nmetadata\ncurve\n    public-key = \"{PUBLIC}\"\n    secret-key = \"{SECRET}\"\n"
        );
        let czmq = format!(
            "#   ZeroMQ CURVE Public Certificate\nmetadata\n    name = \"alice\"\n    email = \"a=b\"\ncurve\n    public-key = '{PUBLIC}'\n"
        );
        let read = Certificate::parse(&pyzmq).unwrap();
        assert!(read.public.to_string() == PUBLIC && *read.secret.unwrap().to_z85() == SECRET && read.name.is_empty());
        let read = Certificate::parse(&czmq).unwrap();
        assert!(read.public.to_string() == PUBLIC && read.secret.is_none() && read.name == "alice");
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        let other = "\"".to_owned() + &"0".repeat(40) + "\"";
        for (text, why) in [
            ("metadata\ncurve\n".to_owned(), "no line public-key"),
            (format!("public-key = {other}\nsecret-key = \"{SECRET}\"\n"), "doesn't belong"),
            (format!("\npublic-key = \"{}\"", &PUBLIC[1..]), "line 2: a key has 40"),
            (format!("secret-key = \"{}\"", &SECRET[1..]), "line 1: a key has 40"),
            (format!("secret-key = \"~{}\"", &SECRET[1..]), "not Z85"),
        ] {
            let error = Certificate::parse(&text).map(|_| ()).unwrap_err();
            assert!(error.contains(why) && !error.contains(&SECRET[1..]), "{error}");
        }
    }

    #[test]
    fn new_keys_are_read_again_and_never_overwritten() {
        let temp = tempfile::tempdir().unwrap();
        let (public, secret) = paths_of(&temp.path().join("keys/alice")).unwrap();
        let key: SecretKey = SECRET.parse().unwrap();
        write_new("alice", &key, &public, &secret).unwrap();
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
        assert_eq!(*Certificate::read_secret(&secret).unwrap().to_z85(), SECRET);
        let read = Certificate::read(&public).unwrap();
        assert!(read.secret.is_none() && read.public.to_string() == PUBLIC && read.name == "alice");
        assert!(Certificate::read_secret(&public).unwrap_err().contains("use "));
        let again = write_new("alice", &key, &public, &secret).unwrap_err();
        assert!(again.contains("alice_secret: it exists"), "{again}");
        std::fs::remove_file(&secret).unwrap();
        write_new("alice", &key, &public, &secret).unwrap_err();
        assert!(!secret.exists(), "half a key is left");
    }

    #[test]
    fn secret_keys_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("key");
        std::fs::write(&path, format!("secret-key = \"{SECRET}\"")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Certificate::read(&path).unwrap_err();
        assert!(error.contains("mode 644") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn names_of_keys_need_no_escapes() {
        for name in ["", "a b", "#a", "a\"", "x/..", "a\n"] {
            assert!(paths_of(Path::new(name)).is_err(), "{name:?}");
        }
    }
}
