//! A toy mechanism that seals frames: handshake as NULL, bodies XORed with a counter, a checksum as the tag. It protects nothing.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use towpath_zmtp::{
    Command, Error, FrameFlags, FrameNumber, FrameSeal, Mechanism, MechanismConfig, Metadata, Opener, Sealer, Step,
};

/// Flags, number and tag.
pub const OVERHEAD: usize = 1 + 8 + 8;

pub fn toy_seal() -> MechanismConfig {
    MechanismConfig::Custom { name: "TOY", begin: Arc::new(|| Box::new(Toy)) }
}

#[derive(Debug)]
struct Toy;

impl Mechanism for Toy {
    fn name(&self) -> &'static str {
        "TOY"
    }

    fn start(&mut self, metadata: &Metadata) -> Result<Option<Bytes>, Error> {
        let mut body = b"\x05READY".to_vec();
        for (name, value) in metadata.iter() {
            body.put_u8(name.len() as u8);
            body.put_slice(name.as_bytes());
            body.put_u32(value.len() as u32);
            body.put_slice(value);
        }
        Ok(Some([&[4, u8::try_from(body.len()).expect("little metadata")][..], &body].concat().into()))
    }

    fn command(&mut self, body: Bytes, _: &Metadata) -> Result<Step, Error> {
        match Command::decode(body)? {
            Command::Ready(metadata) => Ok(Step::Done { send: None, metadata }),
            _ => Err(Error::UnexpectedInHandshake { found: String::new(), wanted: "READY" }),
        }
    }

    fn frame_seal(&mut self) -> Option<FrameSeal> {
        let (sealer, opener) = (Arc::new(Direction(0)), Box::new(Direction(0)));
        Some(FrameSeal {
            cipher: "XOR",
            overhead: OVERHEAD,
            first_number: 0,
            last_number: u64::MAX,
            sealed_here_bytes_max: 16 * 1024,
            opened_here_bytes_max: 128 * 1024,
            sealer,
            opener,
        })
    }
}

/// The number of the next frame to open.
#[derive(Debug)]
struct Direction(u64);

impl Direction {
    fn xor(&self, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte ^= (at as u64).wrapping_mul(31).wrapping_add(self.0).wrapping_add(165) as u8;
        }
    }
}

fn tag(bytes: &[u8]) -> u64 {
    bytes.iter().fold(14_695_981_039_346_656_037, |tag, byte| (tag ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211))
}

impl Sealer for Direction {
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]) {
        frame[8..16].copy_from_slice(&number.value().to_be_bytes());
        frame[16] = u8::from(flags.more) | u8::from(flags.command) << 1;
        Direction(number.value()).xor(&mut frame[16..]);
        let tag = tag(&frame[8..]);
        frame[..8].copy_from_slice(&tag.to_be_bytes());
    }
}

impl Opener for Direction {
    fn open(&mut self, mut sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error> {
        if sealed.len() < OVERHEAD || sealed.get_u64() != tag(&sealed) {
            return Err(Error::SealBroken);
        }
        let number = sealed.get_u64();
        if number != self.0 {
            return Err(Error::SealBroken);
        }
        Direction(number).xor(&mut sealed);
        self.0 = number + 1;
        let flags = sealed.get_u8();
        Ok((FrameFlags { more: flags & 1 != 0, command: flags & 2 != 0 }, sealed))
    }
}
