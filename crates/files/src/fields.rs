//! Fields of fixed size, in the files that are kept on the disk.

/// Takes the first bytes; `None` if there are fewer.
pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}
