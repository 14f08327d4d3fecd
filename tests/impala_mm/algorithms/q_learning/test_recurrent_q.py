"""Recurrent Q-learning of tests/algorithms against loops in NumPy, in float64."""

import in_process
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import EnvironmentNumber
from impala_mm.data import batches
from impala_mm.data.trajectory import Entry
from tests.algorithms import recurrent_q
from tests.algorithms.recurrent_q_settings import Settings

T, B, A, GAMMA, STEPS = 7, 40, 3, 0.9, 3


def _entries():
    """Return entries [T+1, B] with resets that follow terminations and truncations, and masks."""
    random = np.random.default_rng(3)
    ends = random.integers(0, 8, [T + 1, B])
    terminated, truncated = ends == 0, ends == 1
    first = np.zeros([T + 1, B], bool)
    for t in range(1, T + 1):
        first[t] = terminated[t - 1] | truncated[t - 1]
        terminated[t] &= ~first[t]
        truncated[t] &= ~first[t]
    mask = random.random([T + 1, B, A]) < 0.6
    mask[..., 0] |= ~mask.any(-1)
    mask[terminated] = False  # no action is chosen there
    return Entry(
        action=random.integers(0, A, [T + 1, B]).astype(np.int32),
        reward=random.normal(size=[T + 1, B]).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        observation=(),
        first=first,
        extras=(),
        mask=mask,
    )


def _expected(values, future, e, weight):
    """Return the errors [T, B] by going on from each step for itself."""
    values, future = (x.astype(np.float64) for x in (values, future))

    def bootstrap(t, b):
        allowed = e.mask[t, b] if e.mask[t, b].any() else np.ones(A, bool)
        return future[t, b, max(np.flatnonzero(allowed), key=lambda a: values[t, b, a])]

    errors = np.zeros([T, B])
    for b in range(B):
        for t in range(T):
            if e.first[t + 1, b] or not weight[b]:
                continue
            target, factor, now = 0.0, 1.0, t
            while now < min(t + STEPS, T) and not e.first[now + 1, b]:
                now += 1
                target += factor * e.reward[now, b]
                factor *= 0.0 if e.terminated[now, b] else GAMMA
            if factor:
                target += factor * bootstrap(now, b)
            errors[t, b] = target - values[t, b, e.action[t + 1, b]]
    return errors


def test_errors_and_priorities_are_those_of_loops_in_float64():
    random, e = np.random.default_rng(4), _entries()
    values, future = random.normal(size=[2, T + 1, B, A]).astype(np.float32)
    weight = random.uniform(0.1, 1.0, B).astype(np.float32)
    weight[:3] = 0
    errors, live = recurrent_q.td_errors(
        *map(tf.constant, (values, future)),
        tf.nest.map_structure(tf.constant, e),
        tf.constant(weight),
        GAMMA,
        STEPS,
    )
    expected = _expected(values, future, e, weight)
    np.testing.assert_allclose(errors, expected, atol=2e-6)
    np.testing.assert_array_equal(live, ~e.first[1:] & (weight > 0))
    assert 0.1 < (~live.numpy()).mean() < 0.5
    for b, priority in enumerate(recurrent_q.priorities_of(errors, live).numpy()):
        size = np.abs(expected[live.numpy()[:, b], b])
        right = 0.9 * size.max() + 0.1 * size.mean() if size.size else 0.0
        assert priority == pytest.approx(right, abs=2e-6)


@pytest.fixture(scope="module")
def algorithm():
    return in_process.make(
        Settings(
            algorithm="tests.algorithms.recurrent_q",
            level_name="memory",
            replay_capacity=6,
            replayed=4,
            burn_in=2,
            batch_size=2,
        )
    )


def test_epsilons_are_apex_schedule_and_the_smallest_one_outside_of_a_run(algorithm):
    among = EnvironmentNumber(tf.range(5), tf.constant(5))
    expected = 0.4 ** (1 + 7 * np.arange(5) / 4)
    np.testing.assert_allclose(algorithm._epsilon(among), expected, rtol=1e-5)
    alone = EnvironmentNumber(tf.zeros([2], tf.int32), tf.constant(1))
    np.testing.assert_allclose(algorithm._epsilon(alone), 0.4**8, rtol=1e-5)


def test_burn_in_passes_the_state_and_no_gradient(algorithm):
    random = np.random.default_rng(5)
    held = batches.zeros(algorithm.unroll, 2)
    held.unrolls.observation[:] = random.random(held.unrolls.observation.shape)
    held.unrolls.first[1] = True
    entries = tf.nest.map_structure(tf.constant, held.unrolls)
    start = tf.nest.map_structure(
        lambda x: tf.constant(random.random(x.shape), tf.float32), held.start
    )
    observation = entries.observation
    with tf.GradientTape() as tape:
        tape.watch(observation)
        seen = entries._replace(observation=observation)
        values = algorithm._online.unroll(seen, start, 2)
    gradient = tape.gradient(values, observation).numpy()
    assert not gradient[:2].any()
    assert gradient[2:].any()
    state = start
    for t, now in enumerate(tf.nest.map_structure(tf.unstack, entries.first)):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], entries)
        found, state = algorithm._online.step(entry._replace(first=now), state)
        if t >= 2:
            np.testing.assert_allclose(values[t - 2], found, atol=1e-5)


class Fresh:
    """A source of batches of two unrolls with their numbers as rewards."""

    def __init__(self, unroll):
        self._unroll, self._number = unroll, 0

    def next(self, timeout):
        batch = batches.zeros(self._unroll, 2)
        batch.unrolls.reward[:] = self._number + np.arange(2)
        self._number += 2
        return batch._replace(weight=np.ones(2, np.float32), fresh=np.ones(2, bool))


def test_replay_draws_by_priority_and_resumes_with_all_that_it_holds(algorithm, tmp_path):
    source = algorithm.source(Fresh(algorithm.unroll))
    for _ in range(4):  # unrolls 6 and 7 overwrite 0 and 1
        batch = source.next(1.0)
        assert batch.fresh.tolist() == [True] * 2 + [False] * 4
        assert batch.weight.max() == 1.0
        assert batch.unrolls.reward[0].tolist() == batch.key.tolist()
    source.feedback(np.arange(8), np.array([99.0, 99, 3, 1, 1, 1, 1, 1]))
    source.save(tmp_path)
    again = algorithm.source(Fresh(algorithm.unroll))
    again.restore(tmp_path)
    assert again._priorities.tolist() == [1, 1, 3, 1, 1, 1], "0 and 1 were overwritten"
    drawn = [again._draw() for _ in range(1000)]
    keys = np.concatenate([batch.key for batch in drawn])
    assert set(keys) == {2, 3, 4, 5, 6, 7}
    share = 3**0.9 / (3**0.9 + 5)
    assert (keys == 2).mean() == pytest.approx(share, abs=0.03)
    mixed = next(batch for batch in drawn if 0 < (batch.key == 2).sum() < 4)
    relative = mixed.weight[mixed.key == 2][0] / mixed.weight[mixed.key != 2][0]
    assert relative == pytest.approx(3 ** (-0.9 * 0.6), rel=1e-5)
    assert again.next(1.0).key[:2].tolist() == [8, 9]
