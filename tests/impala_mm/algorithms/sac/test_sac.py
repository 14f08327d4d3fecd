"""SAC: its updates against float64 computations, alone and on several learners."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context, Role, Setup
from impala_mm.algorithms.parts import normals
from impala_mm.algorithms.sac import actions as sac_actions
from impala_mm.algorithms.sac import algorithm as sac
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.make import level_spec
from impala_mm.replay.steps import SavedStepReplay
from tests.helpers import in_threads
from tests.helpers.double_network import (
    DoubleCritic,
    DoublePolicy,
    RecurrentCritic,
    RecurrentPolicy,
)

PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
# Two new unrolls of two steps, and four optimizer steps with four columns each.
SMALL = {"batch_size": 2, "unroll_length": 2, "minibatch_steps": 8, "updates_per_step": 0.5}
B = 16


def _config(level="Pendulum-v1", **settings):
    return Config.of_algorithm("sac")(
        algorithm="sac", level_name=level, precision="float32", reward_clipping="none",
        **{"mlp_sizes": "8,8"} | SMALL | settings,
    )  # fmt: skip


def _made(group=None, role=Role.LEARNER, **settings):
    config = _config(**settings)
    tf.random.set_seed(1)
    made = registry.make_algorithm(config, level_spec(config.level_name), role)
    return made, GradientReducer(group or SingleLearner(), config)


def _batch(algorithm, seed=0, columns=B, length=1):
    """Return a batch with terminations, truncations, resets, and a column of padding."""
    random = np.random.default_rng(seed)

    def draw(spec):
        shape = [length + 1, columns, *spec.shape]
        if spec.dtype == tf.bool:
            return np.zeros(shape, bool)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    entries.terminated[1, 0] = entries.truncated[1, 1] = entries.first[1, 2] = True
    start = tf.nest.map_structure(
        lambda x: random.uniform(-0.9, 0.9, x.shape).astype(x.dtype.as_numpy_dtype),
        algorithm.initial_state(columns),
    )
    weight, numbers = np.ones(columns, np.float32), np.arange(columns)
    weight[-1] = 0
    return Batch(entries, start, numbers, weight, numbers, numbers < 4)


def _tensors(batch):
    return tf.nest.map_structure(tf.constant, batch)


def _noise(self, noise=None):
    """Draw what depends on nothing but the means, so that learners' draws are those of one."""
    return self.mean + self.deviation * tf.sin(1e3 * tf.stop_gradient(self.mean))


