"""The bytes of an unroll: packed for the store, unpacked for a batch, and what they contain."""

from typing import Any

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


def is_trainable(codec: UnrollCodec, content: bytes) -> bool:
    """Return whether nothing in an unroll that was not packed would make an update not finite.

    Observations, rewards and the start must be finite. Nothing else may be NaN, but extras may be
    infinite, as the log-probability of what is forbidden is.
    """
    entries, start = unroll = _arrays(codec, content)
    finite = _floats([entries.observation, entries.reward, start])
    return all(np.isfinite(leaf).all() for leaf in finite) and not any(
        np.isnan(leaf).any() for leaf in _floats(unroll)
    )


def _floats(nest: Any) -> list[np.ndarray]:
    return [leaf for leaf in tf.nest.flatten(nest) if leaf.dtype.kind == "f"]


def _arrays(codec: UnrollCodec, content: bytes | memoryview) -> Unroll:
    """Return the arrays of an unroll's bytes, with a leading axis of 1."""
    return codec.arrays(np.frombuffer(content, np.uint8)[np.newaxis])
