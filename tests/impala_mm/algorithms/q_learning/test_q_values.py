"""The mathematics of Q-learning against loops in NumPy, in float64; shares of random actions."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.interface import EnvironmentNumber
from impala_mm.algorithms.q_learning import epsilon
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.algorithms.q_learning.values import Rule
from impala_mm.data.trajectory import Entry

T, B, GAMMA = 9, 30, 0.9


def _entries():
    """Return entries [T+1, B] with lost lives, and resets that follow other ends."""
    random = np.random.default_rng(3)
    ends = random.integers(0, 9, [T + 1, B])
    lost = ends == 2
    terminated, truncated = (ends == 0) | lost, ends == 1
    first = np.zeros([T + 1, B], bool)
    for t in range(1, T + 1):
        first[t] = (terminated[t - 1] & ~lost[t - 1]) | truncated[t - 1]
        for flags in (terminated, truncated, lost):
            flags[t] &= ~first[t]
    return Entry(
        action=np.zeros([T + 1, B]).astype(np.int32),
        reward=random.normal(size=[T + 1, B]),
        terminated=terminated,
        truncated=truncated,
        observation=(),
        first=first,
        extras=(),
    )


def _h(x, epsilon):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x if epsilon else x


def _inverse(y, epsilon):
    """Return what `_h` makes y of, by bisection."""
    if not epsilon:
        return y
    low, high = -1e9, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _h(middle, epsilon) < y else (low, middle)
    return middle


def _expected(future, e, weight, rule):
    """Return the targets [T, B, N] by going on from each step for itself, and their entries."""
    targets, entries = np.zeros([T, *future.shape[1:]]), np.zeros([T, B], int)
    for b in range(B):
        for t in range(T):
            if e.first[t + 1, b] or not weight[b]:
                continue
            target, factor, now = 0.0, 1.0, t
            while now < min(t + rule.n_steps, T) and not e.first[now + 1, b]:
                now += 1
                target += factor * e.reward[now, b]
                factor *= 0.0 if e.terminated[now, b] else GAMMA
            for n, value in enumerate(future[now, b]):
                following = factor * _inverse(value, rule.rescaling) if factor else 0.0
                targets[t, b, n] = _h(target + following, rule.rescaling)
            entries[t, b] = now
    return targets, entries


@pytest.mark.parametrize(
    ("rule", "outcomes"),
    [(Rule(GAMMA), 1), (Rule(GAMMA, 3), 4), (Rule(GAMMA, 20), 1), (Rule(GAMMA, 5, 1e-3), 4)],
)
def test_targets_are_those_of_loops(rule, outcomes):
    random, e = np.random.default_rng(4), _entries()
    future = tf.constant(random.normal(size=[T + 1, B, outcomes]) * 3)
    probabilities = random.dirichlet(np.ones(outcomes), [T + 1, B])
    weight = random.uniform(0.1, 1.0, B).astype(np.float32)
    weight[:3] = 0
    with tf.GradientTape() as tape:
        tape.watch(future)
        found, live = q_values.find_targets(
            Outcomes(future, tf.constant(probabilities)),
            tf.nest.map_structure(tf.constant, e),
            tf.constant(weight),
            rule,
        )
    assert tape.gradient(found, future) is None
    future = future.numpy()
    np.testing.assert_array_equal(live, ~e.first[1:] & (weight > 0))
    assert 0.1 < (~live.numpy()).mean() < 0.5
    played = live.numpy()
    expected, entries = _expected(future, e, weight, rule)
    np.testing.assert_allclose(found.values[played], expected[played], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(tf.reduce_sum(found.probabilities, -1), 1.0)
    followed = ~e.terminated[entries, np.arange(B)] & played  # else all outcomes are the same
    np.testing.assert_allclose(
        found.probabilities[followed], probabilities[entries, np.arange(B)][followed]
    )


def test_copies_side_by_side_are_averaged_or_mixed():
    x = np.random.default_rng(2).normal(size=[3, 4, 5])
    copies = tf.concat([x, x + 1.0, x + 2.0], 1)
    np.testing.assert_allclose(q_values.mean_of_copies(copies, 3), x + 1.0)
    np.testing.assert_array_equal(q_values.repeat(tf.constant(x), 2)[:, 4:], x)
    mixed = q_values.mixture(Outcomes(copies, tf.ones_like(copies) / 5), 3)
    assert mixed.values.shape == (3, 4, 15)
    np.testing.assert_allclose(mixed.mean(), x.mean(-1) + 1.0)
    np.testing.assert_array_equal(mixed.values[..., 5:10], x + 1.0)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 1.0])
def test_rescaling_is_undone_to_1e_6_of_any_value(epsilon):
    random = np.random.default_rng(5)
    x = np.concatenate([[0.0], *(random.normal(size=500) * 10.0**k for k in range(-8, 9))])
    y = q_values.rescale(tf.constant(x), epsilon)
    np.testing.assert_allclose(y, _h(x, epsilon), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(q_values.restore(y, epsilon), x, rtol=1e-9, atol=0)
    assert (np.diff(y.numpy()[np.argsort(x)]) >= 0).all()
    single = tf.constant(x, tf.float32)
    found = q_values.restore(q_values.rescale(single, epsilon), epsilon)
    np.testing.assert_allclose(found, single, rtol=1e-6, atol=0)


@settings(deadline=None)
@given(st.floats(-1e12, 1e12), st.floats(1e-5, 1))
def test_rescaling_is_undone_whatever_the_value_and_epsilon(x, epsilon):
    y = q_values.rescale(tf.constant(x, tf.float64), epsilon)
    found = float(q_values.restore(y, epsilon))
    assert abs(found - x) <= 1e-6 * max(abs(x), 1e-300)


def test_a_priority_mixes_the_largest_size_and_the_mean_of_the_live_ones():
    sizes = tf.constant([[1.0, 0.0, 0.0], [4.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    live = tf.constant([[True, False, True], [True, False, True], [False, False, True]])
    found = q_values.priorities(sizes, live, 0.9)
    expected = [0.9 * 4 + 0.1 * 2.5, 0.0, 0.9 * 0.5 + 0.1 * 0.5 / 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("count", [2, 5, 32])
def test_the_ladder_is_that_of_r2d2(count):
    among = EnvironmentNumber(tf.range(count), tf.constant(count))
    expected = 0.4 ** np.linspace(1, 8, count)
    np.testing.assert_allclose(epsilon.of_ladder(among, 0.4), expected, rtol=1e-5)


def test_a_single_environment_has_the_middle_of_the_ladder():
    alone = EnvironmentNumber(tf.zeros([2], tf.int32), tf.constant(1))
    np.testing.assert_allclose(epsilon.of_ladder(alone, 0.4), 0.4**4.5, rtol=1e-5)


def test_the_share_falls_in_a_line_and_stays():
    found = [epsilon.decayed(tf.constant(f), 1.0, 0.2, 100.0) for f in (0.0, 50.0, 100.0, 1e6)]
    np.testing.assert_allclose(found, [1.0, 0.6, 0.2, 0.2], rtol=1e-6)
    assert float(epsilon.decayed(tf.constant(0.0), 1.0, 0.2, 0.0)) == pytest.approx(0.2)


def test_random_actions_have_their_share_and_respect_masks():
    tf.random.set_seed(1)
    n = 20_000
    values = tf.tile([[0.0, 3.0, 1.0, 2.0]], [n, 1])
    mask = tf.tile([[True, False, True, True]], [n, 1])
    shares = tf.repeat([0.0, 0.6], n // 2)
    found = epsilon.choose(values, mask, shares).numpy()
    assert (found[: n // 2] == 3).all(), "the best that is allowed"
    counts = np.bincount(found[n // 2 :], minlength=4) / (n // 2)
    np.testing.assert_allclose(counts, [0.2, 0.0, 0.2, 0.6], atol=0.02)


def test_the_best_values_are_measured_where_steps_are_live_and_compared_where_there_is_a_second():
    never = -np.inf
    values = np.float32([[[1, 3, 2.5]], [[9, 9, 0]], [[never, 4, never]]])  # [T, B, A]
    live = np.array([[True], [False], [True]])
    double = lambda x: 2 * x  # noqa: E731 - the unit of rewards
    found = q_values.best(tf.constant(values), tf.constant(live), double)
    np.testing.assert_allclose(found, [7, 8, 1])
    np.testing.assert_allclose(q_values.best(values, live & False, double), [0, np.nan, np.nan])
    first = np.array([[True], [False], [False]])
    one = q_values.best(tf.constant(values[..., :1] + 1), tf.constant(first), double)
    np.testing.assert_allclose(one, [4, 4, np.nan])
