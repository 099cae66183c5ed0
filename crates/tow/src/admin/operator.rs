//! An operator, as far as a request shows who it is.

use std::fs::File;
use std::io::{self, Read};
use towpath_sockets::Address;

/// Users of this machine.
const USERS_FILE: &str = "/etc/passwd";

/// Bytes of it that are looked at.
const USERS_BYTES_MAX: u64 = 1 << 20;

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// For people: the name of a token, or the user of this machine who asks on the socket.
    pub name: String,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// Whether the request came over the socket.
    pub is_local: bool,
}

impl Operator {
    /// The user of this machine who asks on the socket.
    pub fn of_socket(address: &Address) -> Operator {
        let name = match address {
            Address::Ipc { uid: Some(uid), .. } => match user_name(*uid) {
                Some(user) => format!("{user} (uid {uid})"),
                None => format!("uid {uid}"),
            },
            _ => "unknown".to_owned(),
        };
        Operator { name, read_only: false, is_local: true }
    }

    /// Of a token.
    pub fn of_token(name: &str, read_only: bool) -> Operator {
        Operator { name: name.to_owned(), read_only, is_local: false }
    }

    /// Of what everybody may read.
    pub fn nobody() -> Operator {
        Operator { name: String::new(), read_only: true, is_local: false }
    }
}

/// The name of a user, if the file of users has it.
fn user_name(uid: u32) -> Option<String> {
    let mut text = String::new();
    let read: io::Result<_> =
        File::open(USERS_FILE).and_then(|file| file.take(USERS_BYTES_MAX).read_to_string(&mut text));
    read.ok()?;
    named(&text, uid)
}

fn named(users: &str, uid: u32) -> Option<String> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?.to_owned(), fields.nth(1)?.parse::<u32>().ok()?);
        (id == uid).then_some(name)
    };
    users.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let users = "root:x:0:0:root:/root:/bin/sh\n#\nann:x:1000:1000::/home/ann:\n";
        assert_eq!(named(users, 1000).as_deref(), Some("ann"));
        assert_eq!(named(users, 1), None);
        assert_eq!(Operator::of_socket(&Address::Ipc { pid: None, uid: Some(u32::MAX) }).name, "uid 4294967295");
    }
}
