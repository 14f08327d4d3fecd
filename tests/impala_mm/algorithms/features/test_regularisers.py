"""Regularisers against NumPy and SciPy in float64: masked, joint, with costs and multipliers."""

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
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec
from tests.helpers.regularised import Regularised

ALONE = GradientReducer(group.SingleLearner(), Config())
KINDS = ("kl_pi_mu", "kl_mu_pi", "kl_ref_pi")
CHOICES = {
    "discrete": Discrete(5),
    "several": MultiDiscrete((3,), (2, 4, 3), (0, 0, 0)),
    "decisions": MultiBinary((2, 2)),
    "nest": {"a": (Discrete(3),), "b": MultiDiscrete((2,), (3, 2), (0, 0)), "c": MultiBinary((2,))},
}
NUMBERS = {
    "free": Box((2,), (-np.inf,) * 2, (np.inf,) * 2),
    "bounded": Box((2,), (-1.0, 0.0), (1.0, 5.0)),
    "one bound": Box((2,), (0.0, -np.inf), (np.inf, 0.5)),
}


def _ns(actions):
    """Return the numbers of choices of everything that is chosen at once."""
    return [n for part in actions.leaves for n in part.choices]


def _logits(actions, parameters):
    """Return the logits [..., n] of everything that is chosen at once, float64."""
    given, found = 0, []
    for part in actions.leaves:
        for n in part.choices:
            if isinstance(part, MultiBinary):
                one = parameters[..., given : given + 1]
                found.append(np.concatenate([np.zeros_like(one), one], -1))
                given += 1
            else:
                found.append(parameters[..., given : given + n])
                given += n
    return found


def _probabilities(actions, parameters, masks):
    """Return the probabilities of everything that is chosen at once, [..., n] each."""
    found = _logits(actions, parameters)
    if masks is None:
        return [special.softmax(x, -1) for x in found]
    each = np.split(masks, np.cumsum(_ns(actions))[:-1], -1)
    each = [m | ~m.any(-1, keepdims=True) for m in each]
    return [special.softmax(np.where(m, x, -np.inf), -1) for x, m in zip(found, each, strict=True)]


def _nested_masks(actions, masks):
    if masks is None:
        return ()
    sizes = [sum(part.choices) for part in actions.leaves]
    return actions.pack(np.split(masks, np.cumsum(sizes)[:-1], -1))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(list(CHOICES)),
    masked=st.booleans(),
    spread=st.sampled_from([0.1, 2.0, 20.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_divergences_and_entropy_of_choices_are_scipys(kind, masked, spread, seed):
    rng, actions = np.random.default_rng(seed), ActionSpec(CHOICES[kind])
    chosen = action_policies.choose(actions)
    mine, theirs = rng.normal(0, spread, (2, 4, 3, chosen.num_parameters))
    masks = rng.random((4, 3, sum(_ns(actions)))) < 0.6 if masked else None
    nested = _nested_masks(actions, masks)
    policy, other = (chosen.make(tf.constant(x), nested) for x in (mine, theirs))
    p, q = (_probabilities(actions, x, masks) for x in (mine, theirs))
    kl = sum(stats.entropy(a, b, axis=-1) for a, b in zip(p, q, strict=True))
    np.testing.assert_allclose(policy.kl(other), kl, rtol=1e-6, atol=1e-9)
    entropy = sum(stats.entropy(a, axis=-1) for a in p)
    np.testing.assert_allclose(policy.entropy(), entropy, rtol=1e-6, atol=1e-9)


def _check_gradient(compute, parameters):
    """Assert that the gradient is the one by central differences, in float64."""
    given = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.reduce_sum(compute(given))
    found = tape.gradient(total, given).numpy()
    assert np.isfinite(found).all()
    moves = 1e-5 * np.eye(parameters.size).reshape(-1, *parameters.shape)
    moved = compute(tf.constant(parameters + np.stack([moves, -moves]))).numpy()
    up, down = moved.reshape(2, parameters.size, -1).sum(-1)
    np.testing.assert_allclose(found.ravel(), (up - down) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "box", "masked"),
    [
        *((kind, "clipped", masked) for kind in ("several", "nest") for masked in (False, True)),
        ("decisions", "clipped", False),
        *((kind, box, False) for kind in NUMBERS for box in action_policies.BOX_POLICIES),
    ],
)
def test_gradients_of_divergences_are_those_by_differences(kind, box, masked):
    rng, actions = np.random.default_rng(0), ActionSpec((CHOICES | NUMBERS)[kind])
    chosen = action_policies.choose(actions, box)
    mine, theirs = rng.normal(0, 1.2, (2, 2, chosen.num_parameters))
    masks = rng.random((2, sum(_ns(actions)))) < 0.6 if masked else None
    nested = _nested_masks(actions, masks)

    def other(x):
        return chosen.make(tf.broadcast_to(theirs, x.shape), nested)

    _check_gradient(lambda x: chosen.make(x, nested).kl(other(x)), mine)
    _check_gradient(lambda x: other(x).kl(chosen.make(x, nested)), mine)
    _check_gradient(lambda x: chosen.make(x, nested).entropy(), mine)


@pytest.mark.parametrize("box", action_policies.BOX_POLICIES)
@pytest.mark.parametrize("kind", NUMBERS)
def test_the_divergence_of_numbers_is_the_expected_difference_of_log_probabilities(kind, box):
    """Sampled 50,000 times; the standard error of the mean is the yardstick."""
    tf.random.set_seed(3)
    actions = ActionSpec(NUMBERS[kind])
    chosen = action_policies.choose(actions, box)
    mine = tf.constant([[0.4, -0.9, 0.3, 0.1]], tf.float64)
    theirs = tf.constant([[0.1, -0.2, 0.8, 0.2]], tf.float64)
    many = tf.repeat(mine, 50_000, 0)
    drawn = chosen.make(many).sample()
    gaps = chosen.make(many).log_prob(drawn) - chosen.make(theirs).log_prob(drawn)
    error = np.std(gaps) / np.sqrt(len(gaps))
    kl = float(chosen.make(mine).kl(chosen.make(theirs))[0])
    assert abs(np.mean(gaps) - kl) < 4 * error
    assert kl > 0.05


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from([*CHOICES, *NUMBERS]),
    box=st.sampled_from(action_policies.BOX_POLICIES),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_in_float32_no_divergence_is_negative_or_infinite(kind, box, spread, seed):
    rng, actions = np.random.default_rng(seed), ActionSpec((CHOICES | NUMBERS)[kind])
    chosen = action_policies.choose(actions, box)
    mine, theirs = rng.normal(0, spread, (2, 50, chosen.num_parameters)).astype("f")
    with tf.GradientTape() as tape:
        given = tf.constant(mine)
        tape.watch(given)
        policy, other = chosen.make(given), chosen.make(tf.constant(theirs))
        forwards, backwards = policy.kl(other), other.kl(policy)
    for divergence in (forwards, backwards):
        assert np.isfinite(divergence).all()
        assert (divergence.numpy() >= -2e-4 * (1 + np.abs(divergence))).all()
    np.testing.assert_allclose(policy.kl(policy), np.zeros(50), atol=1e-5)
    assert np.isfinite(tape.gradient([forwards, backwards], given)).all()


# The sum over a batch.

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
