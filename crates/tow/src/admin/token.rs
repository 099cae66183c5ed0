//! The token that `--admin` demands: 32 random bytes in a file.

use crate::cli::auth_args::{is_of_user, read_secret};
use crate::cli::exit::Failure;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use towpath_sockets::system_random;
use zeroize::Zeroizing;

/// Name of the operator whose token is in the file.
pub const OPERATOR: &str = "operator";

/// Random bytes of a new token.
const BYTES: usize = 32;

/// Characters of a token that somebody else has made.
const CHARACTERS_MIN: usize = 32;
const CHARACTERS_MAX: usize = 512;

/// A token, which allows everything that the server's operator may do.
#[derive(Clone)]
pub struct Token(Arc<Zeroizing<String>>);

impl Token {
    /// Reads the file. If there is none it is made, for its user alone.
    pub fn read_or_make(path: &Path) -> Result<Token, Failure> {
        match make(path) {
            Ok(()) => tracing::debug!(file = %path.display(), "made a token for --admin"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let named = |why: &dyn std::fmt::Display| Failure::failed(format!("{}: {why}", path.display()));
                let there = std::fs::metadata(path).map_err(|error| named(&error))?;
                if !is_of_user(&there) {
                    let owner = there.uid();
                    return Err(named(&format!(
                        "it is another user's ({owner}), who knows it; remove it, and tow makes one"
                    )));
                }
            }
            Err(error) => return Err(Failure::failed(format!("cannot make the token {}: {error}", path.display()))),
        }
        Token::read(path)
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Token, Failure> {
        let text = Zeroizing::new(read_secret("--admin-token-file", path)?);
        let token = text.trim_end();
        let is_token = token.chars().all(|one| one.is_ascii_alphanumeric() || "-._~+/=".contains(one))
            && (CHARACTERS_MIN..=CHARACTERS_MAX).contains(&token.len());
        if !is_token {
            return Err(Failure::failed(format!(
                "{}: a token has {CHARACTERS_MIN} to {CHARACTERS_MAX} letters, digits and -._~+/=; remove the file, and tow makes one",
                path.display()
            )));
        }
        Ok(Token(Arc::new(token.to_owned().into())))
    }

    /// Its characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a header `Authorization` with this token. The time doesn't reveal how much of a wrong one is right.
    pub fn is_in(&self, header: &[u8]) -> bool {
        let scheme = header.split_at_checked(SCHEME.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        scheme.is_some_and(|(_, token)| token.trim_ascii().ct_eq(self.0.as_bytes()).into())
    }
}

/// Of the header, with the space behind it.
pub const SCHEME: &[u8] = b"Bearer ";

/// Makes a file with a new token, whole from the beginning.
fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(directory)?;
    let text = Zeroizing::new(format!("{}\n", new_token()?.as_str()));
    let mut file = tempfile::Builder::new()
        .prefix(".admin")
        .make_in(directory, |path| File::options().write(true).create_new(true).mode(0o600).open(path))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|failed| failed.error)?;
    File::open(directory)?.sync_all()
}

/// A new token.
pub fn new_token() -> io::Result<Zeroizing<String>> {
    let mut random = Zeroizing::new([0; BYTES]);
    system_random().fill(&mut *random)?;
    Ok(Zeroizing::new(URL_SAFE_NO_PAD.encode(*random)))
}

/// Makes a directory, and its name durable: a journal may be in it.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
