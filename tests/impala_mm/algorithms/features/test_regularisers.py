"""Regularisers against SciPy in float64: their sum over a batch, with costs and multipliers."""

import math

import in_threads
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from impala_mm.algorithms.feature_settings import RegulariserSettings
from impala_mm.algorithms.parts import action_policies, losses
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from tests.helpers.regularised import Regularised

ALONE = GradientReducer(group.SingleLearner(), Config())
KINDS = ("kl_pi_mu", "kl_mu_pi", "kl_ref_pi")

ACTIONS = ActionSpec(Discrete(4))


def _batch(seed, t=5, b=4):
    """Return (parameters of pi, mu and the reference, live, weight); column 1 weighs nothing."""
    rng = np.random.default_rng(seed)
    parameters = rng.normal(0, 1, (3, t, b, 4)).astype("f")
    weight = np.array([1.0, 0.0, 0.5, 2.0], "f")[:b]
    live = (rng.random((t, b)) < 0.7) & (weight > 0)
    return *parameters, live, weight


def _expected(batch):
    """Return by quantity the values [T, B], in float64."""
    pi, mu, reference = (special.softmax(x.astype(float), -1) for x in batch[:3])
    return {
        "entropy": stats.entropy(pi, axis=-1),
        "kl_pi_mu": stats.entropy(pi, mu, axis=-1),
        "kl_mu_pi": stats.entropy(mu, pi, axis=-1),
        "kl_ref_pi": stats.entropy(reference, pi, axis=-1),
    }


def _measure(made, batch, reduction="sum", fresh=None):
    pi, mu, reference, live, weight = batch
    policy, make = action_policies.categorical(tf.constant(pi)), action_policies.categorical
    given = tf.constant(mu), tf.constant(reference), tf.constant(live), tf.constant(weight)
    return made.measure(policy, make, *given, reduction, fresh)


