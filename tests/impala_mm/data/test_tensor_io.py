"""Arrays that are passed to TensorFlow arrive unchanged and stay unchanged."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from impala_mm.data.tensor_io import pack, packed_spec, reinterpret, unpack

_TYPES = [np.uint8, np.int8, np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64]
_ARRAYS = hnp.arrays(
    st.sampled_from(_TYPES), hnp.array_shapes(min_dims=0, max_dims=3, max_side=9), fill=st.nothing()
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_ARRAYS, min_size=1, max_size=4))
def test_what_is_taken_is_what_was_handed(arrays):
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
    raw = pack(*arrays)
    assert packed_spec(specs).is_compatible_with(raw)
    in_graph = tf.function(lambda raw: unpack(raw, specs), autograph=False)  # slices are no copies
    for array, found in [*zip(arrays * 2, [*unpack(raw, specs), *in_graph(raw)], strict=True)]:
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found.numpy(), array)


def test_what_was_handed_does_not_change_with_the_array_and_outlives_it():
    array = np.arange(100_000, dtype=np.int32)
    raws = [pack(array + turn) for turn in range(5)]
    kept = pack(array)
    array[:] = -1
    gc.collect()
    again = [pack(array) for _ in range(20)]  # where freed memory would be used again
    spec = [tf.TensorSpec([100_000], tf.int32)]
    for turn, raw in enumerate([*raws, kept]):
        expected = np.arange(100_000) + turn % 5
        np.testing.assert_array_equal(unpack(raw, spec)[0].numpy(), expected)
    assert len(again) == 20


def test_arrays_that_are_not_contiguous_are_handed_as_what_they_mean():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    (found,) = unpack(pack(array), [tf.TensorSpec([4, 3], tf.float32)])
    np.testing.assert_array_equal(found.numpy(), array)


@pytest.mark.parametrize("dtype", [tf.bool, tf.uint8, tf.float16])
def test_one_size_may_be_unknown(dtype):
    values = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype.as_numpy_dtype)
    raw = tf.constant(np.frombuffer(values.tobytes(), np.uint8).reshape(2, -1))
    np.testing.assert_array_equal(reinterpret(raw, [None, 3], dtype).numpy(), values)
