//! AES-256-GCM, and keys for it by HKDF-SHA256: for frames between two ends of our own.

use super::{SharedKey, TAG_BYTES, Tag};
use ring::aead::{self, AES_256_GCM, Aad, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use std::fmt::{self, Debug, Formatter};

pub(crate) type AesNonce = [u8; aead::NONCE_LEN];

/// Whether this processor has instructions for AES and for GCM's multiplication. Without them AES-256-GCM is slower than CURVE's own cipher.
pub fn has_aes_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// A key of AES-256-GCM.
pub(crate) struct AesKey(Box<LessSafeKey>);

impl AesKey {
    /// The key that belongs to a purpose. `None`: never, since HKDF gives much more than one key's bytes.
    pub(crate) fn derive(secret: &SharedKey, salt: &[u8], purpose: &[u8]) -> Option<AesKey> {
        let secret = Salt::new(HKDF_SHA256, salt).extract(&secret.0[..]);
        let purpose = [purpose];
        let key = secret.expand(&purpose, &AES_256_GCM).ok()?;
        Some(AesKey(Box::new(LessSafeKey::new(UnboundKey::from(key)))))
    }

    /// Encrypts in place. A nonce must not be used twice with a key.
    pub(crate) fn seal(&self, nonce: AesNonce, text: &mut [u8]) -> Tag {
        let tag = self.0.seal_in_place_separate_tag(aead::Nonce::assume_unique_for_key(nonce), Aad::empty(), text);
        let tag = tag.ok().and_then(|tag| tag.as_ref().try_into().ok());
        tag.unwrap_or_else(|| {
            // Over 64 GiB, which limits exclude. Zeros leave in place of the text, with a tag that doesn't fit.
            text.fill(0);
            [0; TAG_BYTES]
        })
    }

    /// Checks the tag, in constant time, and decrypts in place. False if the tag is wrong; then `text` is of no use any more.
    #[must_use]
    pub(crate) fn open(&self, nonce: AesNonce, text: &mut [u8], tag: &Tag) -> bool {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place_separate_tag(nonce, Aad::empty(), (*tag).into(), text, 0..).is_ok()
    }
}

impl Debug for AesKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"...\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes_gcm::aead::AeadInPlace;
    use aes_gcm::{Aes256Gcm, KeyInit};
    use proptest::prelude::*;
    use std::sync::Arc;
    use zeroize::Zeroizing;

    fn shared(bytes: [u8; 32]) -> SharedKey {
        SharedKey(Arc::new(Zeroizing::new(bytes)))
    }

    fn key(bytes: [u8; 32]) -> AesKey {
        AesKey(Box::new(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).unwrap())))
    }

    #[test]
    fn another_implementation_derives_the_same_key() {
        // Computed by Python's `hmac`: HKDF (RFC 5869) of 32 × 0x0b, salt 0 to 12, purpose `purpose`.
        let derived = AesKey::derive(&shared([0x0b; 32]), &std::array::from_fn::<u8, 13, _>(|at| at as u8), b"purpose");
        let expected = [
            0xa6, 0xe9, 0x8e, 0x13, 0x33, 0x4b, 0x58, 0x67, 0x76, 0x3e, 0xd4, 0x52, 0x6b, 0xec, 0x52, 0xf1, 0x1f, 0xe8,
            0x8b, 0xca, 0x46, 0x03, 0x40, 0x5d, 0x90, 0x0e, 0x6c, 0x8b, 0x99, 0x18, 0x29, 0xb4,
        ];
        let (mut text, mut same) = (*b"a message", *b"a message");
        let tag = derived.unwrap().seal([7; 12], &mut text);
        assert_eq!(tag, key(expected).seal([7; 12], &mut same));
        assert_eq!(text, same);
    }

    proptest! {
        #[test]
        fn another_implementation_agrees(secret: [u8; 32], nonce: AesNonce, length in 0..70_000_usize, byte: u8) {
            let mut sealed = vec![byte; length];
            let mut theirs = sealed.clone();
            let tag = key(secret).seal(nonce, &mut sealed);
            let cipher = Aes256Gcm::new(&secret.into());
            let their_tag: Tag = cipher.encrypt_in_place_detached(&nonce.into(), b"", &mut theirs).unwrap().into();
            prop_assert_eq!(tag, their_tag);
            prop_assert!(sealed == theirs);
            prop_assert!(key(secret).open(nonce, &mut sealed, &tag));
            prop_assert!(sealed == vec![byte; length]);
        }

        #[test]
        fn a_flipped_bit_is_noticed(secret: [u8; 32], nonce: AesNonce, text in proptest::collection::vec(any::<u8>(), 1..300), at: usize, bit in 0..8_u32) {
            let mut sealed = text.clone();
            let mut tag = key(secret).seal(nonce, &mut sealed);
            let at = at % (TAG_BYTES + text.len());
            match at.checked_sub(TAG_BYTES) {
                None => tag[at] ^= 1 << bit,
                Some(at) => sealed[at] ^= 1 << bit,
            }
            prop_assert!(!key(secret).open(nonce, &mut sealed, &tag));
        }
    }
}
