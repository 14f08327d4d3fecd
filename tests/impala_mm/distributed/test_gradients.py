"""Averaging, clipping and applying of gradients, compared with NumPy and exact numbers."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer


class Two(group.SingleLearner):
    """A group of two learners, of which the other one always contributes `other`."""

    size = 2

    def __init__(self, other):
        self._other = other

    def mean(self, tensors, name, compressed=False):
        return [(a + b) / 2 for a, b in zip(tensors, self._other, strict=True)]


def _step(gradients, clipping, learners=None, mode="global_norm"):
    """Return what apply() returned, and the step of plain gradient descent at rate 1."""
    variables = [tf.Variable(tf.zeros_like(g)) for g in gradients]
    config = Config(gradients_clipping=clipping, gradients_clipping_mode=mode)
    joined = GradientReducer(learners or group.SingleLearner(), config)
    applied = joined.apply(snt.optimizers.SGD(1.0), gradients, variables)
    return applied, [-v.numpy() for v in variables]


def test_gradients_are_averaged_over_learners_before_they_are_clipped():
    """Of (6, 0) and (0, 8) the mean is (3, 4), of norm 5, clipped to norm 1: (0.6, 0.8).

    Clipped before averaging it would be the mean of (1, 0) and (0, 1): (0.5, 0.5).
    """
    mine, other = [tf.constant([6.0, 0.0])], [tf.constant([0.0, 8.0])]
    applied, step = _step(mine, clipping=1.0, learners=Two(other))
    assert float(applied.norm) == pytest.approx(5.0)
    assert float(applied.clipped) == 1
    np.testing.assert_allclose(step[0], [0.6, 0.8], rtol=1e-6)


def test_a_negative_threshold_clips_nothing_and_zero_clips_all():
    gradients = [tf.constant([3.0, 4.0])]
    applied, step = _step(gradients, -1.0)
    np.testing.assert_allclose(step[0], [3.0, 4.0])
    assert float(applied.clipped) == 0
    np.testing.assert_allclose(_step(gradients, 0.0)[1][0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("mode", "limit", "step"),
    [
        ("variable_norm", 1.0, [[0.6, 0.8], [0.5]]),
        ("value", 1.0, [[1.0, 1.0], [0.5]]),
        ("value", 3.5, [[3.0, 3.5], [0.5]]),
        ("variable_norm", 6.0, [[3.0, 4.0], [0.5]]),
    ],
)
def test_clipping_by_variable_or_by_value(mode, limit, step):
    applied, steps = _step([tf.constant([3.0, 4.0]), tf.constant([0.5])], limit, mode=mode)
    for ours, theirs in zip(steps, step, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert float(applied.clipped) == (limit < 5 if mode == "variable_norm" else 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_applied_nowhere(bad):
    applied, steps = _step([tf.constant([1.0, bad]), tf.constant([1.0])], 40.0)
    assert not np.isfinite(float(applied.norm))
    for step in steps:
        np.testing.assert_array_equal(step, np.zeros_like(step))


finite = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(finite, min_size=1, max_size=4), min_size=1, max_size=4), st.floats(0.1, 50)
)
def test_clipping_by_global_norm_is_that_of_float64_numpy(values, clipping):
    gradients = [tf.constant(v, tf.float32) for v in values]
    exact = [np.asarray(v, np.float64) for v in values]
    norm = np.sqrt(sum((v**2).sum() for v in exact))
    applied, step = _step(gradients, clipping)
    assert float(applied.norm) == pytest.approx(norm, rel=1e-5, abs=1e-6)
    for ours, theirs in zip(step, exact, strict=True):
        np.testing.assert_allclose(
            ours, theirs * min(1.0, clipping / max(norm, 1e-30)), rtol=1e-5, atol=1e-6
        )
