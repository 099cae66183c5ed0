//! Numbers on the command line: what makes no sense is refused, not replaced by what does.

use std::fmt::Display;
use std::str::FromStr;
use towpath_requests::limits::BODY_BYTES_MAX;

/// A whole number of at least 1.
pub fn positive<N>(text: &str) -> Result<N, String>
where
    N: FromStr<Err: Display> + PartialOrd + From<u8>,
{
    match text.parse() {
        Ok(number) if number >= N::from(1) => Ok(number),
        // Such as one that is too large.
        Err(error) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => Err(error.to_string()),
        _ => Err("it is a whole number of at least 1".to_owned()),
    }
}

/// The longest that can be waited for: ten years.
const SECONDS_MAX: u64 = 10 * 365 * 86_400;

/// Whole seconds that something may take.
pub fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..=SECONDS_MAX) => Ok(seconds),
        _ => Err(format!("it is a whole number of seconds from 1 to {SECONDS_MAX}, which are ten years")),
    }
}

/// A size in bytes: digits, then K, M, G or T for powers of 1024, which may be spelt out as KiB.
///
/// What ends in B alone is refused: to some kB is 1000, to others 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err("a size is in bytes, or in K, M, G or T, which are powers of 1024".to_owned()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "a size is a whole number, then K, M, G or T if need be".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than 64 bits can count".to_owned())
}

/// The bytes of a body that has its number in it, and is made in memory.
pub fn body_size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(size(text)?).unwrap_or(usize::MAX);
    match size {
        0 => Err("a body has at least 1 byte".to_owned()),
        1..=BODY_BYTES_MAX => Ok(size),
        _ => Err(format!("a load's bodies have at most {} MiB", BODY_BYTES_MAX >> 20)),
    }
}

/// Connections that one process makes to one broker: an address has no more ports.
pub fn clients(text: &str) -> Result<usize, String> {
    match positive(text)? {
        1..=65_535 => positive(text),
        _ => Err("there are at most 65535".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("10", 10), ("3k", 3 << 10), ("64M", 64 << 20), ("8MiB", 8 << 20), ("1G", 1 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1.5G", "1é", "99999999T", "8MB", "8 M", "0x10"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn zero_and_less_are_refused() {
        assert_eq!(positive::<u16>("1"), Ok(1));
        assert_eq!(positive::<u64>("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["0", "-1", "1.5", "one", ""] {
            assert_eq!(positive::<u32>(wrong), Err("it is a whole number of at least 1".to_owned()), "{wrong}");
        }
        assert!(positive::<u16>("65536").unwrap_err().contains("too large"));
        assert_eq!((seconds("1"), seconds("315360000")), (Ok(1), Ok(SECONDS_MAX)));
        for wrong in ["0", "-1", "1.5", "", "315360001", "18446744073709551615", "99999999999999999999"] {
            assert!(seconds(wrong).unwrap_err().contains("to 315360000"), "{wrong}");
        }
        assert_eq!(body_size("1"), Ok(1));
        assert!(body_size("0").is_err());
        assert_eq!(body_size("64M"), Ok(BODY_BYTES_MAX));
        assert!(body_size("65M").is_err() && body_size("16777216T").is_err());
        assert_eq!(clients("65535"), Ok(65_535));
        assert!(clients("65536").is_err() && clients("0").is_err());
    }
}
