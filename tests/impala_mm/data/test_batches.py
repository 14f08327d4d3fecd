"""Columns of batches are chosen, joined and padded, as arrays and as tensors."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec


def _batch(first, size=3):
    """Return a batch of 2 entries in which column i contains `first` + i everywhere."""
    value = np.arange(first, first + size)
    both = np.stack([value, value])
    flags = both < 0
    observation = {"x": np.stack([both, both], -1).astype(np.float32)}
    entries = Entry(both, both.astype(np.float32), flags, flags, observation, flags, ())
    return Batch(entries, (value,), value, np.ones(size, np.float32), value, value >= 0)


def _tensors(batch):
    return tf.nest.map_structure(tf.constant, batch)


def _same(left, right):
    for a, b in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("convert", [lambda batch: batch, _tensors])
def test_columns_and_join_undo_each_other(convert):
    whole = convert(_batch(0, 4))
    _same(batches.join([batches.columns(whole, [0, 1]), batches.columns(whole, [2, 3])]), whole)
    _same(batches.join([_tensors(_batch(0, 2)), _batch(2, 2)]), _batch(0, 4))
    chosen = batches.columns(whole, [3, 3, 1])
    assert np.asarray(chosen.unrolls.observation["x"])[1, :, 0].tolist() == [3, 3, 1]
    assert np.asarray(chosen.start[0]).tolist() == np.asarray(chosen.key).tolist() == [3, 3, 1]


def test_a_copy_of_arrays_is_independent_of_the_batch():
    batch = _batch(0)
    copied = batches.to_numpy(batch)
    batch.unrolls.reward[:] = 9
    _same(copied, _batch(0))
    _same(batches.to_numpy(_tensors(_batch(0))), _batch(0))


def test_replayed_and_padded_columns_do_not_count_as_played():
    padded = batches.padded(_batch(0), 5)
    assert padded.weight.tolist() == [1, 1, 1, 0, 0]
    with pytest.raises(ValueError, match="a batch of 3 columns cannot be padded to 2"):
        batches.padded(_batch(0), 2)
    assert padded.key.tolist() == [0, 1, 2, 2, 2]
    assert padded.played.tolist() == [True, True, True, False, False]
    joined = batches.join([_batch(0), batches.replayed(_batch(3))])
    assert joined.played.tolist() == [True] * 3 + [False] * 3


def _specs():
    """Return the spec of the unrolls of `_batch`."""
    leaf = [
        tf.TensorSpec([], t) for t in (tf.int64, tf.float32, tf.bool, tf.bool, tf.bool, tf.float32)
    ]
    entry = Entry(*leaf[:4], {"x": tf.TensorSpec([2], tf.float32)}, leaf[4], ())
    return UnrollSpec(1, 1, entry, (tf.TensorSpec([], tf.int64),))


def test_columns_are_stored_in_a_buffer_which_is_saved_and_restored(tmp_path):
    buffer = batches.zeros(_specs(), 5)
    batches.assign(buffer, [4, 0, 2], _tensors(_batch(7)))
    _same(batches.columns(buffer, [4, 0, 2]), _batch(7))
    assert buffer.weight.tolist() == [1, 0, 1, 0, 1], "columns without an unroll have weight 0"
    batches.save(buffer, tmp_path)
    again = batches.zeros(_specs(), 5)
    batches.restore(again, tmp_path)
    _same(again, buffer)
    with pytest.raises(ValueError, match=r"has shape \(2, 5\) .* now needed with shape \(2, 6\)"):
        batches.restore(batches.zeros(_specs(), 6), tmp_path)
