//! Tag and id of a control message, without parsing the rest.
//!
//! The tag and the id come first in what every program of this project writes. Reading stops there: lists of thousands of files
//! follow, which are then read once, as what the tag says.

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

use super::parse_error;
use crate::protocol::WireError;

/// The beginning of a message, or all of it where the two are not at the beginning.
#[derive(Debug, Default)]
pub(super) struct Head {
    tag: Option<String>,
    pub(super) id: Option<u32>,
}

impl Head {
    /// Looks for the tag, which is the member of this name, and the id.
    pub(super) fn read(json: &[u8], tag: &'static str) -> Result<Head, WireError> {
        let mut head = Head::default();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let read = deserializer.deserialize_map(Members { tag, head: &mut head });
        // When both were found the parser complains of members that nobody took.
        match read {
            Err(error) if head.tag.is_none() || head.id.is_none() => Err(parse_error(&error)),
            _ => Ok(head),
        }
    }

    /// Kind of the message.
    pub(super) fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or_default()
    }
}

struct Members<'a> {
    tag: &'static str,
    head: &'a mut Head,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with `{}`", self.tag)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Members { tag, head } = self;
        while let Some(name) = members.next_key::<String>()? {
            if name == tag {
                head.tag = Some(members.next_value()?);
            } else if name == "id" {
                head.id = members.next_value()?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
            if head.tag.is_some() && head.id.is_some() {
                return Ok(());
            }
        }
        match head.tag {
            Some(_) => Ok(()),
            None => Err(serde::de::Error::missing_field(tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_and_id_are_found_anywhere_in_the_object() {
        for json in [r#"{"op":"x","id":7,"y":[1,2]}"#, r#"{"y":{"op":"z"},"id":7,"op":"x"}"#, r#"{"id":7,"op":"x"}"#] {
            let head = Head::read(json.as_bytes(), "op").unwrap();
            assert_eq!((head.tag(), head.id), ("x", Some(7)), "{json}");
        }
        let head = Head::read(br#"{"op":"x","y":1}"#, "op").unwrap();
        assert_eq!((head.tag(), head.id), ("x", None));
    }

    #[test]
    fn objects_without_a_valid_tag_are_refused() {
        for json in
            ["", "[]", "7", "{", "{}", r#"{"id":7}"#, r#"{"op":7,"id":7}"#, r#"{"op":"x"]"#, r#"{"op":"x","id":-1}"#]
        {
            assert!(Head::read(json.as_bytes(), "op").is_err(), "{json}");
        }
    }
}
