//! Inspects the place of a file: the file itself, or a partial file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use towpath_buffers::PageBuffer;

use super::cancel::Cancelled;
use super::destination::{Destination, check_in_the_way, in_the_way};
use super::lock::{Unclaimed, claim, open_own};
use super::partial::{Log, io_error, root_error, stat_of};
use super::state::{self, Header, State};
use crate::digest::{Digest, LEAF_BYTES_MIN, Leaf, LeafHasher, LeafSize, merge_leaves};
use crate::path::RelPath;
use crate::protocol::control::Range;
use crate::root::{Dir, FileKind, FileStat, RootError};
use crate::transfer::names::partial_names;
use crate::transfer::{DiskError, Found, Partial, Version};

/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// Inspects the place of a file.
pub(super) fn inspect(
    destination: &Destination,
    local: &RelPath,
    listed: &Version,
    digest: Option<Digest>,
    cancelled: &Cancelled,
) -> Result<Found, DiskError> {
    let (verify, check) = (destination.options.verify, destination.options.check);
    let failed = |error: RootError| root_error("cannot inspect its path", &error);
    let Some((parent, name)) = local.split() else { return Err(failed(RootError::NotAFile)) };
    // Better an error now than when all of the file is here; the same for whatever else is in the way.
    let check_writable =
        || destination.check_writable(&parent).map_err(|error| root_error("cannot write into its directory", &error));
    let Some(dir) = destination.existing_dir(&parent).map_err(failed)? else {
        return check_writable().map(|()| Found::Nothing);
    };
    let existing = dir.existing(name).map_err(failed)?;
    if let Some(stat) = &existing
        && destination.installed.is_of_another(stat, local)
    {
        destination.claim(&dir, name, stat, local)?;
    }
    let known = existing.as_ref().and_then(|stat| destination.ledger.content(local, stat));
    match &existing {
        Some(stat) if stat.kind == FileKind::File && (stat.size, stat.modified) == (listed.size, listed.modified) => {
            if !destination.is_own(stat) {
                destination.notices.foreign_files.add(|| local.to_string());
            } else if !check
                && digest.is_none_or(|digest| known == Some(digest) || is_still(&dir, name, stat, digest, cancelled))
            {
                destination.placed(local, || Ok(*stat))?;
                // A name among several of one file is there by itself.
                if stat.links == 1 {
                    destination.claim(&dir, name, stat, local)?;
                }
                // Perhaps installed from a partial file just before its transfer was killed.
                if has_state(listed) {
                    clear_away(destination, &dir, listed, name);
                }
                let metadata = &destination.options.metadata;
                let is_other = stat.mode & 0o777 != metadata.file_mode(listed.mode);
                return Ok(Found::Same { touch: metadata.has_modes() && is_other });
            }
        }
        Some(stat) if stat.kind == FileKind::Dir && !is_empty_dir(&dir, name) => {
            return Err(in_the_way("a directory of this name"));
        }
        _ => check_in_the_way(existing.as_ref())?,
    }
    if let Some(stat) = &existing {
        destination.find_replaceable(&dir, name, stat, local, cancelled)?;
    }
    check_writable()?;
    if has_state(listed)
        && let Some((partial, stat)) = partial_of(destination, &dir, local, name, listed, cancelled)?
    {
        destination.note_partial(local, stat);
        return Ok(Found::Partial(partial));
    }
    clear_away(destination, &dir, listed, name);
    match existing {
        Some(stat)
            if stat.kind == FileKind::File && stat.size == listed.size && verify && destination.is_own(&stat) =>
        {
            // Its digest shows whether it has to be fetched.
            let digest = known.or_else(|| digest_of(&dir, name, cancelled).map(|(digest, _)| digest));
            Ok(digest.map_or(Found::Nothing, Found::SameSize))
        }
        Some(stat) if stat.kind == FileKind::File && has_state(listed) && verify && destination.is_own(&stat) => {
            Ok(Found::Older { bytes: stat.size })
        }
        _ => Ok(Found::Nothing),
    }
}

/// Whether partial files of it have a state. A file of one leaf is fetched again as a whole.
fn has_state(listed: &Version) -> bool {
    listed.size > LEAF_BYTES_MIN
}

