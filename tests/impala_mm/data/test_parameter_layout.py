"""The acting variables as bytes."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.parts import optimizers
from impala_mm.data.variables import ParameterLayout


def _variables(seed):
    random = np.random.default_rng(seed)
    weights = tf.Variable(random.standard_normal([7, 3]).astype(np.float32), name="w")
    count = tf.Variable(np.float32(123_457.0 + seed), name="seen")  # a normaliser's, not trained
    steps = tf.Variable(np.int64(10**12 + seed))
    return [weights, count, steps], [weights]


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_what_is_packed_here_is_unpacked_there(wire):
    (here, trained), (there, trained_there) = _variables(1), _variables(2)
    mine = ParameterLayout(here, trained, wire)
    vector = mine.pack(mine.values())
    layout = ParameterLayout(there, trained_there, wire)
    assert len(vector) == layout.size == 7 * 3 * (2 if wire == "float16" else 4) + 4 + 8
    layout.assign_bytes(vector)
    weights = here[0].numpy()
    np.testing.assert_array_equal(there[0], weights.astype(wire).astype(np.float32))
    assert (there[0].numpy() == weights).all() == (wire == "float32")
    assert float(there[1]) == 123_458.0, "above what float16 holds"
    assert int(there[2]) == 10**12 + 1


def test_values_stay_what_they_were_whatever_becomes_of_the_variables():
    (here, trained), (there, trained_there) = _variables(1), _variables(2)
    layout = ParameterLayout(here, trained, "float32")
    values, vector = layout.values(), layout.pack(layout.values())
    optimizer = optimizers.make("adam", 0.1, 0.9, 0.0, 1e-5)
    optimizer.initialize([here[0]])
    optimizer.apply([tf.ones([7, 3])], [here[0]])  # in place, were nobody to hold the value
    here[1].assign_add(1.0)
    assert layout.pack(values) == vector != layout.pack(layout.values())
    other = ParameterLayout(there, trained_there, "float32")
    other.assign(values)
    assert other.pack(other.values()) == vector


def test_a_digest_names_the_layout_and_not_the_variables():
    digests = {ParameterLayout(*_variables(seed), "float32").digest for seed in range(3)}
    assert len(digests) == 1
    assert ParameterLayout(*_variables(0), "float16").digest not in digests
    variables, trained = _variables(0)
    assert ParameterLayout(variables[:2], trained, "float32").digest not in digests


def test_variables_keep_what_was_unpacked_when_the_next_vector_comes():
    (here, trained), (there, trained_there) = _variables(1), _variables(2)
    mine = ParameterLayout(here, trained, "float32")
    layout = ParameterLayout(there, trained_there, "float32")
    vectors, held = [], []
    for _ in range(3):
        here[0].assign_add(tf.ones([7, 3]))
        vectors.append(mine.pack(mine.values()))
        layout.assign_bytes(vectors[-1])
        held.append(layout.values())
    assert [layout.pack(values) for values in held] == vectors
    assert len(set(vectors)) == 3


@pytest.mark.parametrize("cut", [slice(None, -1), slice(0)])
def test_a_vector_of_another_size_is_refused_and_changes_nothing(cut):
    (here, trained), (there, trained_there) = _variables(1), _variables(2)
    vector = ParameterLayout(here, trained, "float32").pack(here)
    layout = ParameterLayout(there, trained_there, "float32")
    before = layout.pack(layout.values())
    for wrong in (vector[cut], vector + b"x"):
        with pytest.raises(ValueError, match=rf"{len(wrong)} bytes .* take {len(vector)}"):
            layout.assign_bytes(wrong)
    assert layout.pack(layout.values()) == before
