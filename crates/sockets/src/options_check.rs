//! Checks of options before a socket is made: one that hangs later doesn't say why.

use crate::error::SocketError;
use crate::options::HubOptions;
use towpath_zmtp::MechanismConfig;
use towpath_zmtp::limits::ROUTING_ID_BYTES_MAX;

/// Maximum bytes of a user's name or a password in PLAIN (RFC 24), and of a property's name in READY (RFC 23).
const SHORT_BYTES_MAX: usize = 255;

/// Maximum keys of a CURVE server: each is tried for a HELLO that none of them opens.
const CURVE_KEYS_MAX: usize = 4;

impl HubOptions {
    pub(crate) fn check(&self) -> Result<(), SocketError> {
        let id = &self.routing_id;
        if id.len() > ROUTING_ID_BYTES_MAX {
            return refuse(
                "routing_id",
                format!("it has up to {ROUTING_ID_BYTES_MAX} bytes, and this one {}", id.len()),
            );
        }
        if id.first() == Some(&0) {
            return refuse("routing_id", "it doesn't begin with 0, which is for those that a ROUTER makes up");
        }
        if let MechanismConfig::PlainClient { user, password } = &self.mechanism {
            for (what, bytes) in [("user", user.len()), ("password", password.len())] {
                if bytes > SHORT_BYTES_MAX {
                    let why = format!("the {what} of PLAIN has up to {SHORT_BYTES_MAX} bytes, and this one {bytes}");
                    return refuse("mechanism", why);
                }
            }
        }
        if let MechanismConfig::CurveServer { keys, .. } = &self.mechanism
            && !(1..=CURVE_KEYS_MAX).contains(&keys.len())
        {
            let why = format!("a CURVE server has 1 to {CURVE_KEYS_MAX} keys, and this one {}", keys.len());
            return refuse("mechanism", why);
        }
        let fits = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some((name, _)) =
            self.metadata.iter().find(|(name, _)| !(1..=SHORT_BYTES_MAX).contains(&name.len()) || !fits(name))
        {
            let why =
                format!("a property's name has 1 to {SHORT_BYTES_MAX} bytes that can be printed; this is {name:?}");
            return refuse("metadata", why);
        }
        let counts = [
            ("send_queue_bytes", self.send_queue_bytes),
            ("read_budget_bytes", self.read_budget_bytes),
            ("max_frames", self.max_frames),
            ("body_buffer_bytes", if self.stream_over_bytes.is_some() { self.body_buffer_bytes } else { 1 }),
        ];
        if let Some((option, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return refuse(option, "it is at least 1");
        }
        let times = [
            ("handshake_timeout", self.handshake_timeout),
            ("reconnect.first", self.reconnect.first),
            ("reconnect.most", self.reconnect.most),
            ("heartbeat.timeout", self.heartbeat.map_or(self.handshake_timeout, |heartbeat| heartbeat.timeout)),
        ];
        if let Some((option, _)) = times.iter().find(|(_, time)| time.is_zero()) {
            return refuse(option, "it is longer than zero");
        }
        Ok(())
    }
}

fn refuse(option: &'static str, why: impl Into<String>) -> Result<(), SocketError> {
    Err(SocketError::Option { option, why: why.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hub::Hub;
    use crate::options::Backoff;
    use std::time::Duration;
    use towpath_zmtp::{Heartbeat, Metadata, SocketType};

    fn plain(user: usize, password: usize) -> MechanismConfig {
        MechanismConfig::PlainClient { user: "u".repeat(user), password: "p".repeat(password) }
    }

    #[test]
    fn options_that_cannot_work_are_refused_by_name() {
        let beat = |timeout| Some(Heartbeat { interval: timeout, timeout, ttl: timeout });
        let (zero, short) = (Duration::ZERO, Duration::from_millis(1));
        type Wrong<'a> = (&'a str, &'a str, &'a dyn Fn(&mut HubOptions));
        let wrong: &[Wrong<'_>] = &[
            ("routing_id", "up to 255 bytes, and this one 256", &|o| o.routing_id = vec![b'a'; 256].into()),
            ("routing_id", "begin with 0", &|o| o.routing_id = vec![0, 1].into()),
            ("mechanism", "the user of PLAIN has up to 255 bytes, and this one 256", &|o| o.mechanism = plain(256, 1)),
            ("mechanism", "the password of PLAIN", &|o| o.mechanism = plain(1, 300)),
            ("metadata", "1 to 255", &|o| o.metadata = Metadata::new().with("", "x")),
            ("metadata", "1 to 255", &|o| o.metadata = Metadata::new().with(&"X".repeat(256), "x")),
            ("metadata", "can be printed", &|o| o.metadata = Metadata::new().with("X y", "x")),
            ("send_queue_bytes", "at least 1", &|o| o.send_queue_bytes = 0),
            ("read_budget_bytes", "at least 1", &|o| o.read_budget_bytes = 0),
            ("max_frames", "at least 1", &|o| o.max_frames = 0),
            ("body_buffer_bytes", "at least 1", &|o| (o.body_buffer_bytes, o.stream_over_bytes) = (0, Some(1))),
            ("handshake_timeout", "longer than zero", &|o| o.handshake_timeout = zero),
            ("reconnect.first", "longer than zero", &|o| o.reconnect = Backoff { first: zero, most: short }),
            ("reconnect.most", "longer than zero", &|o| o.reconnect = Backoff { first: short, most: zero }),
            ("heartbeat.timeout", "longer than zero", &|o| o.heartbeat = beat(zero)),
            ("heartbeat.timeout", "longer than zero", &|o| {
                o.heartbeat = Some(Heartbeat { interval: short, timeout: zero, ttl: short });
            }),
        ];
        for (option, why, set) in wrong {
            let mut options = HubOptions::new(SocketType::Dealer);
            set(&mut options);
            let error = Hub::new(options).err().unwrap().to_string();
            assert!(error.starts_with(&format!("option {option}: ")) && error.contains(*why), "{error}");
        }
        let most = HubOptions {
            routing_id: vec![b'a'; 255].into(),
            mechanism: plain(255, 255),
            metadata: Metadata::new().with(&"X".repeat(255), ""),
            send_queue_bytes: 1,
            read_budget_bytes: 1,
            max_frames: 1,
            body_buffer_bytes: 0,
            heartbeat: beat(short),
            ..HubOptions::new(SocketType::Dealer)
        };
        Hub::new(most).unwrap();
    }
}
