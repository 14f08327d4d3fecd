"""Compression of unrolls and steps before they are sent; the frames of a game repeat themselves.

An actor compresses what it sends as --compression says. The learner (`transport.endpoints`,
`inference`) knows the size that the content has when it is not compressed: content of that size is
used as it is, shorter content is decompressed. So each actor may choose for itself, and no content,
however it was made, takes more memory than that size when it is decompressed.
"""

from collections.abc import Callable

import lz4.block

Compress = Callable[[bytes], bytes]


def leave_uncompressed(content: bytes) -> bytes:
    """Return the content as it is."""
    return content


def compress_lz4(content: bytes) -> bytes:
    """Return the content as an LZ4 block, or as it is if the block would not be shorter."""
    packed = lz4.block.compress(content, store_size=False)
    return packed if len(packed) < len(content) else content


COMPRESSORS: dict[str, Compress] = {
    "none": leave_uncompressed,
    "lz4": compress_lz4,
}  # by --compression


def decompress(content: bytes, size: int) -> bytes | None:
    """Return the `size` bytes that an actor compressed; None if the content is not that."""
    if len(content) == size:
        return content
    try:
        # `size` limits the memory. The block itself holds no size, so it cannot claim a larger one.
        raw = lz4.block.decompress(content, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        return None
    return raw if len(raw) == size else None
