"""The bytes of an unroll: packed for the store, unpacked for a batch, and what they contain."""

import numpy as np
import tensorflow as tf

from impala_mm.data.compression import compress_lz4, decompress
from impala_mm.data.trajectory import Unroll, UnrollCodec


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
    return int((~_arrays(codec, content).entries.first[:, overlap:]).sum())


def holds_nan(codec: UnrollCodec, content: bytes) -> bool:
    """Return whether an unroll that was not packed contains NaN."""
    leaves = tf.nest.flatten(_arrays(codec, content))
    return any(np.isnan(leaf).any() for leaf in leaves if leaf.dtype.kind == "f")


def _arrays(codec: UnrollCodec, content: bytes | memoryview) -> Unroll:
    """Return the arrays of an unroll's bytes, with a leading axis of 1."""
    return codec.arrays(np.frombuffer(content, np.uint8)[np.newaxis])
