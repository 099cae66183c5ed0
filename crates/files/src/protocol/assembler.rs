//! Assembles messages of a server from frames that arrive whole or in pieces: control messages with their attachment,
//! and data messages whose bodies are passed on as they arrive.

use bytes::{Bytes, BytesMut};

use crate::limits::{CONTROL_BYTES_MAX, LEAF_VALUE_BYTES, LEAVES_PAGE_MAX};
use crate::protocol::data::{DataEntry, DataHeader};
use crate::protocol::{Dialect, WireError};

/// Largest attachment of a control message.
const ATTACHMENT_BYTES_MAX: usize = LEAVES_PAGE_MAX as usize * LEAF_VALUE_BYTES;

/// Something that the server sent.
#[derive(Debug, PartialEq)]
pub enum Inbound {
    /// A complete control message.
    Control {
        /// The JSON object.
        json: Bytes,
        /// The frame that follows it, if there is one.
        attachment: Option<Bytes>,
    },
    /// A data message begins.
    Header(DataHeader),
    /// A body begins.
    Body(DataEntry),
    /// The next bytes of the body that began last.
    BodyData(Bytes),
    /// The body that began last is complete.
    BodyEnd,
}

/// The message that is arriving.
#[derive(Debug, Default)]
enum Message {
    #[default]
    None,
    Control {
        /// Complete frames after the tag; of more than two only the number is kept.
        frames: Vec<Bytes>,
    },
    Data {
        /// Entries whose bodies haven't begun, last first.
        rest: Vec<DataEntry>,
    },
}

/// The frame that is arriving in pieces.
#[derive(Debug, Default)]
enum Frame {
    #[default]
    None,
    /// Of a control message: collected.
    Collect { data: BytesMut, left: u64 },
    /// A body: passed on as it arrives.
    Pass { left: u64 },
}

/// The messages of one connection. After an error nothing more can be read from it.
#[derive(Debug, Default)]
pub struct Assembler {
    message: Message,
    frame: Frame,
}

impl Assembler {
    /// Takes a frame that arrived whole.
    ///
    /// # Errors
    /// The frame is out of place, or over its limit.
    pub fn whole_frame(&mut self, frame: Bytes, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match &mut self.message {
            Message::None => self.first_frame(&frame, out),
            Message::Control { frames } => {
                check_control_frame(frames.len(), frame.len() as u64)?;
                frames.push(frame);
                Ok(())
            }
            Message::Data { rest } => {
                out.push(Inbound::Body(next_entry(rest, frame.len() as u64)?));
                if !frame.is_empty() {
                    out.push(Inbound::BodyData(frame));
                }
                out.push(Inbound::BodyEnd);
                Ok(())
            }
        }
    }

    /// Begins a frame of `length` bytes that arrives in pieces.
    ///
    /// # Errors
    /// As [`Assembler::whole_frame`].
    pub fn frame_start(&mut self, length: u64, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        self.frame = match &mut self.message {
            Message::None => return Err(WireError::bad("a message begins with a frame that is too long")),
            Message::Control { frames } => {
                check_control_frame(frames.len(), length)?;
                Frame::Collect { data: BytesMut::new(), left: length }
            }
            Message::Data { rest } => {
                let entry = next_entry(rest, length)?;
                out.push(Inbound::Body(entry));
                Frame::Pass { left: length }
            }
        };
        Ok(())
    }

    /// Takes bytes of the frame that began.
    ///
    /// # Errors
    /// They are more than were announced.
    pub fn frame_data(&mut self, bytes: Bytes, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match &mut self.frame {
            Frame::None => return Err(WireError::bad("bytes outside of a frame")),
            Frame::Collect { data, left } => {
                take(left, bytes.len())?;
                data.extend_from_slice(&bytes);
            }
            Frame::Pass { left } => {
                take(left, bytes.len())?;
                out.push(Inbound::BodyData(bytes));
            }
        }
        Ok(())
    }

    /// Ends the frame that began.
    ///
    /// # Errors
    /// It is shorter than was announced.
    pub fn frame_end(&mut self, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match std::mem::take(&mut self.frame) {
            Frame::Collect { data, left: 0 } => {
                if let Message::Control { frames } = &mut self.message {
                    frames.push(data.freeze());
                }
                Ok(())
            }
            Frame::Pass { left: 0 } => {
                out.push(Inbound::BodyEnd);
                Ok(())
            }
            _ => Err(WireError::bad("a frame is too short")),
        }
    }

    /// Ends the message.
    ///
    /// # Errors
    /// A frame is missing.
    pub fn message_end(&mut self, out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match std::mem::take(&mut self.message) {
            Message::None => {}
            Message::Control { frames } => {
                let mut frames = frames.into_iter();
                let json = frames.next().ok_or_else(|| WireError::bad("a control message without JSON"))?;
                out.push(Inbound::Control { json, attachment: frames.next() });
            }
            Message::Data { rest } if rest.is_empty() => {}
            Message::Data { .. } => return Err(WireError::bad("a data message lacks bodies")),
        }
        Ok(())
    }

    fn first_frame(&mut self, frame: &[u8], out: &mut Vec<Inbound>) -> Result<(), WireError> {
        match Dialect::of(frame) {
            Some(Dialect::Control) => self.message = Message::Control { frames: Vec::new() },
            Some(Dialect::Data) => {
                let header = DataHeader::decode(frame)?;
                let rest = header.entries.iter().rev().copied().collect();
                self.message = Message::Data { rest };
                out.push(Inbound::Header(header));
            }
            Some(Dialect::Plain) | None => return Err(WireError::bad("a message of an unknown dialect")),
        }
        Ok(())
    }
}

