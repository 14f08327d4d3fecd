"""Lagrange multipliers against NumPy, on toy problems, and on several learners."""

import in_threads
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from impala_mm.algorithms.parts.distributions import Categorical
from impala_mm.algorithms.parts.lagrange import LEAST, MOST, Multiplier
from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer

ALONE = GradientReducer(group.SingleLearner(), Config())


@settings(max_examples=20, deadline=None)
@given(
    target=st.sampled_from([0.0, 0.01, -3.0, 2.5]),
    initial=st.floats(1e-7, 1e7),
    speed=st.sampled_from([0.01, 0.3, 5.0]),
    raises=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_updates_are_numpys(target, initial, speed, raises, seed):
    multiplier = Multiplier("cost", target, initial, speed, raises)
    rng = np.random.default_rng(seed)
    log = np.log(np.clip(initial, 1e-6, 1e6))
    assert float(multiplier.cost()) == pytest.approx(np.exp(log), rel=1e-4)
    for total, count in zip(rng.normal(target, 3, 20), rng.integers(1, 5, 20), strict=True):
        multiplier.update(total, count, ALONE)
        error = total / count - target
        error /= abs(target) if target else 1
        log += speed * np.clip(error, -1, 1) * (-1 if raises else 1)
        log = np.clip(log, np.log(1e-6), np.log(1e6))
        assert float(multiplier.cost()) == pytest.approx(np.exp(log), rel=1e-4)


@pytest.mark.parametrize(("total", "count"), [(0.0, 0.0), (np.nan, 3.0), (np.inf, 3.0)])
def test_nothing_changes_without_a_finite_quantity(total, count):
    multiplier = Multiplier("cost", 0.5, 2.0, 1.0)
    mean = multiplier.update(total, count, ALONE)
    assert not np.isfinite(mean)
    assert float(multiplier.cost()) == pytest.approx(2.0)


def test_a_cost_stays_within_its_bounds_and_returns_from_them():
    multiplier = Multiplier("cost", 1.0, 1.0, 1.0)
    for quantity, bound in ((9.0, MOST), (0.0, LEAST)):
        for _ in range(60):
            multiplier.update(quantity, 1, ALONE)
        assert float(multiplier.cost()) == pytest.approx(bound, rel=1e-5)
    for _ in range(14):
        multiplier.update(2.0, 1, ALONE)
    assert float(multiplier.cost()) > 1


@pytest.mark.parametrize("target", [np.inf, -np.inf, np.nan])
def test_a_target_is_a_finite_number(target):
    with pytest.raises(ValueError, match="the target of kl_cost is"):
        Multiplier("kl_cost", target, 1.0, 0.1)


REWARDS = np.array([1.0, 0.7, 0.0, -0.5])


def _entropy_of(cost):
    return stats.entropy(special.softmax(REWARDS / cost))


def _trained(multiplier, term, sign, updates=4000, rate=2.0):
    """Return the final policy of a bandit with these rewards, and the mean of `term`."""
    logits = tf.Variable(tf.zeros([4]))

    def step(number, before):
        with tf.GradientTape() as tape:
            policy = Categorical(tf.convert_to_tensor(logits))
            quantity = term(policy)
            gain = tf.reduce_sum(tf.nn.softmax(logits) * REWARDS.astype("f"))
            loss = sign * multiplier.cost() * quantity - gain
        logits.assign_sub(rate * tape.gradient(loss, logits) / (1 + multiplier.cost()))
        multiplier.update(quantity, 1, ALONE)
        return number + 1, quantity

    @tf.function(autograph=False)
    def train():
        return tf.while_loop(lambda i, _: i < updates, step, (0, 0.0))[1]

    quantity = train()
    return special.softmax(logits.numpy()), float(quantity)


@pytest.mark.parametrize("target", [0.3, 0.9, 1.3])
def test_the_entropy_of_a_bandits_policy_ends_at_its_target(target):
    """The best policy of this entropy is a softmax of rewards; its temperature is the cost."""
    multiplier = Multiplier("entropy_cost", target, 0.1, 0.02, raises=True)
    policy, entropy = _trained(multiplier, Categorical.entropy, -1)
    assert entropy == pytest.approx(target, abs=2e-3)
    temperature = optimize.brentq(lambda cost: _entropy_of(cost) - target, 1e-3, 1e3)
    assert float(multiplier.cost()) == pytest.approx(temperature, rel=0.02)
    np.testing.assert_allclose(policy, special.softmax(REWARDS / temperature), atol=2e-3)


@pytest.mark.parametrize(("target", "speed"), [(0.05, 0.005), (0.5, 0.005), (0.0, 1.0)])
def test_a_divergence_ends_at_its_target_and_0_is_one(target, speed):
    start = Categorical(tf.constant([0.0, 1.0, 0.0, 0.5]))
    multiplier = Multiplier("kl_cost", target, 1.0, speed)
    _, divergence = _trained(multiplier, start.kl, 1)
    assert divergence == pytest.approx(target, abs=1e-3)
    if not target:
        assert float(multiplier.cost()) > 20


def test_a_limit_that_does_not_bind_costs_nothing():
    """The best policy has the entropy 0, which is above -1, and so the cost falls to LEAST."""
    multiplier = Multiplier("entropy_cost", -1.0, 1.0, 0.02, raises=True)
    _trained(multiplier, Categorical.entropy, -1, updates=1500)
    assert float(multiplier.cost()) == pytest.approx(LEAST, rel=1e-5)


def test_several_learners_hold_the_cost_of_one_with_all_values():
    rng = np.random.default_rng(0)
    values = rng.normal(1, 2, (20, 12))
    counts = [2, 7, 3]  # values of each learner

    def act(of):
        multiplier = Multiplier("cost", 0.7, 1.0, 0.2)
        exchange = GradientReducer(of, Config())
        for row in values:
            mine = np.split(row, np.cumsum(counts)[:-1])[of.rank]
            exchange.begin(0)
            multiplier.update(mine.sum(), len(mine), exchange)
        return float(multiplier.cost())

    one = Multiplier("cost", 0.7, 1.0, 0.2)
    for row in values:
        one.update(row.sum(), 12, ALONE)
    costs = in_threads.together(3, act)
    assert costs[0] == costs[1] == costs[2]
    assert costs[0] == pytest.approx(float(one.cost()), rel=1e-5)
    assert costs[0] != pytest.approx(1.0, rel=0.1)
