//! Rates of transfers: differences between two replies, as the server keeps no history.

use serde_json::Value;
use std::collections::HashMap;
use std::time::Instant;

/// The reply before.
#[derive(Default)]
pub struct Rates {
    at: Option<Instant>,
    /// Bytes that each transfer had moved, and its position in its file.
    counts: HashMap<String, (u64, u64)>,
}

impl Rates {
    /// Adds `bytes_per_second`, and `seconds_left` of its file, to each transfer that was in the reply before, too.
    pub fn add(&mut self, transfers: &mut [Value], now: Instant) {
        let mut counts = HashMap::new();
        for transfer in transfers.iter_mut() {
            let number = |name: &str| transfer[name].as_u64();
            let moved = number("sent_bytes").unwrap_or(0) + number("received_bytes").unwrap_or(0);
            let (done, total) = (number("done_bytes").unwrap_or(0), number("total_bytes"));
            let key = ["peer", "kind", "id", "path"].map(|name| transfer[name].to_string()).join(" ");
            counts.insert(key.clone(), (moved, done));
            let (Some(at), Some((moved_before, done_before))) = (self.at, self.counts.get(&key)) else { continue };
            let seconds = now.saturating_duration_since(at).as_secs_f64().max(0.001);
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            transfer["bytes_per_second"] = (rate(moved, *moved_before) as u64).into();
            let (left, per_second) = (total.map(|total| total.saturating_sub(done)), rate(done, *done_before));
            let left = left.filter(|_| per_second > 0.0).map(|left| (left as f64 / per_second) as u64);
            transfer["seconds_left"] = left.into();
        }
        (self.at, self.counts) = (Some(now), counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn rates_are_those_between_two_replies() {
        let transfer = |path: &str, sent: u64, done: u64| {
            let moved = json!({ "sent_bytes": sent, "received_bytes": 0, "done_bytes": done, "total_bytes": 1000 });
            let Value::Object(mut transfer) = moved else { unreachable!() };
            transfer.extend([("peer".to_owned(), "0.0".into()), ("path".to_owned(), path.into())]);
            Value::Object(transfer)
        };
        let (mut rates, begin) = (Rates::default(), Instant::now());
        for (second, path, sent, done, rate, left) in [
            (0, "a", 50, 100, Value::Null, Value::Null),
            (2, "a", 150, 300, 50.into(), 7.into()),
            (4, "a", 150, 300, 0.into(), Value::Null),
            // Another file: how fast isn't known yet.
            (6, "b", 500, 100, Value::Null, Value::Null),
        ] {
            let mut transfers = [transfer(path, sent, done)];
            rates.add(&mut transfers, begin + Duration::from_secs(second));
            assert_eq!((&transfers[0]["bytes_per_second"], &transfers[0]["seconds_left"]), (&rate, &left), "{second}");
        }
    }
}
