"""The bytes of an unroll: packed for the store, unpacked for a batch, and counted in steps."""

import numpy as np

from impala_mm.data.compression import compress_lz4, decompress
from impala_mm.data.trajectory import UnrollCodec


def pack(content: bytes) -> bytes:
    """Return an unroll's bytes as they are stored."""
    return compress_lz4(content)


def unpack(content: bytes | memoryview, size: int) -> bytes:
    """Return the `size` bytes of an unroll that was packed, or never was."""
    found = decompress(content, size)
    if found is None:
        raise ValueError(f"a stored unroll of {len(content)} bytes is none of {size} bytes")
    return found


def count_steps(codec: UnrollCodec, content: bytes | memoryview, overlap: int) -> int:
    """Return the steps of an unroll that was not packed: its new entries without resets."""
    entries, _ = codec.arrays(np.frombuffer(content, np.uint8)[np.newaxis])
    return int((~entries.first[:, overlap:]).sum())
