//! Epochs, cursors, and where a follow begins.
// docs/protocol/follow.md, "Sequence numbers".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The epoch that a server's sequence numbers belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(pub [u8; 16]);

/// A server: a number that it draws when it starts (`via`), or that it keeps (`server`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId(pub [u8; 16]);

/// A copy that a follower keeps: a number that its record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub [u8; 16]);

/// A follower's position. Its text is `EPOCH-SEQ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The numbers' epoch.
    pub epoch: Epoch,
    /// Everything up to this number has been sent.
    pub seq: u64,
}

/// Beginning of a follow. Its text is `beginning`, `now`, or that of a cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the full state.
    #[default]
    Beginning,
    /// With what changes from now on.
    Now,
    /// Behind a cursor.
    Cursor(Cursor),
}

/// A text that is neither a cursor nor another place to begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not `beginning`, `now` or a cursor, which is 32 lower-case hex digits, a hyphen and a number")]
pub struct FollowFromError;

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Epoch {
    type Err = FollowFromError;

    fn from_str(text: &str) -> Result<Epoch, FollowFromError> {
        let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.as_bytes().iter().all(is_hex) {
            return Err(FollowFromError);
        }
        u128::from_str_radix(text, 16).map(|number| Epoch(number.to_be_bytes())).map_err(|_| FollowFromError)
    }
}

/// A text that isn't the number of a server or of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 32 lower-case hex digits")]
pub struct IdError;

macro_rules! as_hex {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Epoch(self.0).fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<$name, IdError> {
                text.parse().map(|Epoch(bytes)| $name(bytes)).map_err(|_| IdError)
            }
        }
    };
}

as_hex!(ServerId);
as_hex!(CopyId);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = FollowFromError;

    fn from_str(text: &str) -> Result<Cursor, FollowFromError> {
        let (epoch, seq) = text.split_once('-').ok_or(FollowFromError)?;
        // `str::parse` would also take a sign.
        if seq.is_empty() || !seq.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FollowFromError);
        }
        Ok(Cursor { epoch: epoch.parse()?, seq: seq.parse().map_err(|_| FollowFromError)? })
    }
}

impl fmt::Display for FollowFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FollowFrom::Beginning => f.write_str("beginning"),
            FollowFrom::Now => f.write_str("now"),
            FollowFrom::Cursor(cursor) => cursor.fmt(f),
        }
    }
}

impl FromStr for FollowFrom {
    type Err = FollowFromError;

    fn from_str(text: &str) -> Result<FollowFrom, FollowFromError> {
        match text {
            "beginning" => Ok(FollowFrom::Beginning),
            "now" => Ok(FollowFrom::Now),
            cursor => cursor.parse().map(FollowFrom::Cursor),
        }
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(Cursor);
as_text!(ServerId);
as_text!(CopyId);
as_text!(FollowFrom);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_are_strict() {
        let cursor = Cursor { epoch: Epoch([0x0a; 16]), seq: 1264 };
        let text = format!("{}-1264", "0a".repeat(16));
        assert_eq!(cursor.to_string(), text);
        for from in [FollowFrom::Beginning, FollowFrom::Now, FollowFrom::Cursor(cursor)] {
            assert_eq!(from.to_string().parse(), Ok(from));
        }
        let hex = "0a".repeat(16);
        for bad in
            ["", "Now", "-1", &hex, &format!("{hex}-"), &format!("{hex}-+1"), &format!("{hex}-99999999999999999999")]
        {
            assert_eq!(bad.parse::<FollowFrom>(), Err(FollowFromError), "{bad}");
        }
        assert_eq!(format!("{}-1", hex.to_uppercase()).parse::<FollowFrom>(), Err(FollowFromError));
        assert_eq!(format!("+{}-1", &hex[1..]).parse::<FollowFrom>(), Err(FollowFromError));
    }
}