@settings(max_examples=20, deadline=None)
@given(
    costs=st.tuples(*[st.sampled_from([0.0, 0.3, 2.0])] * 4),
    reduction=st.sampled_from(losses.REDUCTIONS),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loss_is_the_sum_of_the_terms_times_their_costs(costs, reduction, seed):
    names = ("entropy", *KINDS)
    config = RegulariserSettings(**{f"{n}_cost": c for n, c in zip(names, costs, strict=True)})
    batch = _batch(seed)
    *_, live, weight = batch
    measured = _measure(Regularised(config, ACTIONS), batch, reduction)
    values, size = _expected(batch), live.size if reduction == "mean" else 1
    sums = {n: np.sum(np.where(live, v, 0) * weight) / size for n, v in values.items()}
    loss = sum(
        cost * (-1 if n == "entropy" else 1) * sums[n] for n, cost in zip(names, costs, strict=True)
    )
    assert float(measured.loss) == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert float(measured.entropy) == pytest.approx(-sums["entropy"], rel=1e-4, abs=1e-6)
    assert {float(count) for count in measured.counts.values()} == {live.sum()}
    for name, total in measured.totals.items():
        expected = np.sum(np.where(live, values[name], 0))
        assert float(total) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    used = {name for name, cost in zip(names, costs, strict=True) if cost}
    assert set(measured.totals) == used | {"entropy"}


def test_gradients_flow_into_the_policy_alone_and_dead_columns_may_hold_anything():
    config = RegulariserSettings(kl_pi_mu_cost=1.0, kl_mu_pi_cost=1.0, kl_ref_pi_cost=1.0)
    made, batch = Regularised(config, ACTIONS), _batch(1)
    live, weight = batch[3:]

    def make(parameters):
        return action_policies.categorical(losses.mask(live, parameters))

    def measure(pi, mu, reference):
        return made.measure(make(pi), make, mu, reference, live, weight, "sum")

    variables = [tf.Variable(x) for x in batch[:3]]
    with tf.GradientTape(persistent=True) as tape:
        measured = measure(*variables)
    pi, *_ = tape.gradient(measured.loss, variables)
    assert (np.abs(pi).sum(-1) > 0)[live].all()
    assert not np.asarray(pi)[~live].any()
    dead = [np.where(live[..., None], x, np.nan) for x in batch[:3]]
    assert measure(*dead).loss.numpy() == measured.loss.numpy()
    assert tape.gradient(measured.totals["kl_mu_pi"], variables) == [None] * 3


def test_replayed_columns_do_not_draw_the_policy_back_to_what_played_them():
    """Their entropy and their divergence from the reference count."""
    config = RegulariserSettings(**{f"target_{name}": 1.0 for name in KINDS}, entropy_cost=0.5)
    made, batch = Regularised(config, ACTIONS), _batch(4)
    *_, live, weight = batch
    new = np.array([False, True, True, False])[: len(weight)]
    counted = {name: live & new if "mu" in name else live for name in ("entropy", *KINDS)}
    measured = _measure(made, batch, fresh=tf.constant(new))
    values = {n: np.where(counted[n], v, 0) for n, v in _expected(batch).items()}
    loss = sum(np.sum(values[n] * weight) * (-0.5 if n == "entropy" else 1) for n in values)
    assert float(measured.loss) == pytest.approx(loss, rel=1e-4)
    metrics = made.update(measured, ALONE)
    for name in KINDS:
        mean = values[name].sum() / counted[name].sum()
        assert float(metrics[name]) == pytest.approx(mean, rel=1e-4)
    alone = made.update(_measure(made, batch, fresh=tf.constant(new & False)), ALONE)
    assert np.isnan(alone["kl_mu_pi"])
    assert np.isfinite([variable.numpy() for variable in made.variables]).all()


@pytest.mark.parametrize(
    ("settings", "initial"),
    [
        ({"target_entropy": 1.0, "entropy_cost": 0.3}, 0.3),
        ({"target_entropy": 1.0, "entropy_cost": 0.0}, 0.01),
        ({"target_kl_pi_mu": 0.1, "kl_pi_mu_cost": 7.0}, 7.0),
        ({"target_kl_pi_mu": 0.1}, 1.0),
    ],
)
def test_a_multiplier_starts_at_the_fixed_cost(settings, initial):
    (log,) = Regularised(RegulariserSettings(**settings), ACTIONS).variables
    assert math.exp(log.numpy()) == pytest.approx(initial, rel=1e-5)


@pytest.mark.parametrize("name", ["entropy", *KINDS])
@pytest.mark.parametrize("side", [-0.1, 0.1, None])
def test_a_cost_moves_towards_its_target_from_either_side(name, side):
    """The mean over live steps counts, whatever the columns weigh; a target of 0 is one."""
    batch = _batch(3)
    mean = _expected(batch)[name][batch[3]].mean()
    target = 0.0 if side is None else mean + side
    config = RegulariserSettings(**{f"target_{name}": target})
    made = Regularised(config, ACTIONS)
    metrics = made.update(_measure(made, batch), ALONE)
    if name != "entropy":
        assert float(metrics[name]) == pytest.approx(mean, rel=1e-4)
    before = float(metrics[f"{name}_cost"])
    assert before == pytest.approx(0.005 if name == "entropy" else 1.0)
    (log,) = made.variables
    expected = np.clip((mean - target) / (target or 1.0), -1, 1) * (-1 if name == "entropy" else 1)
    expected *= config.multiplier_speed
    assert log.numpy() - math.log(before) == pytest.approx(expected, rel=1e-3)


def test_several_learners_move_their_costs_by_the_mean_over_all_steps():
    config = RegulariserSettings(target_kl_mu_pi=0.3, target_entropy=1.2, multiplier_speed=0.5)
    batch = _batch(5)

    def learn(group):
        mine = np.split(np.arange(4), [1])[group.rank] if group.size > 1 else np.arange(4)
        made, exchange = Regularised(config, ACTIONS), GradientReducer(group, Config())
        for _ in range(3):
            exchange.begin(0)
            columns = [x[:, mine] for x in batch[:4]] + [batch[4][mine]]
            made.update(_measure(made, columns), exchange)
        return in_threads.arrays(made.variables)

    in_threads.assert_several_are_one(learn, tolerance=1e-5)


def test_an_entropy_that_no_policy_reaches_is_refused():
    with pytest.raises(UserMistake, match="--target_entropy=2: no policy of Discrete"):
        Regularised(RegulariserSettings(target_entropy=2.0), ACTIONS)
    with pytest.raises(ValueError, match="--target_entropy=inf"):
        RegulariserSettings(target_entropy=math.inf)
