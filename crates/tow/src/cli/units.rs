//! Parsers of counts, sizes and durations. A value out of range is refused, not replaced by one in range.

use parse_size::Config;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;
use towpath_files::client::BYTES_PER_SECOND_MIN;
use towpath_requests::limits::BODY_BYTES_MAX;

/// Longest duration that can be asked for: ten years.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Shortest duration that can be asked for.
const DURATION_MIN: Duration = Duration::from_millis(1);

/// Most connections from one process to one broker: an address has no more ports.
const CLIENTS_MAX: usize = 65_535;

/// Whole number of at least 1; K, M and G stand for thousands, millions and billions.
pub fn positive<N>(text: &str) -> Result<N, String>
where
    N: FromStr<Err: Display> + PartialOrd + From<u8>,
{
    let digits = match Config::new().parse_size(text) {
        Ok(number) if text.ends_with(|last: char| "kKmMgG".contains(last)) => number.to_string(),
        _ => text.to_owned(),
    };
    match digits.parse() {
        Ok(number) if number >= N::from(1) => Ok(number),
        // Such as a number that is too large.
        Err(error) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => Err(error.to_string()),
        _ => Err("use a whole number of at least 1".to_owned()),
    }
}

/// Whole number, as [`positive`] takes it, or 0.
pub fn count(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { positive(text).map_err(|why| why.replace("of at least 1", "")) }
}

/// Finite number over 0; K, M and G stand for thousands, millions and billions.
pub fn rate(text: &str) -> Result<f64, String> {
    let whole = || positive::<u64>(text).ok().map(|rate| rate as f64);
    let rate = text.parse().ok().or_else(whole).filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "use a number over 0".to_owned())
}

/// Bytes a second, from 4 KiB: a size as [`size`] takes it.
pub fn bytes_per_second(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < BYTES_PER_SECOND_MIN {
        return Err("use at least 4K; a number without a unit is in bytes a second".to_owned());
    }
    Ok(bytes)
}

/// Duration from 1 ms to ten years: seconds, such as `0.5`, or with units, such as `500ms`, `2min` or `7days`.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|duration| *duration >= DURATION_MIN)
        .ok_or_else(|| "use seconds, such as 0.5, or a unit, such as 500ms or 2min; from 1ms to ten years".to_owned())
}

/// Duration as [`duration`] takes it, or a shorter one.
pub fn short_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .ok_or_else(|| "use a unit, such as 50us, or seconds, such as 0.5; ten years at most".to_owned())
}

fn parse_duration(text: &str) -> Option<Duration> {
    let duration = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    duration.filter(|duration| *duration <= DURATION_MAX)
}

/// Duration as [`duration`] takes it, or 0.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) { Ok(Duration::ZERO) } else { duration(text) }
}

/// Size in bytes, or with a unit: `M` and `MiB` are powers of 1024, `MB` of 1000, as in rsync and dd.
pub fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let is_decimal = lower.ends_with('b') && !lower.ends_with("ib");
    let config = if is_decimal { Config::new() } else { Config::new().with_binary() };
    config.parse_size(text).map_err(|_| {
        "use a number of bytes, or K, M, G or T for powers of 1024, such as 256K; KB and its kind are powers of 1000"
            .to_owned()
    })
}

/// Size of at least 1 MiB.
pub fn size_from_1m(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| if bytes >= 1 << 20 { Ok(bytes) } else { Err("use at least 1M".to_owned()) })
}

/// Size of at least 1 byte of a load test's body, which has its number in it and is made in memory.
pub fn body_size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(size(text)?).unwrap_or(usize::MAX);
    match size {
        1..=BODY_BYTES_MAX => Ok(size),
        _ => Err(format!("use a size from 1 byte to {} MiB", BODY_BYTES_MAX >> 20)),
    }
}

/// Number of connections to a broker.
pub fn clients(text: &str) -> Result<usize, String> {
    match positive(text)? {
        clients @ 1..=CLIENTS_MAX => Ok(clients),
        _ => Err(format!("use at most {CLIENTS_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("10", 10),
            ("3k", 3 << 10),
            ("64M", 64 << 20),
            ("8MiB", 8 << 20),
            ("8kib", 8 << 10),
            ("1G", 1 << 30),
            ("2tiB", 2 << 40),
            ("1.5G", 3 << 29),
            ("8MB", 8_000_000),
            ("8kb", 8_000),
            ("8B", 8),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1é", "99999999T", "0x10", "ib", "Kib"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(["0", "4", "1K", "1023KiB"].into_iter().all(|text| size_from_1m(text).is_err()));
        assert_eq!((size_from_1m("1M"), size_from_1m("1048576")), (Ok(1 << 20), Ok(1 << 20)));
    }

    #[test]
    fn durations_are_in_seconds_or_have_a_unit() {
        for (text, ms) in [
            ("1", 1000),
            ("0.3", 300),
            ("1e-3", 1),
            ("315360000", 315_360_000_000),
            ("500ms", 500),
            ("2min", 120_000),
            ("1m 30s", 90_000),
            ("7days", 604_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in
            ["0", "-1", "", "s", "315360001", "11years", "0.0009", "18446744073709551615", "inf", "nan", "5parsecs"]
        {
            assert!(duration(wrong).unwrap_err().contains("ten years"), "{wrong}");
        }
        assert_eq!(
            (duration_or_zero("0"), duration_or_zero("0.1")),
            (Ok(Duration::ZERO), Ok(Duration::from_millis(100)))
        );
        assert!(duration_or_zero("-1").is_err());
        for (text, us) in [("0", 0), ("50us", 50), ("0.00005", 50), ("1", 1_000_000)] {
            assert_eq!(short_duration(text), Ok(Duration::from_micros(us)), "{text}");
        }
        assert!(short_duration("-1").is_err() && short_duration("11years").is_err());
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        assert_eq!(positive::<u16>("1"), Ok(1));
        assert_eq!(positive::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!((positive::<u32>("10k"), positive::<usize>("1.5M")), (Ok(10_000), Ok(1_500_000)));
        assert!(positive::<u16>("66k").unwrap_err().contains("too large"));
        for wrong in ["0", "-1", "1.5", "one", ""] {
            assert_eq!(positive::<u32>(wrong), Err("use a whole number of at least 1".to_owned()), "{wrong}");
        }
        assert!(positive::<u16>("65536").unwrap_err().contains("too large"));
        assert_eq!(body_size("1"), Ok(1));
        assert!(body_size("0").is_err());
        assert_eq!(body_size("64M"), Ok(BODY_BYTES_MAX));
        assert!(body_size("65M").is_err() && body_size("16777216T").is_err());
        assert_eq!(clients("65535"), Ok(65_535));
        assert!(clients("65536").is_err() && clients("0").is_err());
        assert!(rate("0").is_err() && rate("inf").is_err() && rate("0.5") == Ok(0.5) && rate("10k") == Ok(10_000.0));
    }
}
