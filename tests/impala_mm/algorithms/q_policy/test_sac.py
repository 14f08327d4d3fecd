"""SAC: its updates against float64 computations, alone, on several learners and with a teacher."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.parts import normals
from impala_mm.algorithms.q_policy import actions as sac_actions
from impala_mm.algorithms.q_policy import algorithm as q_policy
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import ActionSpec
from impala_mm.replay.steps import SavedStepReplay
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import (
    DoubleCritic,
    DoublePolicy,
    RecurrentCritic,
    RecurrentPolicy,
)
from tests.helpers.in_process import tensors
from tests.helpers.in_threads import arrays

PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
# Two new unrolls of two steps, and two optimizer steps with eight columns each.
SMALL = {
    "batch_size": 2, "unroll_length": 2, "minibatch_steps": 8, "updates_per_step": 0.5,
    "mlp_sizes": "8,8", "precision": "float32", "reward_clipping": "none", "compile_updates": False,
}  # fmt: skip
TEACHER = {"teacher": "x", "teacher_method": "constant"}
B = 16


class Teacher:
    """A policy whose parameters are sums of the observations' numbers."""

    greedy = False

    def parameters(self, entries):
        seen = entries.observation
        return tf.stack([seen[..., 0] - seen[..., 1], 0.5 * seen[..., 2]], -1)


def _made(group=None, **settings):
    algorithm, exchange = in_process.made("sac", "Pendulum-v1", group=group, **SMALL | settings)
    if taught := algorithm.features.get(Distillation):
        taught.begin([Teacher()], 1)
    return algorithm, exchange


def _batch(algorithm, columns=B, length=1):
    """Return a batch with terminations, truncations, resets, and a column of padding."""
    batch = in_process.random_batch(algorithm, length + 1, columns)
    e = batch.unrolls
    e.terminated[1, 0] = e.truncated[1, 1] = e.first[1, 2] = True
    return batch._replace(fresh=np.arange(columns) < 4)


def _live(batch):
    return ~batch.unrolls.first[1] & (batch.weight > 0)