@pytest.fixture
def double_networks(monkeypatch):
    monkeypatch.setattr(sac, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(sac, "CriticNetwork", DoubleCritic)


@pytest.fixture
def double(double_networks, monkeypatch):
    monkeypatch.setattr(normals.Normal, "sample", _noise)


def _box(low, high, *shape):
    count = math.prod(shape)
    return Box(shape, (low,) * count, (high,) * count)


def _fill(algorithm, seed=7):
    random = np.random.default_rng(seed)
    for variable in (*algorithm.variables.trained, *algorithm._targets.trainable_variables):
        variable.assign(random.normal(size=variable.shape) * 0.5)


def test_goals_are_soft_values_of_the_policys_next_action(double):
    algorithm, _ = _made(temperature=0.3, discounting=0.9)
    _fill(algorithm)
    batch = _tensors(_batch(algorithm))
    e = batch.unrolls
    live = ~e.first[1:] & (batch.weight > 0)
    noise = algorithm._draw_noise(batch, SingleLearner())
    part = sac._Part(e, ((), ()), live, batch.weight, noise)
    found = algorithm._goals(part, tf.constant(0.3, tf.float64)).numpy()[0]

    after = e.observation[1].numpy().astype(np.float64)
    parameters = after @ algorithm._policy.layer.w.numpy()
    policy = algorithm._policy.distribution.make(tf.constant(parameters))
    action = policy.sample().numpy()
    inputs = np.concatenate([after, action, action**2], -1)
    values = np.tanh(inputs @ algorithm._targets.layer.w.numpy()).min(-1)
    # The density of the hyperbolic tangent of a normal number.
    mean, deviation = policy.mean.numpy(), policy.deviation.numpy()
    z = (np.arctanh(action) - mean) / deviation
    log_prob = -0.5 * z**2 - np.log(deviation) - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
    soft = values - 0.3 * log_prob.sum(-1)
    expected = e.reward[1].numpy() + 0.9 * np.where(e.terminated[1], 0.0, soft)
    expected[[2, -1]] = 0  # a reset, and padding
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def _clipped_entropy(mean, deviation):
    """Return the entropies of normal numbers that are clipped to [-1, 1], by trapezoids."""
    grid = np.linspace(-1, 1, 100_001)[:, None]
    log_density = -0.5 * ((grid - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    between = np.trapezoid(-np.exp(log_density) * log_density, grid, axis=0)
    beyond = [
        [0.5 * math.erfc(x) for x in (1 - sign * mean) / deviation / np.sqrt(2)] for sign in (1, -1)
    ]
    return between - sum(p * np.log(p) for p in np.maximum(beyond, 1e-300))


@pytest.mark.parametrize(
    ("box_policy", "box"),
    [("clipped", Box((1,), (-2.0,), (2.0,))), ("tanh", Box((1,), (-1.0,), (math.inf,)))],
)
def test_the_gradient_of_a_clipped_policys_entropy_is_that_of_its_mass_at_the_bounds_too(
    box_policy, box
):
    """Of one sample's probability it would have the wrong sign where the mean is near a bound."""
    config = _config(box_policy=box_policy)
    numbers = sac_actions.Numbers(config, types.SimpleNamespace(actions=ActionSpec(box)))
    zeros = types.SimpleNamespace(values=lambda features, action: tf.zeros([2, *action.shape[:-1]]))
    mean, deviation = tf.constant([[0.5], [0.9], [1.5]], tf.float64), tf.constant(0.2, tf.float64)
    bounds = np.array([-1.0]), np.array([1.0])
    with tf.GradientTape() as tape:
        tape.watch(mean)
        policy = normals.ClippedNormal(mean, deviation * tf.ones_like(mean), *bounds)
        soft = numbers.expect(policy, zeros, None, tf.random.stateless_normal([3, 1], [1, 2]))
        total = tf.reduce_sum(soft.entropy)
    found, step = tape.gradient(total, mean).numpy()[:, 0], 1e-4
    at = mean.numpy()[:, 0]
    expected = _clipped_entropy(at + step, 0.2) - _clipped_entropy(at - step, 0.2)
    np.testing.assert_allclose(found, expected / (2 * step), rtol=1e-4, atol=1e-4)


def test_goals_of_clipped_actions_have_the_entropy_of_the_bounds_too(double):
    algorithm, _ = _made(temperature=0.3, discounting=0.9, box_policy="clipped")
    _fill(algorithm)
    batch = _tensors(_batch(algorithm))
    e = batch.unrolls
    noise = algorithm._draw_noise(batch, SingleLearner())
    part = sac._Part(e, ((), ()), ~e.first[1:] & (batch.weight > 0), batch.weight, noise)
    found = algorithm._goals(part, tf.constant(0.3, tf.float64)).numpy()[0]

    after = e.observation[1].numpy().astype(np.float64)
    policy = algorithm._policy.distribution.make(tf.constant(after @ algorithm._policy.layer.w))
    mean, deviation = policy.mean.numpy()[:, 0], policy.deviation.numpy()[:, 0]
    drawn = mean + deviation * np.sin(1e3 * mean)
    action = np.clip(drawn, -1, 1)
    assert 0 < np.mean(np.abs(drawn) > 1) < 1
    inputs = np.concatenate([after, action[:, None], action[:, None] ** 2], -1)
    values = np.tanh(inputs @ algorithm._targets.layer.w.numpy()).min(-1)
    soft = values + 0.3 * _clipped_entropy(mean, deviation)
    expected = e.reward[1].numpy() + 0.9 * np.where(e.terminated[1], 0.0, soft)
    expected[[2, -1]] = 0  # a reset, and padding
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_temperature_moves_towards_the_target_entropy(fixed):
    for target, sign in ((-5.0, -1), (5.0, 1), (0.0, -1)):  # the entropy is above 0
        flags = {"fixed_temperature": True} if fixed else {"target_entropy": target}
        algorithm, exchange = _made(temperature=0.5, compile_updates=False, **flags)
        metrics, _ = algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
        assert -5 < float(metrics["entropy"]) < 5
        change = float(algorithm._log_temperature) - np.log(0.5)
        assert np.sign(round(change, 6)) == (0 if fixed else sign)


@pytest.mark.parametrize(
    ("parts", "numbers"),
    [
        (_box(-2.0, 2.0, 3), 3),
        ({"arm": _box(-2.0, 2.0, 2, 2), "rest": (_box(-1.0, 1.0), _box(0.0, 1.0, 2))}, 7),
    ],
)
def test_the_target_entropy_is_given_for_each_number_of_an_action(parts, numbers):
    environment = types.SimpleNamespace(actions=ActionSpec(parts))
    kind = sac_actions.Numbers(_config(target_entropy=-0.7), environment)
    assert kind.target_entropy(()) == pytest.approx(-0.7 * numbers)


def test_losses_are_means_over_steps_and_the_settings_say_so():
    algorithm, exchange = _made(compile_updates=False)
    assert _config().loss_reduction == "mean"
    metrics, _ = algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
    for part in ("total", "policy"):
        assert float(metrics[f"loss_per_step/{part}"]) == float(metrics[f"loss/{part}"]) != 0


def test_compiled_updates_are_those_that_are_computed_one_operation_after_another():
    found = []
    for compiled in (False, True):
        algorithm, exchange = _made(compile_updates=compiled, learning_rate=0.01, mlp_sizes="8")
        _fill(algorithm)

        def update(batch, algorithm=algorithm, exchange=exchange):
            return algorithm.update(batch, PROGRESS, exchange)[0]

        if compiled:  # a graph of a few updates costs more than it saves
            update = tf.function(update, autograph=False)
        metrics = update(_tensors(_batch(algorithm)))
        assert int(metrics["optimizer_steps"]) == 2
        found.append([v.numpy() for v in algorithm.variables.trained])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def _joined(of_part, learners):
    """Return the minibatches of one learner that join those of several, whose shares are equal."""

    def parts(size, *args):
        share = size // learners
        each = [of_part(share, *args).numpy() + rank * share for rank in range(learners)]
        return tf.constant(np.concatenate(each, 1), tf.int32)

    return parts


@pytest.mark.parametrize(("learners", "remembers"), [(2, False), (4, False), (2, True)])
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    double_networks, monkeypatch, learners, remembers
):
    if remembers:
        monkeypatch.setattr(sac, "PolicyNetwork", RecurrentPolicy)
        monkeypatch.setattr(sac, "CriticNetwork", RecurrentCritic)

    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group, learning_rate=rate, critic_rate=rate, temperature_rate=rate, target_share=0.3,
            gradients_clipping=0.1, compile_updates=False,
        )  # fmt: skip
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        made = _batch(algorithm, length=2 if remembers else 1)
        batch = _tensors(batches.columns(made, mine))
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        learnt = (*algorithm.variables.trained, *algorithm._targets.trainable_variables)
        return [v.numpy() for v in (*learnt, algorithm._log_temperature)]

    several = in_threads.together(learners, learn)
    joined = _joined(minibatches.shuffled_parts, learners)
    monkeypatch.setattr(minibatches, "shuffled_parts", joined)
    (one,) = in_threads.together(1, learn)
    (unmoved,) = in_threads.together(1, lambda group: learn(group, 0.0))
    assert min(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-3
    for variables in several:
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_target_networks_follow_by_their_share():
    algorithm, exchange = _made(
        target_share=0.25, critic_rate=0.01, updates_per_step=0.25, compile_updates=False
    )
    _fill(algorithm)
    before = [v.numpy() for v in algorithm._targets.trainable_variables]
    metrics, _ = algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
    assert int(metrics["optimizer_steps"]) == 1
    for target, was, critic in zip(
        algorithm._targets.trainable_variables,
        before,
        algorithm._critics.trainable_variables,
        strict=True,
    ):
        np.testing.assert_allclose(target, 0.75 * was + 0.25 * critic.numpy(), atol=1e-6)
        assert np.abs(target - was).max() > 0.01


def test_actors_play_at_random_until_the_first_update():
    algorithm, exchange = _made(random_steps=100, policy_init_scale=0.0, compile_updates=False)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), algorithm.unroll.step
    )

    def play(exploration=1.0):
        state = algorithm.initial_state(n)
        return algorithm.act(entry, state, tf.fill([n], exploration))[0].numpy()

    assert np.histogram(play(), 4, (-1, 1))[0].min() > 0.9 * n / 4
    assert np.ptp(play(0.0)) == 0
    assert any(v is algorithm._plays_randomly for v in algorithm.variables.acting)
    algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
    assert np.histogram(play(), 4, (-1, 1))[0].min() < 0.8 * n / 4


