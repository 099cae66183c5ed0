//! Keys that a server admits: a file with a name and a key on each line.

use crate::cli::certificate::is_plain;
use crate::cli::exit::Failure;
use std::collections::HashMap;
use std::path::Path;
use towpath_sockets::PublicKey;

/// Names by key. A name may have several keys.
#[derive(Debug)]
pub struct AuthorizedKeys(HashMap<PublicKey, String>);

impl AuthorizedKeys {
    /// Reads a file with one NAME KEY a line.
    pub fn read(path: &Path) -> Result<AuthorizedKeys, Failure> {
        let named = |error: String| Failure::failed(format!("--authorized-keys {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        AuthorizedKeys::parse(&text).map_err(named)
    }

    fn parse(text: &str) -> Result<AuthorizedKeys, String> {
        let mut keys = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            // A key may begin with `#`, a name may not.
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<_> = line.split_whitespace().collect();
            let [name, key] = fields[..] else { return Err(format!("line {number} is not NAME KEY")) };
            let key: PublicKey = key.parse().map_err(|error| format!("line {number}: {error}"))?;
            if !is_plain(name) {
                return Err(format!("line {number}: {name:?} is not a name"));
            }
            if keys.insert(key, name.to_owned()).is_some() {
                return Err(format!("line {number} repeats a key"));
            }
        }
        match keys.is_empty() {
            true => Err("no line is NAME KEY, so no one would be admitted".to_owned()),
            false => Ok(AuthorizedKeys(keys)),
        }
    }

    /// The name of a key of the file.
    pub fn name_of(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_and_bad_files_are_refused() {
        let (one, other) = (PublicKey::from([1; 32]), PublicKey::from([2; 32]));
        let text = format!("# keys\n\nann {one}\n  ann\t{}\n", other.to_hex());
        let keys = AuthorizedKeys::parse(&text).unwrap();
        for key in [one, other] {
            assert_eq!(keys.name_of(&key), Some("ann"));
        }
        assert_eq!(keys.name_of(&PublicKey::from([3; 32])), None);
        for (text, why) in [
            (String::new(), "no one would be admitted"),
            (format!("{one}\n"), "line 1 is not NAME KEY"),
            (format!("ann {one} x\n"), "line 1 is not NAME KEY"),
            ("# a\nann 1234\n".to_owned(), "line 2: a key has 40"),
            (format!("ann {one}\nbob {}\n", one.to_hex()), "line 2 repeats a key"),
        ] {
            let error = AuthorizedKeys::parse(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
