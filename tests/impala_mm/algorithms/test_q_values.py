"""The mathematics of Q-learning against loops in NumPy, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms import q_values
from impala_mm.algorithms.q_values import Errors, Rule
from impala_mm.data.trajectory import Entry

T, B, A, GAMMA = 9, 60, 3, 0.9


def _entries(with_masks):
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
    mask = random.random([T + 1, B, A]) < 0.6
    mask[..., 0] |= ~mask.any(-1)
    mask[terminated] = False  # no action is chosen there
    return Entry(
        action=random.integers(0, A, [T + 1, B]).astype(np.int32),
        reward=random.normal(size=[T + 1, B]),
        terminated=terminated,
        truncated=truncated,
        observation=(),
        first=first,
        extras=(),
        mask=mask if with_masks else (),
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


def _expected(values, future, e, weight, rule):
    """Return the errors [T, B], by going on from each step for itself."""

    def bootstrap(t, b):
        allowed = np.ones(A, bool)
        if not isinstance(e.mask, tuple) and e.mask[t, b].any():
            allowed = e.mask[t, b]
        judged = values if rule.double else future
        best = max(np.flatnonzero(allowed), key=lambda a: judged[t, b, a])
        return _inverse(future[t, b, best], rule.rescaling)

    errors = np.zeros([T, B])
    for b in range(B):
        for t in range(T):
            if e.first[t + 1, b] or not weight[b]:
                continue
            target, factor, now = 0.0, 1.0, t
            while now < min(t + rule.n_steps, T) and not e.first[now + 1, b]:
                now += 1
                target += factor * e.reward[now, b]
                factor *= 0.0 if e.terminated[now, b] else GAMMA
            if factor:
                target += factor * bootstrap(now, b)
            errors[t, b] = _h(target, rule.rescaling) - values[t, b, e.action[t + 1, b]]
    return errors


@pytest.mark.parametrize("with_masks", [False, True])
@pytest.mark.parametrize(
    "rule",
    [Rule(GAMMA), Rule(GAMMA, 3), Rule(GAMMA, 20, double=False), Rule(GAMMA, 5, True, 1e-3)],
)
def test_errors_are_those_of_loops(rule, with_masks):
    random, e = np.random.default_rng(4), _entries(with_masks)
    values, future = random.normal(size=[2, T + 1, B, A]) * 3
    weight = random.uniform(0.1, 1.0, B).astype(np.float32)
    weight[:3] = 0
    error, live = q_values.find_errors(
        *map(tf.constant, (values, future)),
        tf.nest.map_structure(tf.constant, e),
        tf.constant(weight),
        rule,
    )
    expected = _expected(values, future, e, weight, rule)
    np.testing.assert_allclose(error, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(live, ~e.first[1:] & (weight > 0))
    assert 0.1 < (~live.numpy()).mean() < 0.5


def test_only_the_values_of_the_chosen_actions_have_a_gradient():
    random, e = np.random.default_rng(4), _entries(False)
    values, future = map(tf.constant, random.normal(size=[2, T + 1, B, A]))
    with tf.GradientTape() as tape:
        tape.watch([values, future])
        found = q_values.find_errors(
            values, future, tf.nest.map_structure(tf.constant, e), tf.ones([B]), Rule(GAMMA, 2)
        )
    of_values, of_future = tape.gradient(found.error, [values, future])
    assert of_future is None
    chosen = np.eye(A)[e.action[1:]] * found.live.numpy()[..., None]
    np.testing.assert_array_equal(of_values[:-1], -chosen)
    assert not of_values[-1].numpy().any()


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 1.0])
def test_rescaling_is_undone_to_1e_6_of_any_value(epsilon):
    random = np.random.default_rng(5)
    x = np.concatenate([[0.0], *(random.normal(size=2000) * 10.0**k for k in range(-8, 9))])
    y = q_values.rescale(tf.constant(x), epsilon)
    np.testing.assert_allclose(y, _h(x, epsilon), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(q_values.restore(y, epsilon), x, rtol=1e-9, atol=0)
    assert (np.diff(y.numpy()[np.argsort(x)]) >= 0).all()
    single = tf.constant(x, tf.float32)
    found = q_values.restore(q_values.rescale(single, epsilon), epsilon)
    np.testing.assert_allclose(found, single, rtol=1e-6, atol=0)


def test_a_priority_mixes_the_largest_error_and_the_mean_of_the_live_ones():
    error = tf.constant([[1.0, 0.0, 0.0], [-4.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    live = tf.constant([[True, False, True], [True, False, True], [False, False, True]])
    found = q_values.priorities(Errors(error, live), 0.9)
    expected = [0.9 * 4 + 0.1 * 2.5, 0.0, 0.9 * 0.5 + 0.1 * 0.5 / 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