def test_numbers_without_bounds_are_drawn_from_the_policy_before_the_first_update():
    parts = {"arm": _box(-2.0, 2.0, 6), "free": _box(-np.inf, np.inf, 2, 3)}
    environment = level_spec("Pendulum-v1")._replace(actions=ActionSpec(parts))
    algorithm = sac.SAC(
        _config(random_steps=9, policy_init_scale=0.0), environment, Setup(Role.ACTOR)
    )
    n = 2000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    action, _, _ = algorithm.act(entry, algorithm.initial_state(n), tf.ones([n]))
    for name, bounded in (("arm", True), ("free", False)):
        drawn = action[name].numpy()
        assert drawn.shape == (n, *parts[name].shape)
        counts = np.histogram(drawn, 4, (-1, 1))[0] / drawn.size
        assert (counts.min() > 0.22) == bounded


def test_an_entry_is_judged_by_the_lesser_value_of_its_most_likely_action():
    """In tests and exports, entries hold only what `judge` may read."""
    algorithm, _ = _made()
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([3, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    seen = entry._replace(terminated=None, truncated=None, extras=None)
    found = algorithm.judge(seen, algorithm.initial_state(3))
    action, _, _ = algorithm.act(seen, algorithm.initial_state(3), tf.zeros([3]))
    entries = tf.nest.map_structure(lambda x: x[tf.newaxis], entry)
    values = algorithm._critics.values(algorithm._critics.unroll(entries, ())[0], action)
    np.testing.assert_allclose(found.value, values.numpy().min(0), rtol=1e-5)
    assert found.policy.shape == (3, 2)
    other = -0.3 * tf.ones_like(action)
    values = algorithm._critics.values(algorithm._critics.unroll(entries, ())[0], other)
    of_other = algorithm.value_of(seen, algorithm.initial_state(3), other)
    np.testing.assert_allclose(of_other, values.numpy().min(0)[0], rtol=1e-5)
    assert np.abs(of_other - found.value).max() > 1e-4


def test_the_replay_is_saved_only_if_that_is_asked_for():
    kept, _ = _made(replay_save=True)
    assert isinstance(kept.source(None), SavedStepReplay)
    assert not isinstance(_made()[0].source(None), SavedStepReplay)


def test_a_replay_that_does_not_fit_in_memory_is_refused_at_the_learner(capsys):
    with pytest.raises(SystemExit):
        _made(replay_steps=2 * 10**11, num_learners=2)
    assert capsys.readouterr().err.startswith(
        "error: --replay_steps=200000000000 for 2 learners: memory for 200,000,000,000 unrolls of "
    )
    _made(role=Role.ACTOR, replay_steps=2 * 10**11)


def test_a_network_with_a_memory_learns_from_whole_unrolls():
    algorithm, exchange = _made(agent_name="MLPLSTMAgent", compile_updates=False)

    class Fresh:
        def next(self, timeout):
            made = batches.zeros(algorithm.unroll, 2)
            return made._replace(weight=np.ones(2, np.float32))

    source = algorithm.source(Fresh())
    while (batch := source.next(1.0)) is None:
        pass
    assert batch.unrolls.reward.shape == (3, 2 * 4)
    metrics, _ = algorithm.update(_tensors(batch), PROGRESS, exchange)
    assert np.isfinite(float(metrics["loss/total"]))
    acting = {id(v) for v in algorithm.variables.acting}
    assert all(id(v) in acting for v in algorithm._critics.trainable_variables)


def _stepwise(algorithm, entries, start):
    """Return (values, parameters, goals, losses of critics, and of the policy) [T(+1), B].

    The networks read one entry after another, as in acting.
    """
    of_policy, of_critics = start
    of_targets, found, features, judged = of_critics, [], [], []
    length = entries.reward.shape[0]
    each = [tf.nest.map_structure(lambda x, t=t: x[t], entries) for t in range(length)]
    for t, e in enumerate(each):
        judged.append(algorithm.judge(e, (of_policy, of_critics)))
        parameters, of_policy = algorithm._policy.step(e, of_policy)
        seen, of_critics = algorithm._critics.step(e, of_critics)
        targets, of_targets = algorithm._targets.step(e, of_targets)
        features.append(seen)
        policy = algorithm._policy.distribution.make(parameters)
        action, entropy = policy.sample(), -policy.log_prob(policy.sample())
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
    def halfway(self, noise=None):
        return self.mean + 0.5 * self.deviation

    monkeypatch.setattr(normals.Normal, "sample", halfway)
    algorithm, exchange = _made(
        agent_name="MLPLSTMAgent", compile_updates=False, temperature=0.3, discounting=0.9,
        learning_rate=0.0, critic_rate=0.0, temperature_rate=0.0, target_share=0.0,
    )  # fmt: skip
    random = np.random.default_rng(3)
    for variable in algorithm._targets.trainable_variables:
        variable.assign_add(random.normal(size=variable.shape) * 0.1)
    batch = _tensors(_batch(algorithm, columns=4, length=3))
    e, live = batch.unrolls, ~batch.unrolls.first[1:] & (batch.weight > 0)

    def learnt(start):
        """Return the goals, and the losses of an update whose step sizes are 0."""
        noise = algorithm._draw_noise(batch, SingleLearner())
        part = sac._Part(e, start, live, batch.weight, noise)
        goals = algorithm._goals(part, tf.constant(0.3, tf.float64))
        metrics, _ = algorithm.update(batch._replace(start=start), PROGRESS, exchange)
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
    assert np.abs(np.subtract(others, sizes)).min() > 1e-4


def test_actors_hold_no_targets_and_the_same_trained_variables():
    learner, _ = _made()
    actor, _ = _made(role=Role.ACTOR)
    for group in ("trained", "acting"):
        shapes = [[v.shape for v in getattr(a.variables, group)] for a in (learner, actor)]
        assert shapes[0] == shapes[1]
    assert len(actor.variables.carried) == 2, "the temperature, and whether actions are random"


def test_choices_are_refused_in_a_sentence():
    with pytest.raises(
        UnsuitableActions,
        match=r"CartPole-v1 takes one of 2 actions \(Discrete\): set --discrete_sac, or use --algo",
    ):
        _made(level="CartPole-v1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replay=uniform:1:100"], "SAC has a replay of its own, of steps: leave it out"),
        (["--minibatch_steps=8", "--updates_per_step=0.1"], "has no room for the 32 new steps"),
        (["--replay_steps=100"], "--replay_steps=100 is less than --minibatch_steps=256"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--algorithm=sac", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
