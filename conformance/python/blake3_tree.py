"""BLAKE3's tree in plain Python, slow and independent of the product: chaining values of subtrees, and how they merge."""

import struct

CHUNK_BYTES, BLOCK_BYTES = 1024, 64
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
MASK = 0xFFFFFFFF
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
# Columns, then diagonals.
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def compress(chaining: tuple, block: bytes, counter: int, flags: int) -> tuple:
    words = struct.unpack("<16I", block.ljust(BLOCK_BYTES, b"\0"))
    state = [*chaining, *IV[:4], counter & MASK, counter >> 32, len(block), flags]
    for _ in range(7):
        for quarter, (a, b, c, d) in enumerate(QUARTERS):
            for word, turn_d, turn_b in ((words[2 * quarter], 16, 12), (words[2 * quarter + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & MASK
                mixed = state[d] ^ state[a]
                state[d] = (mixed >> turn_d | mixed << (32 - turn_d)) & MASK
                state[c] = (state[c] + state[d]) & MASK
                mixed = state[b] ^ state[c]
                state[b] = (mixed >> turn_b | mixed << (32 - turn_b)) & MASK
        words = tuple(words[i] for i in PERMUTATION)
    return tuple(state[i] ^ state[i + 8] for i in range(8))


def chunk_value(chunk: bytes, counter: int) -> bytes:
    """Chaining value of one chunk of at most 1,024 bytes, not of the root."""
    blocks = [chunk[at : at + BLOCK_BYTES] for at in range(0, len(chunk), BLOCK_BYTES)] or [b""]
    value = IV
    for index, block in enumerate(blocks):
        flags = (CHUNK_START if index == 0 else 0) | (CHUNK_END if index == len(blocks) - 1 else 0)
        value = compress(value, block, counter, flags)
    return struct.pack("<8I", *value)


def parent_value(left: bytes, right: bytes, root: bool = False) -> bytes:
    return struct.pack("<8I", *compress(IV, left + right, 0, PARENT | (ROOT if root else 0)))


def merge(values: list[bytes], root: bool) -> bytes:
    """Merges the values of subtrees pairwise, left-complete: the left side has the largest power of two below all."""
    if len(values) == 1:
        return values[0]
    split = 1 << (len(values) - 1).bit_length() - 1
    return parent_value(merge(values[:split], False), merge(values[split:], False), root)


def subtree_value(data: bytes, offset: int) -> bytes:
    """Chaining value of a subtree at `offset` of the file, not of the root."""
    first = offset // CHUNK_BYTES
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    return merge([chunk_value(chunk, first + index) for index, chunk in enumerate(chunks)], False)
