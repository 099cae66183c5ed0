//! The secret half of a key.

use super::{KEY_BYTES, KeyError, PublicKey, key_bytes, z85};
use crate::crypto::{Crypto, Dryoc};
use crate::random::Random;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A secret key of CURVE: hidden in debug output, and overwritten when its last clone is dropped.
#[derive(Clone)]
pub struct SecretKey(Arc<Zeroizing<[u8; KEY_BYTES]>>);

impl SecretKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// Those of the source of randomness.
    pub fn generate(random: &Random) -> io::Result<SecretKey> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        random.fill(&mut *bytes)?;
        Ok(SecretKey(Arc::new(bytes)))
    }

    /// The public key that belongs to it.
    pub fn public_key(&self) -> PublicKey {
        PublicKey(Dryoc::public_key(self.as_bytes()))
    }

    /// In Z85: 40 characters. For the file of the key, and nothing else.
    pub fn to_z85(&self) -> Zeroizing<String> {
        Zeroizing::new(z85(self.as_bytes()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<SecretKey, KeyError> {
        Ok(SecretKey(Arc::new(key_bytes(text)?)))
    }
}

impl Debug for SecretKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"...\"")
    }
}
