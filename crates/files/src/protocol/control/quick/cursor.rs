//! A place in a JSON text from which the expected is read, or nothing.

use serde::Deserialize;

use crate::digest::{DIGEST_DIGITS, Digest};
use crate::limits::PATH_OCTETS_MAX;
use crate::protocol::control::WirePath;
use crate::root::Timestamp;

/// Digits of which every number fits into 64 bits.
const DIGITS_MAX: usize = 19;

/// What is still to be read. After a `None` it is anywhere.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(json: &'a [u8]) -> Self {
        Self { rest: json }
    }

    /// Exactly this.
    pub(super) fn skip<const N: usize>(&mut self, expected: &[u8; N]) -> Option<()> {
        let (found, rest) = self.rest.split_first_chunk::<N>()?;
        if found != expected {
            return None;
        }
        self.rest = rest;
        Some(())
    }

    /// This, if it comes next.
    pub(super) fn has<const N: usize>(&mut self, expected: &[u8; N]) -> bool {
        self.skip(expected).is_some()
    }

    pub(super) fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }

    /// Digits without a sign, as many as surely fit. That nothing of a number follows is for what is skipped next.
    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let (mut number, mut digits) = (0u64, 0);
        while let Some(digit @ b'0'..=b'9') = self.rest.get(digits)
            && digits < DIGITS_MAX
        {
            number = number * 10 + u64::from(digit - b'0');
            digits += 1;
        }
        if digits == 0 || (digits > 1 && self.rest.starts_with(b"0")) {
            return None;
        }
        self.rest = self.rest.get(digits..)?;
        T::try_from(number).ok()
    }

    /// What is in a list of two numbers, behind its bracket.
    pub(super) fn time(&mut self) -> Option<Timestamp> {
        let is_negative = self.has(b"-");
        let seconds = self.number::<i64>()?;
        self.skip(b",")?;
        let nanoseconds = self.number()?;
        self.skip(b"]")?;
        // JSON's -0 is no integer.
        if nanoseconds >= 1_000_000_000 || (is_negative && seconds == 0) {
            return None;
        }
        Some(Timestamp { seconds: if is_negative { -seconds } else { seconds }, nanoseconds })
    }

    /// A text without escapes, behind its first quotation mark.
    fn text(&mut self) -> Option<&'a str> {
        let end = self.rest.iter().position(|&octet| super::write::is_special(octet))?;
        let (text, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.strip_prefix(b"\"")?;
        std::str::from_utf8(text).ok()
    }

    /// The same as a path.
    pub(super) fn path(&mut self) -> Option<WirePath> {
        let text = self.text().filter(|text| text.len() <= PATH_OCTETS_MAX)?;
        Some(text.as_bytes().to_vec().into())
    }

    /// A digest, behind its first quotation mark.
    pub(super) fn digest(&mut self) -> Option<Digest> {
        let (digits, rest) = self.rest.split_first_chunk::<DIGEST_DIGITS>()?;
        self.rest = rest.strip_prefix(b"\"")?;
        Digest::from_digits(digits).ok()
    }

    /// What is in a list, behind its bracket: elements that are usual, and others that the general parser has to read.
    pub(super) fn list<T, Raw: Deserialize<'a>>(
        &mut self,
        length_max: usize,
        usual: impl Fn(&mut Self) -> Option<T>,
        other: impl Fn(Raw) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut list = Vec::new();
        if self.has(b"]") {
            return Some(list);
        }
        while list.len() < length_max {
            let begin = self.clone();
            let element = usual(self).or_else(|| {
                *self = begin;
                other(self.general()?)
            });
            list.push(element?);
            if self.has(b"]") {
                return Some(list);
            }
            self.skip(b",")?;
        }
        None
    }

    /// Whatever comes next, read by the general parser.
    pub(super) fn general<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let mut values = serde_json::Deserializer::from_slice(self.rest).into_iter();
        let value = values.next()?.ok()?;
        self.rest = self.rest.get(values.byte_offset()..)?;
        Some(value)
    }
}
