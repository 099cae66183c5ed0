//! Checksums of requests, by which another one under the same number is noticed.

use crc32c::{crc32c, crc32c_append};

/// Marks the checksum of a request of whose body only the length was looked at, since it isn't in memory.
const OF_LENGTH: u32 = 1 << 31;

/// A checksum of a request's service and body. It finds mistakes, not forgeries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestChecksum(pub u32);

impl RequestChecksum {
    #[inline]
    pub(super) fn of_frames<'a>(service: &[u8], frames: impl Iterator<Item = &'a [u8]>) -> RequestChecksum {
        let of_frame =
            |sum, frame: &[u8]| crc32c_append(crc32c_append(sum, &(frame.len() as u64).to_le_bytes()), frame);
        RequestChecksum(frames.fold(crc32c(service), of_frame) & !OF_LENGTH)
    }

    pub(super) fn of_length(service: &[u8], length: u64) -> RequestChecksum {
        RequestChecksum(crc32c_append(crc32c(service), &length.to_le_bytes()) | OF_LENGTH)
    }

    /// Whether two requests are surely not the same. The same body may be in memory one time, and in a file another time.
    #[inline]
    pub fn contradicts(self, other: RequestChecksum) -> bool {
        self != other && (self.0 ^ other.0) & OF_LENGTH == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Body, IncomingBody};
    use super::*;
    use bytes::Bytes;

    #[test]
    fn requests_differ_by_service_and_by_body() {
        let of = |service: &str, body: Body| IncomingBody::Body(body).request_checksum(service.as_bytes());
        let frames =
            |frames: &[&'static str]| Body::of_frames(frames.iter().map(|frame| Bytes::from_static(frame.as_bytes())));
        let all = [
            of("echo", Body::from("hello")),
            of("echo", Body::from("hallo")),
            of("ech", Body::from("ohello")),
            of("echo", Body::default()),
            of("echo", frames(&["hel", "lo"])),
            of("echo", frames(&["hell", "o"])),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].iter().any(|other| !one.contradicts(*other)), "{at}");
        }
        let hello = RequestChecksum::of_frames(b"echo", [&b"hello"[..]].into_iter());
        assert_eq!(IncomingBody::Bytes(b"hello").request_checksum(b"echo"), hello);
        assert_eq!(of("echo", Body::from("hello")), hello);
        let (long, longer) = (RequestChecksum::of_length(b"echo", 5), RequestChecksum::of_length(b"echo", 6));
        assert!(long.contradicts(longer) && !long.contradicts(hello) && !long.contradicts(long));
    }
}
