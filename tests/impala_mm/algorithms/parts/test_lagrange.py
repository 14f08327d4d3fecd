"""Lagrange multipliers against NumPy, and on several learners."""

import in_threads
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.algorithms.parts.lagrange import Multiplier
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


def test_a_target_is_a_finite_number():
    for target in (np.inf, np.nan):
        with pytest.raises(ValueError, match="the target of kl_cost is"):
            Multiplier("kl_cost", target, 1.0, 0.1)


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
    assert len(set(costs)) == 1
    assert costs[0] == pytest.approx(float(one.cost()), rel=1e-5)
    assert costs[0] != pytest.approx(1.0, rel=0.1)
