//! Random bytes of the operating system.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use towpath_zmtp::Random;

/// The operating system's source of random bytes, for the keys and nonces of CURVE.
pub fn system_random() -> Random {
    Random::new(|mut bytes| {
        while !bytes.is_empty() {
            match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(filled) => bytes = &mut bytes[filled..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    })
}
