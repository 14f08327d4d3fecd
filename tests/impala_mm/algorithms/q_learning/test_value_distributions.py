"""The mathematics of C51 and IQN against loops in NumPy, in float64, and their properties."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special

from impala_mm.algorithms.q_learning import value_distributions
from impala_mm.algorithms.q_learning.settings import ActionValueSettings
from impala_mm.algorithms.q_learning.value_distributions import (
    Categorical,
    Expected,
    Outcomes,
    Quantiles,
)

FINITE = st.floats(-1e3, 1e3)
softmax = partial(special.softmax, axis=-1)


def _projected(values, probabilities, atoms):
    """Return the projection by loops over outcomes, as the publication's algorithm 1 has it."""
    found, step = np.zeros(len(atoms)), (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for value, probability in zip(values, probabilities, strict=True):
        place = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / step
        below, above = int(np.floor(place)), min(int(np.floor(place)) + 1, len(atoms) - 1)
        found[below] += probability * (1 - (place - below))
        found[above] += probability * (place - below)
    return found


@given(
    values=arrays.arrays(np.float64, st.integers(1, 12), elements=FINITE),
    num_atoms=st.integers(2, 20),
    least=st.floats(-50, 50),
    size=st.floats(0.1, 100),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_a_projection_is_that_of_the_published_loop(values, num_atoms, least, size, seed):
    atoms = np.linspace(least, least + size, num_atoms)
    probabilities = special.softmax(np.random.default_rng(seed).normal(size=len(values)))
    found = value_distributions.project(
        Outcomes(tf.constant(values), tf.constant(probabilities)), tf.constant(atoms)
    ).numpy()
    np.testing.assert_allclose(found, _projected(values, probabilities, atoms), atol=1e-9)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    mean = (probabilities * np.clip(values, atoms[0], atoms[-1])).sum()
    assert (found * atoms).sum() == pytest.approx(mean, rel=1e-9, abs=1e-7)


def test_outcomes_at_the_atoms_are_not_changed_also_in_float32():
    atoms = np.linspace(-10, 10, 51)
    kind = Categorical(51, -10, 10)
    numbers = tf.constant(np.random.default_rng(0).normal(size=[40, 51]), tf.float32)
    outcomes = kind.outcomes(numbers)
    found = value_distributions.project(outcomes, tf.constant(atoms, tf.float32))
    np.testing.assert_allclose(found, softmax(numbers), atol=2e-6)
    np.testing.assert_allclose(kind.mean(numbers), softmax(numbers) @ atoms, atol=1e-5)
    np.testing.assert_allclose(kind.losses(numbers, (), outcomes), 0.0, atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 3.0, 300.0]))
@settings(max_examples=25, deadline=None)
def test_the_categorical_loss_is_the_divergence_with_the_gradient_of_the_cross_entropy(seed, scale):
    random = np.random.default_rng(seed)
    atoms, logits = np.linspace(-2, 3, 6), scale * random.normal(size=[4, 6])
    values, probabilities = (
        random.normal(size=[4, 5]) * 3,
        softmax(random.normal(size=[4, 5])),
    )
    numbers = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        losses = Categorical(6, -2, 3).losses(
            numbers, (), Outcomes(tf.constant(values), tf.constant(probabilities))
        )
    goals = np.array([_projected(*row, atoms) for row in zip(values, probabilities, strict=True)])
    expected = (-special.entr(goals) - goals * special.log_softmax(logits, -1)).sum(-1)
    np.testing.assert_allclose(losses, expected, atol=1e-8)
    assert (losses.numpy() > -1e-9).all()
    np.testing.assert_allclose(tape.gradient(losses, numbers), softmax(logits) - goals, atol=1e-8)


def _quantile_loss(quantiles, levels, values, probabilities, delta):
    """Return the loss of equation 3 of IQN's publication, by loops."""
    total = 0.0
    for quantile, level in zip(quantiles, levels, strict=True):
        for value, probability in zip(values, probabilities, strict=True):
            error = value - quantile
            size = abs(error)
            if delta:
                inside = size <= delta
                size = (error**2 / 2 if inside else delta * (size - delta / 2)) / delta
            total += probability * abs(level - (error < 0)) * size
    return total


@given(
    seed=st.integers(0, 2**32 - 1),
    delta=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    counts=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
@settings(max_examples=40, deadline=None)
def test_the_quantile_loss_is_that_of_loops(seed, delta, counts):
    random = np.random.default_rng(seed)
    (n, m), rows = counts, 3
    quantiles, levels = random.normal(size=[rows, n]) * 2, random.random([rows, n])
    values, probabilities = (
        random.normal(size=[rows, m]),
        softmax(random.normal(size=[rows, m])),
    )
    found = Quantiles(delta).losses(
        *map(tf.constant, (quantiles, levels)),
        Outcomes(tf.constant(values), tf.constant(probabilities)),
    )
    expected = [
        _quantile_loss(*row, delta)
        for row in zip(quantiles, levels, values, probabilities, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("delta", [1.0, np.inf])
def test_the_mean_alone_has_the_loss_of_its_error(delta):
    kind, numbers = Expected(delta), tf.constant([[1.0], [4.0]])
    outcomes = Outcomes(tf.constant([[1.0, 2.0], [0.0, 2.0]]), tf.constant([[0.5, 0.5]] * 2))
    error = np.array([0.5, -3.0])
    squares = error**2 / 2
    expected = squares if delta == np.inf else [0.125, 2.5]
    np.testing.assert_allclose(kind.losses(numbers, (), outcomes), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["none", "categorical", "quantiles"])
def test_the_outcomes_of_each_kind_have_its_mean(kind):
    numbers = tf.constant(np.random.default_rng(1).normal(size=[5, 3, 1 if kind == "none" else 9]))
    made = value_distributions.make(
        ActionValueSettings(
            value_distribution=kind, huber_delta=1.0, num_atoms=9, v_min=-4.0, v_max=2.0
        )
    )
    outcomes = made.outcomes(numbers)
    np.testing.assert_allclose(outcomes.mean(), made.mean(numbers), rtol=1e-9)
    np.testing.assert_allclose(tf.reduce_sum(outcomes.probabilities, -1), 1.0)