/// Removes the leftovers of an earlier transfer, unless another one is writing them: nothing else would if the file
/// arrives in one piece. A state alone is looked for only if such a file may have one, as most haven't.
pub(super) fn clear_away(destination: &Destination, dir: &Dir, listed: &Version, name: &[u8]) {
    let (part_name, state_name) = partial_names(name);
    let part = claim(destination, dir, &part_name);
    if part.is_ok() || (has_state(listed) && matches!(part, Err(Unclaimed::Closed(RootError::NotFound)))) {
        remove(dir, &state_name);
    }
    if part.is_ok() {
        remove(dir, &part_name);
    }
}

fn remove(dir: &Dir, name: &[u8]) {
    match dir.remove_file(name) {
        Ok(()) | Err(RootError::NotFound) => {}
        Err(error) => tracing::warn!(%error, "cannot remove leftovers of a partial file"),
    }
}

fn is_empty_dir(dir: &Dir, name: &[u8]) -> bool {
    dir.open_dir(name).and_then(|dir| dir.entries(0)).is_ok_and(|entries| entries.is_empty())
}

/// Whether a file has a digest. What can't be read is fetched again.
pub(super) fn has_digest(dir: &Dir, name: &[u8], digest: Digest, cancelled: &Cancelled) -> bool {
    digest_of(dir, name, cancelled).is_some_and(|(found, _)| found == digest)
}

/// Whether a file has a digest, and is as it was.
fn is_still(dir: &Dir, name: &[u8], there: &FileStat, digest: Digest, cancelled: &Cancelled) -> bool {
    digest_of(dir, name, cancelled).is_some_and(|(found, stat)| found == digest && stat.same_content(there))
}

/// The digest of a file, and its metadata before and after. `None` if it can't be read, or changes meanwhile.
pub(super) fn digest_of(dir: &Dir, name: &[u8], cancelled: &Cancelled) -> Option<(Digest, FileStat)> {
    let (file, before) = dir.open_file(name).ok()?;
    let mut hasher = blake3::Hasher::new();
    read_range(&file, 0, before.size, &mut PageBuffer::default(), |bytes| {
        hasher.update(bytes);
        cancelled.count_piece()
    })
    .ok()?;
    let is_same = FileStat::try_from(&file).is_ok_and(|after| after.same_content(&before));
    is_same.then(|| (Digest(*hasher.finalize().as_bytes()), before))
}

/// The partial file of this version, with its metadata.
fn partial_of(
    destination: &Destination,
    dir: &Dir,
    local: &RelPath,
    name: &[u8],
    listed: &Version,
    cancelled: &Cancelled,
) -> Result<Option<(Partial, FileStat)>, DiskError> {
    let verify = destination.options.verify;
    let (part_name, state_name) = partial_names(name);
    let file = match claim(destination, dir, &part_name) {
        Ok(file) => file,
        Err(Unclaimed::Closed(_) | Unclaimed::Foreign) => return Ok(None),
        Err(Unclaimed::Taken(error)) => return Err(error),
    };
    let stat = stat_of(&file)?;
    let Ok(state_file) = open_own(destination, dir, &state_name) else { return Ok(None) };
    let cannot = |error: io::Error| io_error("cannot read the state of a partial file", &error);
    let Some(mut state) = state::read(&state_file).map_err(cannot)? else { return Ok(None) };
    let header = state.header;
    let version = (header.leaves.file_bytes(), header.modified, header.path);
    if version != (listed.size, listed.modified, Digest::of(local.as_bytes()).0) {
        return Ok(None);
    }
    let cut = leave_out_cut(&file, &mut state, stat.size)
        .map_err(|error| io_error("cannot shorten a partial file", &error))?;
    if cut {
        Log::write(dir, &state_name, &state)?;
    }
    // Written before a crash of the machine, cut off meanwhile, or never hashed: only what is hashed now can be
    // trusted.
    let trusted = header.boot == state::boot_id() && header.boot != [0; 16] && !may_be_cut(&header, &stat);
    if !trusted || (verify && !header.verified) {
        rehash(&file, &mut state, verify, cancelled).map_err(|error| io_error("cannot read a partial file", &error))?;
        Log::write(dir, &state_name, &state)?;
    }
    if !verify && is_known_to_be_wrong(&state) {
        return Ok(None);
    }
    let tail = tail_of(&state, stat.size).filter(|_| trusted && !header.sparse && !cut);
    let whole = state.whole.into_iter().collect();
    Ok(Some((Partial { digest: state.digest, leaves: header.leaves, whole, tail }, stat_of(&file)?)))
}

