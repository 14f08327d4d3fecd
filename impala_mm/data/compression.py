"""Compression of unrolls and steps before they are sent; frames of a game compress well.

--compression names how an actor compresses what it sends. The learner (`transport.delivery`,
`inference`) knows the uncompressed size: it uses content of that size as it is, and decompresses
shorter content. So each actor may use another compression, and no content, not even a malicious
one, takes more memory than that size when it is decompressed.
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


# By the values of --compression.
COMPRESSORS: dict[str, Compress] = {"none": leave_uncompressed, "lz4": compress_lz4}


def decompress(content: bytes | memoryview, size: int) -> bytes | None:
    """Return the `size` bytes that an actor compressed; None if the content is something else."""
    if len(content) == size:
        return bytes(content)
    try:
        # `size` limits the memory. The block itself holds no size, so it cannot claim a larger one.
        raw = lz4.block.decompress(content, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        return None
    return raw if len(raw) == size else None
