"""Unrolls and steps made small for the wire: frames of a game are mostly repetition.

An actor compresses what it sends as --compression says. Its learner knows the size of what is due
(`transport.endpoints`, `inference`): content of that size is as it was, shorter content
is compressed. So each actor chooses for itself, nothing is compared, and whatever is sent, no more
than that size is ever made of it.
"""

from collections.abc import Callable

import lz4.block

Compress = Callable[[bytes], bytes]


def leave_uncompressed(content: bytes) -> bytes:
    """Not compressed."""
    return content


def compress_lz4(content: bytes) -> bytes:
    """An LZ4 block, or the content itself where that is no shorter."""
    packed = lz4.block.compress(content, store_size=False)
    return packed if len(packed) < len(content) else content


COMPRESSORS: dict[str, Compress] = {
    "none": leave_uncompressed,
    "lz4": compress_lz4,
}  # by --compression


def decompress(content: bytes, size: int) -> bytes | None:
    """The `size` bytes that an actor packed; None where this cannot be them."""
    if len(content) == size:
        return content
    try:
        # `size` limits the memory; with no size in the block there is none to be believed.
        raw = lz4.block.decompress(content, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        return None
    return raw if len(raw) == size else None
