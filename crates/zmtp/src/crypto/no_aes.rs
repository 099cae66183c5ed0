//! The place of the second cipher where it isn't compiled in: it has no keys.

use super::{SharedKey, Tag};

pub(crate) type AesNonce = [u8; 12];

/// Whether this crate has the second cipher, and this processor instructions for it: not without the feature `aes`.
pub fn has_aes_instructions() -> bool {
    false
}

#[derive(Debug)]
pub(crate) enum AesKey {}

impl AesKey {
    pub(crate) fn derive(_: &SharedKey, _: &[u8], _: &[u8]) -> Option<AesKey> {
        None
    }

    pub(crate) fn seal(&self, _: AesNonce, _: &mut [u8]) -> Tag {
        match *self {}
    }

    pub(crate) fn open(&self, _: AesNonce, _: &mut [u8], _: &Tag) -> bool {
        match *self {}
    }
}