/// Whether it is complete, and doesn't match its digest. The server knows which leaf is wrong, but only a transfer
/// that verifies asks.
fn is_known_to_be_wrong(state: &State) -> bool {
    let values: Vec<Leaf> = state.whole.values().copied().collect();
    let is_whole = state.header.verified && values.len() as u64 == state.header.leaves.count();
    is_whole && state.digest.is_some_and(|digest| merge_leaves(&values) != Ok(digest))
}

/// Whether it takes less space than it has bytes: it was cut off and written on behind that, or its file system is a
/// thrifty one. Nothing can be found out without verified values of its leaves.
fn may_be_cut(header: &Header, stat: &FileStat) -> bool {
    header.verified && !header.sparse && stat.allocated < stat.size
}

/// Forgets leaves that another program has cut off. What lies before the end is as it was, except leaves that were
/// never written: so the file is cut to the end of the last complete leaf.
fn leave_out_cut(file: &File, state: &mut State, length: u64) -> io::Result<bool> {
    let leaves = state.header.leaves;
    let end = |leaf: u64| leaves.range(leaf).map_or(u64::MAX, |(offset, length)| offset + length);
    let claimed = state.whole.len();
    state.whole.retain(|leaf, _| end(*leaf) <= length);
    let is_cut = state.whole.len() < claimed;
    if is_cut {
        file.set_len(state.whole.keys().next_back().map_or(0, |leaf| end(*leaf)))?;
    }
    Ok(is_cut)
}

/// The part that is there of the leaf that was being written. Leaves are written from their beginning, and one that
/// was begun later makes the file longer: so this is the leaf that the file ends in, up to that end.
fn tail_of(state: &State, length: u64) -> Option<Range> {
    let leaves = state.header.leaves;
    let leaf = leaves.index_at(length.checked_sub(1)?);
    let (offset, leaf_length) = leaves.range(leaf).ok()?;
    let there = length - offset;
    (there < leaf_length && !state.whole.contains_key(&leaf)).then_some(Range { offset, length: there })
}

/// Hashes the leaves that are recorded as complete; those with another value are forgotten.
pub(super) fn rehash(file: &File, state: &mut State, verify: bool, cancelled: &Cancelled) -> io::Result<()> {
    let leaves = state.header.leaves;
    let recorded = std::mem::take(&mut state.whole);
    for (leaf, value) in recorded {
        let Some(hashed) = hash_leaf(file, leaves, leaf, cancelled)? else { continue };
        if !state.header.verified && verify {
            // Compared with the digest like any other, once all are there.
            state.whole.insert(leaf, hashed);
        } else if hashed == value {
            state.whole.insert(leaf, value);
        }
    }
    state.header.verified |= verify;
    state.header.boot = state::boot_id();
    Ok(())
}

fn hash_leaf(file: &File, leaves: LeafSize, leaf: u64, cancelled: &Cancelled) -> io::Result<Option<Leaf>> {
    let (Ok((offset, length)), Ok(mut hasher)) = (leaves.range(leaf), LeafHasher::new(leaves, leaf)) else {
        return Ok(None);
    };
    match read_range(file, offset, length, &mut PageBuffer::default(), |bytes| {
        let _ = hasher.update(bytes);
        cancelled.count_piece()
    }) {
        Ok(()) => Ok(hasher.finish().ok()),
        // A hole at the end that was never written.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a range of a file piece by piece, through a buffer that grows if need be.
pub(super) fn read_range(
    file: &File,
    offset: u64,
    length: u64,
    buffer: &mut PageBuffer,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let enough = READ_BYTES.min(usize::try_from(length).unwrap_or(READ_BYTES));
    buffer.resize(enough.max(buffer.len()));
    let (mut at, end) = (offset, offset.saturating_add(length));
    while at < end {
        let now = usize::try_from(end - at).unwrap_or(READ_BYTES).min(buffer.len());
        let piece = buffer.get_mut(..now).unwrap_or_default();
        file.read_exact_at(piece, at)?;
        take(piece)?;
        at += now as u64;
    }
    Ok(())
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
