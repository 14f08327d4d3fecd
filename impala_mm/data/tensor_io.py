"""Arrays into TensorFlow by one copy and one operation: for what is done often.

`tf.constant` copies an array, so that later changes of it do not show, and once more where the copy
does not lie at a multiple of 64 bytes. And it takes a third of a millisecond whatever it copies,
where something else was in the processor's caches before. To call a tf.function costs more than a
small network does.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes: what begins at a multiple of it TensorFlow reads where it is


def pack(*arrays: np.ndarray) -> tf.Tensor:
    """Return the arrays' bytes, uint8 [N], each from a multiple of 64 on, for `unpack`."""
    *begins, end = _offsets([array.nbytes for array in arrays])
    memory = np.empty([end + _ALIGNMENT], np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    memory = memory[skip : skip + end]
    for begin, array in zip(begins, arrays, strict=True):
        memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return tf.experimental.dlpack.from_dlpack(memory.__dlpack__())


def packed_spec(specs: Sequence[tf.TensorSpec]) -> tf.TensorSpec:
    """Return the spec of what `pack` returns of arrays like these."""
    return tf.TensorSpec([_offsets([_num_bytes(spec) for spec in specs])[-1]], tf.uint8)


def unpack(raw: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Return, in a graph, the tensors of the arrays that were packed."""
    sizes = [_num_bytes(spec) for spec in specs]
    *begins, _ = _offsets(sizes)
    return [
        reinterpret(raw[begin : begin + size], spec.shape, spec.dtype)
        for begin, size, spec in zip(begins, sizes, specs, strict=True)
    ]


def reinterpret(raw: tf.Tensor, shape: Sequence[int | None], dtype: tf.DType) -> tf.Tensor:
    """Return bytes, uint8 [...], as a tensor; one of its sizes may be unknown."""
    sizes = [-1 if size is None else size for size in shape]
    if dtype == tf.bool:
        return tf.reshape(tf.cast(raw, tf.bool), sizes)
    if dtype.size == 1:
        return tf.reshape(tf.bitcast(raw, dtype), sizes)
    return tf.bitcast(tf.reshape(raw, [*sizes, dtype.size]), dtype)


def as_operation(concrete: Any) -> Callable[..., list[tf.Tensor]]:
    """Return a concrete function of flat tensors as one operation, without tf.function's own."""
    captured = concrete.captured_inputs
    kinds = [output.dtype for output in concrete.outputs]

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *captured], Tout=kinds, f=concrete
        )

    return call


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each part begins, and the end."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return list(itertools.accumulate(padded, initial=0))


def _num_bytes(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements()) * int(spec.dtype.size)
