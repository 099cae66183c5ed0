//! CURVE's keys, as bytes and as text: Z85 (RFC 32) and hex.

#[cfg(feature = "curve")]
mod secret_key;

#[cfg(feature = "curve")]
pub use secret_key::SecretKey;
use std::fmt::{self, Debug, Display, Formatter};
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;
const Z85_CHARACTERS: usize = KEY_BYTES / 4 * 5;
const HEX_CHARACTERS: usize = KEY_BYTES * 2;

/// The digits of Z85, by value.
const Z85: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// Text that is no key. It leaves the text out, which may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Neither 40 nor 64 characters.
    #[error("a key has 40 characters in Z85, or 64 in hex, and this has {0}")]
    Length(usize),
    /// 40 characters that are not Z85.
    #[error("it has 40 characters, but is not Z85")]
    NotZ85,
    /// 64 characters that are not hex.
    #[error("it has 64 characters, but is not hex")]
    NotHex,
}

/// A public key of CURVE. Displayed in Z85, read from Z85 or hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// In hex: 64 characters.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl From<[u8; KEY_BYTES]> for PublicKey {
    fn from(bytes: [u8; KEY_BYTES]) -> PublicKey {
        PublicKey(bytes)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        Ok(PublicKey(*key_bytes(text)?))
    }
}

impl Display for PublicKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&z85(&self.0))
    }
}

impl Debug for PublicKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

fn key_bytes(text: &str) -> Result<Zeroizing<[u8; KEY_BYTES]>, KeyError> {
    let text = text.as_bytes();
    match text.len() {
        Z85_CHARACTERS => from_z85(text).ok_or(KeyError::NotZ85),
        HEX_CHARACTERS => from_hex(text).ok_or(KeyError::NotHex),
        other => Err(KeyError::Length(other)),
    }
}

fn z85(bytes: &[u8; KEY_BYTES]) -> String {
    let digits = |four: &[u8]| {
        let number = four.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        [4, 3, 2, 1, 0].map(|place| char::from(Z85[(number / 85_u32.pow(place) % 85) as usize]))
    };
    bytes.chunks_exact(4).flat_map(digits).collect()
}

fn from_z85(text: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    for (four, five) in bytes.chunks_exact_mut(4).zip(text.chunks_exact(5)) {
        let number = five.iter().try_fold(0_u32, |number, character| {
            let digit = Z85.iter().position(|digit| digit == character)?;
            number.checked_mul(85)?.checked_add(digit as u32)
        })?;
        four.copy_from_slice(&number.to_be_bytes());
    }
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let digit = |character: u8| char::from(character).to_digit(16);
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    for (byte, two) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(two[0])? << 4 | digit(two[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[cfg(feature = "curve")]
    #[test]
    fn keys_of_the_specification_are_read() {
        // The test keys of RFC 26's reference implementation.
        let public = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
        let secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
        let secret: SecretKey = secret.parse().unwrap();
        assert_eq!(secret.public_key().to_string(), public);
        let key: PublicKey = public.parse().unwrap();
        assert_eq!(key.to_hex(), "bb88471d65e2659b30c55a5321cebb5aab2b70a398645c26dca2b2fcb43fc518");
        assert_eq!(key.to_hex().parse(), Ok(key));
        assert_eq!(*secret.to_z85(), "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs");
        assert_eq!(format!("{secret:?} {key:?}"), format!("\"...\" {public}"));
    }

    #[test]
    fn text_that_is_no_key_is_refused() {
        let read = |text: &str| text.parse::<PublicKey>();
        assert_eq!(read(""), Err(KeyError::Length(0)));
        assert_eq!(read(&"0".repeat(39)), Err(KeyError::Length(39)));
        assert_eq!(read(&"~".repeat(40)), Err(KeyError::NotZ85));
        // 85^5 is over 2^32.
        assert_eq!(read(&"#".repeat(40)), Err(KeyError::NotZ85));
        assert_eq!(read(&"g".repeat(64)), Err(KeyError::NotHex));
    }

    proptest! {
        #[test]
        fn text_comes_back(bytes: [u8; KEY_BYTES]) {
            let key = PublicKey::from(bytes);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
            prop_assert_eq!(key.to_hex().to_uppercase().parse(), Ok(key));
        }
    }
}