def _noise(self, noise=None):
    """Draw what depends on nothing but the means, so that learners' draws are those of one."""
    return self.mean + self.deviation * tf.sin(1e3 * tf.stop_gradient(self.mean))


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(q_policy, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(q_policy, "CriticNetwork", DoubleCritic)


def _fill(algorithm):
    in_process.fill(algorithm.variables.trained, algorithm._targets.trainable_variables)


def _box(low, high, *shape):
    count = math.prod(shape)
    return Box(shape, (low,) * count, (high,) * count)


def _zeros(algorithm, n, value=0.0):
    return tf.nest.map_structure(
        lambda spec: tf.fill([n, *spec.shape], tf.cast(value, spec.dtype)), algorithm.unroll.step
    )


def _clipped_entropy(mean, deviation):
    """Return the entropies of normal numbers that are clipped to [-1, 1], by trapezoids."""
    grid = np.linspace(-1, 1, 100_001)[:, None]
    log_density = -0.5 * ((grid - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    between = np.trapezoid(-np.exp(log_density) * log_density, grid, axis=0)
    beyond = [
        [0.5 * math.erfc(x) for x in (1 - sign * mean) / deviation / np.sqrt(2)] for sign in (1, -1)
    ]
    return between - sum(p * np.log(p) for p in np.maximum(beyond, 1e-300))


@pytest.mark.parametrize("box_policy", ["tanh", "clipped"])
def test_goals_are_soft_values_of_the_policys_next_action(double, monkeypatch, box_policy):
    """Of clipped actions the entropy is that of the bounds, too."""
    monkeypatch.setattr(normals.Normal, "sample", _noise)
    algorithm, _ = _made(temperature=0.3, discounting=0.9, box_policy=box_policy)
    _fill(algorithm)
    batch = _batch(algorithm)
    batch.unrolls.observation[:] *= 3.0
    batch, e, live = tensors(batch), tensors(batch.unrolls), _live(batch)
    noise = algorithm._draw_noise(batch, SingleLearner())
    part = q_policy.Part(e, q_policy.States((), ()), live[None], batch.weight, noise)
    found = algorithm._goals(part).numpy()[0]

    after = e.observation[1].numpy().astype(np.float64)
    policy = algorithm._policy.distribution.make(tf.constant(after @ algorithm._policy.layer.w))
    mean, deviation = policy.mean.numpy()[:, 0], policy.deviation.numpy()[:, 0]
    z = np.sin(1e3 * mean)
    drawn = mean + deviation * z
    if box_policy == "clipped":
        action, entropy = np.clip(drawn, -1, 1), _clipped_entropy(mean, deviation)
        assert 0 < np.mean(np.abs(drawn) > 1) < 1
    else:  # a normal number's entropy, and the slope of the hyperbolic tangent at the sample
        action = np.tanh(drawn)
        entropy = 0.5 + np.log(deviation) + 0.5 * np.log(2 * np.pi) + np.log(1 - action**2)
    inputs = np.concatenate([after, action[:, None], action[:, None] ** 2], -1)
    values = np.tanh(inputs @ algorithm._targets.layer.w.numpy()).min(-1)
    following = np.where(e.terminated[1], 0.0, values + 0.3 * entropy)
    expected = np.where(live, e.reward[1].numpy() + 0.9 * following, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("box_policy", "box"),
    [("clipped", _box(-2.0, 2.0, 1)), ("tanh", _box(-1.0, math.inf, 1))],
)
def test_the_gradient_of_a_clipped_policys_entropy_is_that_of_its_mass_at_the_bounds_too(
    box_policy, box
):
    """Of one sample's probability it would have the wrong sign where the mean is near a bound."""
    config = Config.of_algorithm("sac")(algorithm="sac", box_policy=box_policy)
    numbers = sac_actions.Numbers(config, types.SimpleNamespace(actions=ActionSpec(box)))
    zeros = types.SimpleNamespace(value=lambda action: tf.zeros(action.shape[:-1]))
    mean, deviation = tf.constant([[0.5], [0.9], [1.5]], tf.float64), tf.constant(0.2, tf.float64)
    bounds = np.array([-1.0]), np.array([1.0])
    with tf.GradientTape() as tape:
        tape.watch(mean)
        policy = normals.ClippedNormal(mean, deviation * tf.ones_like(mean), *bounds)
        soft = numbers.expect(policy, zeros, tf.random.stateless_normal([3, 1], [1, 2]))
        total = tf.reduce_sum(soft.entropy)
    found, step = tape.gradient(total, mean).numpy()[:, 0], 1e-4
    at = mean.numpy()[:, 0]
    expected = _clipped_entropy(at + step, 0.2) - _clipped_entropy(at - step, 0.2)
    np.testing.assert_allclose(found, expected / (2 * step), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "sign"),
    [
        ({"target_entropy": -5.0}, -1),
        ({"target_entropy": 5.0}, 1),
        ({"target_entropy": 0.0}, -1),  # the entropy is above 0
        ({"fixed_temperature": True}, 0),
    ],
)
def test_the_temperature_moves_towards_the_target_entropy(flags, sign):
    algorithm, exchange = _made(temperature=0.5, **flags)
    metrics, _ = algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert -5 < float(metrics["entropy"]) < 5
    assert np.sign(round(float(algorithm._log_temperature) - np.log(0.5), 6)) == sign


def test_a_resumed_run_has_the_fixed_temperature_that_it_is_given_now():
    algorithm, exchange = _made(temperature=0.5, fixed_temperature=True)
    algorithm._log_temperature.assign(np.log(0.1))  # as a checkpoint restores it
    metrics, _ = algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert float(metrics["temperature"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("parts", "numbers"),
    [
        (_box(-2.0, 2.0, 3), 3),
        ({"arm": _box(-2.0, 2.0, 2, 2), "rest": (_box(-1.0, 1.0), _box(0.0, 1.0, 2))}, 7),
    ],
)
def test_the_target_entropy_is_given_for_each_number_of_an_action(parts, numbers):
    config = Config.of_algorithm("sac")(algorithm="sac", target_entropy=-0.7)
    kind = sac_actions.Numbers(config, types.SimpleNamespace(actions=ActionSpec(parts)))
    assert kind.target_entropy(()) == pytest.approx(-0.7 * numbers)


def test_the_policys_loss_has_the_divergence_from_a_teacher(double):
    found = []
    for flags in ({}, {"teacher": "x", "teacher_method": "kickstarting", "teacher_cost": 0.6}):
        algorithm, exchange = _made(
            updates_per_step=0.25, learning_rate=0.0, critic_rate=0.0, **flags,
            **{"teacher_frames": 400.0} if flags else {},  # a quarter of the cost is left
        )  # fmt: skip
        _fill(algorithm)
        batch = tensors(_batch(algorithm))
        found.append(algorithm.update(batch, PROGRESS, exchange)[0])
    seen = batch.unrolls.observation[0].numpy().astype(np.float64)
    theirs = np.stack([seen[:, 0] - seen[:, 1], 0.5 * seen[:, 2]], -1)
    (m, s), (n, r) = (
        (x[:, 0], 0.02 + np.logaddexp(0, x[:, 1] + np.log(np.expm1(0.58))))
        for x in (theirs, seen @ algorithm._policy.layer.w.numpy())
    )
    kl = np.log(r / s) + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5
    kl = kl[_live(batch)]
    added = float(found[1]["loss/policy"] - found[0]["loss/policy"])
    assert added == pytest.approx(0.6 * 0.25 * kl.sum() / B, rel=1e-5)
    assert float(found[1]["kl_teacher_pi"]) == pytest.approx(kl.mean(), rel=1e-5)


@pytest.mark.slow  # compiles for some 7 s
def test_compiled_updates_are_those_that_are_computed_one_operation_after_another():
    found = []
    for compiled in (False, True):
        algorithm, exchange = _made(
            compile_updates=compiled, learning_rate=0.01, mlp_sizes="8", **TEACHER
        )
        _fill(algorithm)

        def update(batch, algorithm=algorithm, exchange=exchange):
            return algorithm.update(batch, PROGRESS, exchange)[0]

        if compiled:  # a graph of a few updates costs more than it saves
            update = tf.function(update, autograph=False)
        metrics = update(tensors(_batch(algorithm)))
        assert int(metrics["optimizer_steps"]) == 2
        assert np.isfinite(metrics["kl_teacher_pi"])
        found.append(arrays(algorithm.variables.trained))
    in_threads.assert_close(*found, 0, 1e-5)


@pytest.mark.parametrize(
    ("learners", "remembers", "flags"),
    [
        (4, False, TEACHER | {"teacher_cost": 3.0}),
        pytest.param(2, True, {}, marks=pytest.mark.slow),
    ],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    double, monkeypatch, learners, remembers, flags
):
    if remembers:
        monkeypatch.setattr(q_policy, "PolicyNetwork", RecurrentPolicy)
        monkeypatch.setattr(q_policy, "CriticNetwork", RecurrentCritic)

    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group, learning_rate=rate, critic_rate=rate, temperature_rate=rate, target_share=0.3,
            gradients_clipping=0.1, **flags,
        )  # fmt: skip
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = tensors(_batch(algorithm, length=2 if remembers else 1), mine)
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        learnt = algorithm.variables.trained, algorithm._targets.trainable_variables
        return arrays(*learnt, [algorithm._log_temperature])

    one = in_threads.assert_several_are_one_by_minibatches(monkeypatch, learn, learners)
    unmoved = learn(SingleLearner(), 0.0)
    assert min(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-3


def test_the_target_networks_follow_by_their_share():
    algorithm, exchange = _made(target_share=0.25, critic_rate=0.01, updates_per_step=0.25)
    _fill(algorithm)
    targets, critics = (n.trainable_variables for n in (algorithm._targets, algorithm._critics))
    before = arrays(targets)
    algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    for target, was, critic in zip(targets, before, critics, strict=True):
        np.testing.assert_allclose(target, 0.75 * was + 0.25 * critic.numpy(), atol=1e-6)
        assert np.abs(target - was).max() > 0.01


def test_actors_play_at_random_until_the_first_update():
    algorithm, exchange = _made(random_steps=100, policy_init_scale=0.0)
    n = 4000
    entry, state = _zeros(algorithm, n), algorithm.initial_state(n)

    def play(exploration=1.0):
        return algorithm.act(entry, state, tf.fill([n], exploration))[0].numpy()

    assert np.histogram(play(), 4, (-1, 1))[0].min() > 0.9 * n / 4
    assert np.ptp(play(0.0)) == 0
    assert any(v is algorithm._plays_randomly for v in algorithm.variables.acting)
    algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert np.histogram(play(), 4, (-1, 1))[0].min() < 0.8 * n / 4


def test_numbers_without_bounds_are_drawn_from_the_policy_before_the_first_update():
    parts = {"arm": _box(-2.0, 2.0, 6), "free": _box(-np.inf, np.inf, 2, 3)}
    algorithm, _ = _made(
        spec=lambda spec: spec._replace(actions=ActionSpec(parts)), role=Role.ACTOR,
        random_steps=9, policy_init_scale=0.0,
    )  # fmt: skip
    n = 2000
    action, _, _ = algorithm.act(_zeros(algorithm, n), algorithm.initial_state(n), tf.ones([n]))
    for name, bounded in (("arm", True), ("free", False)):
        drawn = action[name].numpy()
        assert drawn.shape == (n, *parts[name].shape)
        counts = np.histogram(drawn, 4, (-1, 1))[0] / drawn.size
        assert (counts.min() > 0.22) == bounded


def test_an_entry_is_judged_by_the_lesser_value_of_its_most_likely_action():
    """In tests and exports, entries hold only what `judge` may read."""
    algorithm, _ = _made()
    entry, state = _zeros(algorithm, 3, 1.0), algorithm.initial_state(3)
    seen = entry._replace(terminated=None, truncated=None, extras=None)
    found = algorithm.judge(seen, state)
    action, _, _ = algorithm.act(seen, state, tf.zeros([3]))
    features, _ = algorithm._critics.step(entry, ())
    for given, value in (
        (action, found.value),
        (-0.3 * tf.ones_like(action), algorithm.value_of(seen, state, -0.3 * tf.ones_like(action))),
    ):
        values = algorithm._critics.values(features, given).numpy()
        np.testing.assert_allclose(value, values.min(0), rtol=1e-5)
    assert found.policy.shape == (3, 2)
    assert np.abs(value - found.value).max() > 1e-4


def test_the_replay_is_saved_only_if_that_is_asked_for():
    assert isinstance(_made(replay_save=True)[0].source(None), SavedStepReplay)
    assert not isinstance(_made()[0].source(None), SavedStepReplay)


def test_a_replay_that_does_not_fit_in_memory_is_refused_at_the_learner(capsys):
    with pytest.raises(SystemExit):
        _made(replay_steps=2 * 10**11, num_learners=2)
    assert "--replay_steps=200000000000 for 2 learners" in capsys.readouterr().err
    _made(role=Role.ACTOR, replay_steps=2 * 10**11)


def test_a_network_with_a_memory_learns_from_whole_unrolls():
    algorithm, exchange = _made(agent_name="MLPLSTMAgent")

    class Fresh:
        def next(self, timeout):
            made = batches.zeros(algorithm.unroll, 2)
            return made._replace(weight=np.ones(2, np.float32))

    source = algorithm.source(Fresh())
    while (batch := source.next(1.0)) is None:
        pass
    assert batch.unrolls.reward.shape == (3, 2 * 4)
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
    assert np.isfinite(float(metrics["loss/total"]))
    acting = {id(v) for v in algorithm.variables.acting}
    assert all(id(v) in acting for v in algorithm._critics.trainable_variables)


def _stepwise(algorithm, entries, start):
    """Return (values, parameters, goals, losses of critics, and of the policy) [T(+1), B].

    The networks read one entry after another, as in acting.
    """
    of_policy, of_critics = start
    of_targets, found, features, judged = of_critics, [], [], []
    for t in range(entries.reward.shape[0]):
        e = tf.nest.map_structure(lambda x, t=t: x[t], entries)
        judged.append(algorithm.judge(e, (of_policy, of_critics)))
        parameters, of_policy = algorithm._policy.step(e, of_policy)
        seen, of_critics = algorithm._critics.step(e, of_critics)
        targets, of_targets = algorithm._targets.step(e, of_targets)
        features.append(seen)
        policy = algorithm._policy.distribution.make(parameters)
        action = policy.sample()
        entropy = normals.Normal(policy.mean, policy.deviation).entropy()
        entropy += tf.reduce_sum(tf.math.log(1 - action**2), -1)
        soft = tf.reduce_min(algorithm._targets.values(targets, action), 0) + 0.3 * entropy
        own = tf.reduce_min(algorithm._critics.values(seen, action), 0)
        goal = e.reward + 0.9 * tf.where(e.terminated, 0.0, soft)
        played = algorithm._critics.values(features[t - 1], e.action) if t else tf.zeros([2, 1])
        of_values = 0.5 * tf.reduce_sum((goal - played) ** 2, 0)
        found.append((goal, of_values, -0.3 * entropy - own))
    goals, of_values, of_policy = (tf.stack(x).numpy() for x in zip(*found, strict=True))
    judged = [np.stack([getattr(x, name) for x in judged]) for name in ("value", "policy")]
    return *judged, goals[1:], of_values[1:], of_policy[:-1]


def test_with_a_memory_goals_and_losses_begin_with_the_recorded_state(monkeypatch):
    monkeypatch.setattr(normals.Normal, "sample", lambda self, noise=None: self.mean + 0.3)
    algorithm, exchange = _made(
        agent_name="MLPLSTMAgent", temperature=0.3, discounting=0.9, learning_rate=0.0,
        critic_rate=0.0, temperature_rate=0.0, target_share=0.0,
    )  # fmt: skip
    random = np.random.default_rng(3)
    for variable in algorithm._targets.trainable_variables:
        variable.assign_add(random.normal(size=variable.shape) * 0.1)
    batch = tensors(_batch(algorithm, 4, 3))
    e, live = batch.unrolls, ~batch.unrolls.first[1:] & (batch.weight > 0)

    def learnt(start):
        """Return the goals, and the losses of an update whose step sizes are 0."""
        noise = algorithm._draw_noise(batch, SingleLearner())
        part = q_policy.Part(e, q_policy.States(*start), live, batch.weight, noise)
        goals = algorithm._goals(part)
        metrics, _ = algorithm.update(batch._replace(start=start), PROGRESS, exchange)
        for name in ("total", "policy"):  # losses are means over steps
            assert float(metrics[f"loss/{name}"]) == float(metrics[f"loss_per_step/{name}"])
        return goals.numpy(), *(float(metrics[f"loss/{name}"]) for name in ("total", "policy"))

    values, parameters, goals, *losses = _stepwise(algorithm, e, batch.start)
    judged = algorithm.judge_unroll(e, batch.start)
    np.testing.assert_allclose(judged.value, values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(judged.policy, parameters, rtol=1e-4, atol=1e-5)
    found, *sizes = learnt(batch.start)
    np.testing.assert_allclose(found, np.where(live, goals, 0.0), rtol=1e-4, atol=1e-5)
    for size, each in zip(sizes, losses, strict=True):
        assert size == pytest.approx(np.where(live, each, 0.0).mean(), rel=1e-4)
    other, *others = learnt(tf.nest.map_structure(lambda x: x + 1.0, batch.start))
    assert np.abs(other - found).max() > 1e-3
    assert np.abs(np.subtract(others, sizes)).min() > 1e-5


def test_recorded_games_are_learnt_from_by_an_ordinary_update_that_counts_them_as_new():
    """The normaliser sees them, and actors no longer play at random afterwards."""
    weights = []
    for recorded in (True, False):
        algorithm, exchange = _made(normalize_observations=True, updates_per_step=2.0)
        _fill(algorithm)
        batch = tensors(_batch(algorithm))
        if recorded:
            update = algorithm.offline_update
            batch = batch._replace(key=-tf.ones_like(batch.key), fresh=tf.zeros([B], tf.bool))
        else:
            update = algorithm.update
            batch = batch._replace(fresh=batch.weight > 0)
        update(batch, PROGRESS, exchange)
        assert float(algorithm._plays_randomly) == 0
        assert algorithm._normaliser.carried[0] == B - 1, "one column is padding"
        weights.append(arrays(algorithm.variables.trained))
    in_threads.assert_close(*weights, 0, 0)


def test_goals_of_redq_are_the_least_of_a_draw_of_the_q_networks(double):
    """Each optimizer step draws two of four; over many steps all pairs are drawn."""
    algorithm, _ = _made(
        num_critics=4,
        temperature=1e-6,
        fixed_temperature=True,
        discounting=0.9,
        policy_value="mean",
    )
    _fill(algorithm)
    batch = tensors(_batch(algorithm))
    e, live = batch.unrolls, _live(batch)
    part = q_policy.Part(
        e, q_policy.States((), ()), live[None], batch.weight,
        algorithm._draw_noise(batch, SingleLearner()),
    )  # fmt: skip
    policy, features = algorithm._after(part, algorithm._policy)
    values = algorithm._targets.values(features, policy.sample(part.noise[0]))[:, 0].numpy()
    drawn = set()
    for step in range(60):
        algorithm._optimizers["critics"].step.assign(step)
        goals = algorithm._goals(part).numpy()[0]
        following = (goals - e.reward[1].numpy()) / 0.9
        played_on = (live & ~e.terminated[1]).numpy()
        pairs = [
            (i, j)
            for i in range(4)
            for j in range(i)
            if np.allclose(values[[i, j]].min(0)[played_on], following[played_on], atol=1e-4)
        ]
        assert pairs
        drawn.update(pairs)
    assert len(drawn) == 6
    assert algorithm._combine(tf.constant([[1.0], [2.0], [3.0], [6.0]])).numpy() == [3.0]


def test_droq_leaves_units_out_in_training_and_none_where_actions_are_judged():
    algorithm, exchange = _made(critic_dropout=0.5, updates_per_step=1.0, policy_delay=2)
    entry, state = _zeros(algorithm, 3, 1.0), algorithm.initial_state(3)
    first, again = (algorithm.judge(entry, state).value.numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)
    features = tf.ones([1, 64, 3])
    action = tf.zeros([1, 64, 1])
    uses = (q_policy.GOALS, q_policy.VALUES, q_policy.POLICY)
    found = [algorithm._at(algorithm._critics, features, u).values(action).numpy() for u in uses]
    for values in found:
        assert all(len(np.unique(of_critic)) > 3 for of_critic in values)
    assert not np.array_equal(found[0], found[1])
    repeated = algorithm._at(algorithm._critics, features, q_policy.POLICY).values(action).numpy()
    np.testing.assert_array_equal(found[2], repeated)
    metrics, _ = algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert np.isfinite(list(map(float, metrics.values()))).all()
    after = algorithm._at(algorithm._critics, features, q_policy.POLICY).values(action).numpy()
    assert not np.array_equal(after == after.max(), found[2] == found[2].max())
