//! Lists whose limit is enforced while they are parsed.
//!
//! A short JSON element (`{}`) can become a large one in memory: a list that is checked only when complete may have fifty times the size of
//! the message.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A list of at most `MAX` elements. One more is a parse error.
pub(super) struct Bounded<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements::<T, MAX>(PhantomData)).map(Bounded)
    }
}

/// Deserializes a member as [`Bounded`].
pub(super) fn at_most<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Bounded::<T, MAX>::deserialize(deserializer).map(|list| list.0)
}

struct Elements<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("a list has more than {MAX} elements")));
            }
            list.push(element);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local!(static MADE: Cell<usize> = const { Cell::new(0) });

    /// Counts how many of it were made.
    #[derive(Deserialize)]
    #[serde(from = "u8")]
    struct Element;

    impl From<u8> for Element {
        fn from(_: u8) -> Element {
            MADE.set(MADE.get() + 1);
            Element
        }
    }

    fn read(elements: usize) -> Result<usize, String> {
        let json = format!("[{}]", vec!["7"; elements].join(","));
        let list = serde_json::from_str::<Bounded<Element, 10>>(&json);
        list.map(|list| list.0.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn reading_stops_at_the_limit() {
        assert_eq!(read(0), Ok(0));
        assert_eq!(read(10), Ok(10));
        MADE.set(0);
        let error = read(100_000).expect_err("over the limit");
        assert!(error.starts_with("a list has more than 10 elements"), "{error}");
        assert_eq!(MADE.get(), 11);
    }
}
