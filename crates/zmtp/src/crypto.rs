//! The cryptography of CURVE: X25519, XSalsa20 and Poly1305, put together as NaCl's `crypto_box`, behind [`Crypto`]; and the second cipher of
//! our own ends, behind [`AesKey`].

#[cfg_attr(not(feature = "aes"), path = "crypto/no_aes.rs")]
mod aes;

pub use aes::has_aes_instructions;
pub(crate) use aes::{AesKey, AesNonce};

use dryoc::classic::{crypto_box, crypto_core};
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use zeroize::Zeroizing;

pub(crate) const KEY_BYTES: usize = 32;
pub(crate) const NONCE_BYTES: usize = 24;
/// Bytes by which a box is longer than its contents.
pub(crate) const TAG_BYTES: usize = 16;

pub(crate) type Nonce = [u8; NONCE_BYTES];
pub(crate) type Tag = [u8; TAG_BYTES];

/// A key that two sides share, computed from one's secret key and the other's public one.
#[derive(Clone)]
pub(crate) struct SharedKey(Arc<Zeroizing<[u8; KEY_BYTES]>>);

impl Debug for SharedKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"...\"")
    }
}

/// An implementation of the primitives.
pub(crate) trait Crypto {
    /// The public key of a secret key.
    fn public_key(secret: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES];
    /// The key that a secret key and another side's public key share; `None` for a public key with which it would be the same for all
    /// secrets (a point of low order).
    fn shared_key(secret: &[u8; KEY_BYTES], public: &[u8; KEY_BYTES]) -> Option<SharedKey>;
    /// Encrypts in place. A nonce must not be used twice with a key.
    fn seal(key: &SharedKey, nonce: &Nonce, text: &mut [u8]) -> Tag;
    /// Checks the tag, in constant time, then decrypts in place. False, with `text` as it was, if the tag is wrong.
    #[must_use]
    fn open(key: &SharedKey, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> bool;
}

/// The implementation in use.
pub(crate) struct Dryoc;

impl Crypto for Dryoc {
    fn public_key(secret: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        let mut public = [0; KEY_BYTES];
        crypto_core::crypto_scalarmult_base(&mut public, secret);
        public
    }

    fn shared_key(secret: &[u8; KEY_BYTES], public: &[u8; KEY_BYTES]) -> Option<SharedKey> {
        let key = crypto_box::crypto_box_beforenm(public, secret).ok()?;
        Some(SharedKey(Arc::new(Zeroizing::new(key))))
    }

    fn seal(key: &SharedKey, nonce: &Nonce, text: &mut [u8]) -> Tag {
        let mut tag = [0; TAG_BYTES];
        crypto_box::crypto_box_detached_afternm_inplace(text, &mut tag, nonce, &key.0);
        tag
    }

    fn open(key: &SharedKey, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> bool {
        crypto_box::crypto_box_open_detached_afternm_inplace(text, tag, nonce, &key.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crypto_secretbox::aead::AeadInPlace;
    use crypto_secretbox::{KeyInit, XSalsa20Poly1305};
    use proptest::prelude::*;

    fn key(bytes: [u8; KEY_BYTES]) -> SharedKey {
        SharedKey(Arc::new(Zeroizing::new(bytes)))
    }

    fn counting(from: u8) -> [u8; KEY_BYTES] {
        std::array::from_fn(|at| from + at as u8)
    }

    #[test]
    fn libsodium_agrees() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (alice, bob) = (counting(0), Dryoc::public_key(&counting(32)));
        assert_eq!(hex(&Dryoc::public_key(&alice)), "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f");
        assert_eq!(hex(&bob), "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254");
        let shared = Dryoc::shared_key(&alice, &bob).unwrap();
        assert_eq!(hex(&shared.0[..]), "429b61f5d96e37268dfc5114849d599c9ceabffdb68c1f52cd0499af30f5b377");
        let mut text = *b"a message";
        let tag = Dryoc::seal(&shared, &std::array::from_fn(|at| 64 + at as u8), &mut text);
        assert_eq!(hex(&[&tag[..], &text].concat()), "181279b1e0e5414b2674bb09288d8accdf152debbef95cb3c6");
    }

    #[test]
    fn points_of_low_order_are_refused() {
        let secret = [7; KEY_BYTES];
        let mut one = [0; KEY_BYTES];
        one[0] = 1;
        let mut minus_one = [0xff; KEY_BYTES];
        (minus_one[0], minus_one[31]) = (0xec, 0x7f);
        for point in [[0; KEY_BYTES], one, minus_one] {
            assert!(Dryoc::shared_key(&secret, &point).is_none(), "{point:?}");
        }
    }

    proptest! {
        #[test]
        fn both_sides_share_a_key(one: [u8; 32], other: [u8; 32], nonce: Nonce, text: Vec<u8>) {
            let shared = Dryoc::shared_key(&one, &Dryoc::public_key(&other)).unwrap();
            let same = Dryoc::shared_key(&other, &Dryoc::public_key(&one)).unwrap();
            let mut sealed = text.clone();
            let tag = Dryoc::seal(&shared, &nonce, &mut sealed);
            prop_assert!(Dryoc::open(&same, &nonce, &mut sealed, &tag));
            prop_assert_eq!(sealed, text);
        }

        #[test]
        fn another_implementation_agrees(secret: [u8; 32], nonce: Nonce, length in 0..70_000_usize, byte: u8) {
            let mut sealed = vec![byte; length];
            let mut theirs = sealed.clone();
            let tag = Dryoc::seal(&key(secret), &nonce, &mut sealed);
            let cipher = XSalsa20Poly1305::new(&secret.into());
            let their_tag: Tag = cipher.encrypt_in_place_detached(&nonce.into(), b"", &mut theirs).unwrap().into();
            prop_assert_eq!(tag, their_tag);
            prop_assert!(sealed == theirs);
        }

        #[test]
        fn a_flipped_bit_is_noticed(secret: [u8; 32], nonce: Nonce, text in proptest::collection::vec(any::<u8>(), 1..300), at: usize, bit in 0..8_u32) {
            let key = key(secret);
            let mut sealed = text.clone();
            let mut tag = Dryoc::seal(&key, &nonce, &mut sealed);
            let at = at % (TAG_BYTES + text.len());
            match at.checked_sub(TAG_BYTES) {
                None => tag[at] ^= 1 << bit,
                Some(at) => sealed[at] ^= 1 << bit,
            }
            let before = sealed.clone();
            prop_assert!(!Dryoc::open(&key, &nonce, &mut sealed, &tag));
            prop_assert_eq!(sealed, before);
        }
    }
}