/// Subtracts bytes from those that are left of a frame.
fn take(left: &mut u64, bytes: usize) -> Result<(), WireError> {
    *left = left.checked_sub(bytes as u64).ok_or_else(|| WireError::bad("a frame is too long"))?;
    Ok(())
}

/// The entry of the body that begins with this length.
fn next_entry(rest: &mut Vec<DataEntry>, length: u64) -> Result<DataEntry, WireError> {
    let entry = rest.pop().ok_or_else(|| WireError::bad("a data message has more bodies than entries"))?;
    if entry.body_length != length {
        return Err(WireError::bad("a body is not as long as its entry says"));
    }
    Ok(entry)
}

fn check_control_frame(index: usize, length: u64) -> Result<(), WireError> {
    let length_max = match index {
        0 => CONTROL_BYTES_MAX,
        1 => ATTACHMENT_BYTES_MAX,
        _ => return Err(WireError::bad("a control message of more than three frames")),
    };
    if length > length_max as u64 {
        return Err(WireError::bad(format!("a frame of a control message is over {length_max} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::data::Body;
    use proptest::prelude::*;

    fn entry(length: u64) -> DataEntry {
        DataEntry { n: 0, end: false, body: Body::Plain, offset: 0, length, body_length: length }
    }

    fn header(lengths: &[u64]) -> (DataHeader, Bytes) {
        let header = DataHeader { id: 1, entries: lengths.iter().map(|&length| entry(length)).collect() };
        let frame = header.encode().unwrap();
        (header, frame.into())
    }

    #[test]
    fn whole_and_streamed_bodies_are_the_same() {
        let (header, frame) = header(&[3, 2, 1]);
        let (mut assembler, mut out) = (Assembler::default(), Vec::new());
        assembler.whole_frame(frame, &mut out).unwrap();
        assembler.frame_start(3, &mut out).unwrap();
        assembler.frame_data(Bytes::from_static(b"ab"), &mut out).unwrap();
        assembler.frame_data(Bytes::from_static(b"c"), &mut out).unwrap();
        assembler.frame_end(&mut out).unwrap();
        assembler.whole_frame(Bytes::from_static(b"de"), &mut out).unwrap();
        assembler.frame_start(1, &mut out).unwrap();
        assembler.frame_data(Bytes::from_static(b"f"), &mut out).unwrap();
        assembler.frame_end(&mut out).unwrap();
        assembler.message_end(&mut out).unwrap();
        let data = |bytes: &'static [u8]| Inbound::BodyData(Bytes::from_static(bytes));
        let body = |length| Inbound::Body(entry(length));
        let expected = vec![
            Inbound::Header(header),
            body(3),
            data(b"ab"),
            data(b"c"),
            Inbound::BodyEnd,
            body(2),
            data(b"de"),
            Inbound::BodyEnd,
            body(1),
            data(b"f"),
            Inbound::BodyEnd,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn control_messages_are_collected() {
        let (mut assembler, mut out) = (Assembler::default(), Vec::new());
        assembler.whole_frame(Bytes::from_static(b"TOW1"), &mut out).unwrap();
        assembler.frame_start(2, &mut out).unwrap();
        assembler.frame_data(Bytes::from_static(b"{}"), &mut out).unwrap();
        assembler.frame_end(&mut out).unwrap();
        assembler.whole_frame(Bytes::from_static(b"leaves"), &mut out).unwrap();
        assert_eq!(out, vec![]);
        assembler.message_end(&mut out).unwrap();
        let (json, attachment) = (Bytes::from_static(b"{}"), Some(Bytes::from_static(b"leaves")));
        assert_eq!(out, vec![Inbound::Control { json, attachment }]);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let begin = |frame: Bytes| {
            let mut assembler = Assembler::default();
            assembler.whole_frame(frame, &mut Vec::new()).unwrap();
            assembler
        };
        let out = &mut Vec::new();
        let (_, data) = header(&[3]);
        assert!(begin(data.clone()).whole_frame(Bytes::from_static(b"abcd"), out).is_err());
        assert!(begin(data.clone()).frame_start(1 << 40, out).is_err());
        assert!(begin(data.clone()).message_end(out).is_err());
        let mut long = begin(data.clone());
        long.frame_start(3, out).unwrap();
        assert!(long.frame_data(Bytes::from_static(b"abcd"), out).is_err());
        let mut short = begin(data);
        short.frame_start(3, out).unwrap();
        short.frame_data(Bytes::from_static(b"ab"), out).unwrap();
        assert!(short.frame_end(out).is_err());
        let control = || Bytes::from_static(b"TOW1");
        assert!(begin(control()).frame_start((1 << 20) + 1, out).is_err());
        assert!(begin(control()).message_end(out).is_err());
        assert!(Assembler::default().frame_start(5, out).is_err());
        assert!(Assembler::default().whole_frame(Bytes::from_static(b"fetch"), out).is_err());
    }

    proptest! {
        #[test]
        fn any_order_of_frames_is_handled(steps in proptest::collection::vec((0u8..6, proptest::collection::vec(any::<u8>(), 0..50)), 0..30)) {
            let (mut assembler, mut out) = (Assembler::default(), Vec::new());
            for (step, bytes) in steps {
                let length = bytes.len() as u64;
                let _ = match step {
                    0 => assembler.whole_frame(bytes.into(), &mut out),
                    1 => assembler.whole_frame(header(&[length.max(1), 3]).1, &mut out),
                    2 => assembler.frame_start(length, &mut out),
                    3 => assembler.frame_data(bytes.into(), &mut out),
                    4 => assembler.frame_end(&mut out),
                    _ => assembler.message_end(&mut out),
                };
            }
        }
    }
}
