"""Fast ways to bring arrays into TensorFlow and to call a function, for code that runs often.

`pack` brings several arrays into TensorFlow with one copy and one operation. `tf.constant` copies
each array, and copies it again if the copy does not start at a multiple of 64 bytes; and each call
takes a third of a millisecond, whatever the size, if its code and data are not in the processor's
caches. The overhead of calling a tf.function exceeds the time of a small network; `as_operation`
avoids it.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes; TensorFlow reads memory without a copy if it starts at a multiple


def pack(*arrays: np.ndarray) -> tf.Tensor:
    """Return the bytes of the arrays, uint8 [N], for `unpack`; each starts at a multiple of 64."""
    *begins, end = _offsets([array.nbytes for array in arrays])
    memory = np.empty([end + _ALIGNMENT], np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    memory = memory[skip : skip + end]
    for begin, array in zip(begins, arrays, strict=True):
        memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return tf.experimental.dlpack.from_dlpack(memory.__dlpack__())


def packed_spec(specs: Sequence[tf.TensorSpec]) -> tf.TensorSpec:
    """Return the spec of the tensor that `pack` makes from arrays with these specs."""
    return tf.TensorSpec([_offsets([_num_bytes(spec) for spec in specs])[-1]], tf.uint8)


def unpack(raw: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Return the arrays that were packed as tensors; for use in a graph."""
    sizes = [_num_bytes(spec) for spec in specs]
    *begins, _ = _offsets(sizes)
    return [
        reinterpret(raw[begin : begin + size], spec.shape, spec.dtype)
        for begin, size, spec in zip(begins, sizes, specs, strict=True)
    ]


def reinterpret(raw: tf.Tensor, shape: Sequence[int | None], dtype: tf.DType) -> tf.Tensor:
    """Return bytes, uint8 of any shape, as a tensor; one size in `shape` may be None."""
    sizes = [-1 if size is None else size for size in shape]
    if dtype == tf.bool:
        return tf.reshape(tf.cast(raw, tf.bool), sizes)
    if dtype.size == 1:
        return tf.reshape(tf.bitcast(raw, dtype), sizes)
    return tf.bitcast(tf.reshape(raw, [*sizes, dtype.size]), dtype)


def as_operation(concrete: Any, frozen: bool = False) -> Callable[..., list[tf.Tensor]]:
    """Return a callable that runs a concrete function of flat tensors as one operation.

    With `frozen`, it computes with copies of the variables, as they are now.

    It skips the checks and conversions that a call of the tf.function itself makes. If it fails, it
    is called again as a tf.function, whose error names the line that made the operation.
    """
    captured = concrete.captured_inputs
    copies = {id(v.handle): tf.Variable(v) for v in concrete.graph.variables if frozen}
    captured = [copies[id(c)].handle if id(c) in copies else c for c in captured]
    kinds = [output.dtype for output in concrete.outputs]

    def call(_: Any, *tensors: tf.Tensor) -> list[tf.Tensor]:
        try:
            return tf.raw_ops.StatefulPartitionedCall(
                args=[*tensors, *captured], Tout=kinds, f=concrete
            )
        except tf.errors.OpError:
            concrete(*tensors)
            raise

    return functools.partial(call, copies)  # handles alone would not keep them


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return the offset of each part, and the end of the last one."""
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return list(itertools.accumulate(padded, initial=0))


def _num_bytes(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements()) * int(spec.dtype.size)
