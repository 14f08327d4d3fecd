"""The loss of a policy that learns from recorded games, against NumPy in float64."""

import types

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.feature import Features, mean
from impala_mm.algorithms.features.recorded_actions import BehaviourCloning
from impala_mm.algorithms.features.teacher import Distillation, Taught
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.parts import distributions, offline_policy
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import EnvironmentSpec

T, B, A = 6, 4, 3
GAMMA = 0.875


def _entries(random, first=None):
    first = random.random([T + 1, B]) < 0.15 if first is None else first
    terminated = np.zeros([T + 1, B], bool)
    terminated[:-1] = first[1:] & (random.random([T, B]) < 0.7)
    return Entry(
        action=tf.constant(random.integers(0, A, [T + 1, B]), tf.int32),
        reward=tf.constant(random.normal(size=[T + 1, B]) * ~first, tf.float64),
        terminated=tf.constant(terminated),
        truncated=tf.constant(np.zeros([T + 1, B], bool)),
        observation=(),
        first=tf.constant(first),
        extras=(),
        mask=(),
    )


def _expected_goals(entries, values):
    """Return (live, targets) of T steps, one column after the other."""
    first, terminated = entries.first.numpy(), entries.terminated.numpy()
    rewards, targets = entries.reward.numpy(), np.array(values[:-1])
    live = np.zeros([T, B], bool)
    for b in range(B):
        following = values[T, b]
        for t in reversed(range(T)):
            if first[t + 1, b]:  # no step: the next return begins with this entry's value
                following = values[t, b]
                continue
            later = 0.0 if terminated[t + 1, b] else following
            following = targets[t, b] = rewards[t + 1, b] + GAMMA * later
            live[t, b] = True
    return live, targets


def _log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("teacher", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_the_divergence_or_the_cloned_actions_and_the_returns(teacher, reduction):
    random = np.random.default_rng(0)
    entries, weight = _entries(random), random.random(B)
    values, logits, theirs = (random.normal(size=[T + 1, B, *rest]) for rest in ((), (A,), (A,)))
    config = ImpalaSettings(
        teacher="x", teacher_cost=3.0, baseline_cost=0.7, loss_reduction=reduction, huber_delta=0.8
    )
    unit = 2.5
    goals = offline_policy.goals(entries, tf.constant(weight), tf.constant(values), GAMMA)
    made = Distillation(config)
    made.begin([types.SimpleNamespace()], 1)
    made._share.assign(0.25)  # the teacher's cost has fallen to a quarter
    cost = 3.0 * (0.25 if teacher else 1.0)
    known = random.random([T, B]) < 0.7
    found = offline_policy.losses_of(
        config,
        goals,
        tf.constant(weight),
        lambda parameters, mask=(): distributions.Categorical(parameters),
        tf.constant(logits),
        tf.constant(values),
        tf.constant(unit, tf.float64),
        Features([made if teacher else BehaviourCloning(config)]),
        [Taught((tf.constant(theirs[:-1]),), tf.constant(known)) if teacher else ()],
    )
    live, targets = _expected_goals(entries, values)
    counted = live & known if teacher else live
    np.testing.assert_array_equal(goals.live, live)
    np.testing.assert_allclose(goals.targets, targets, rtol=1e-12)
    ours, other = _log_softmax(logits[:-1]), _log_softmax(theirs[:-1])
    chosen = np.take_along_axis(ours, entries.action.numpy()[1:, :, None], -1)[..., 0]
    each = (np.exp(other) * (other - ours)).sum(-1) if teacher else -chosen
    left = np.abs(targets - values[:-1])
    limit = 0.8 * np.sqrt(unit)
    errors = np.where(left <= limit, 0.5 * left**2, limit * (left - 0.5 * limit))
    total = ((cost * each * counted + 0.7 / unit * errors * live) * weight).sum()
    total /= T * B if reduction == "mean" else 1
    np.testing.assert_allclose(found.total, total, rtol=1e-9)
    name = "kl_teacher_pi" if teacher else "cloning_loss"
    np.testing.assert_allclose(mean(found.measured[0][name]), each[counted].mean(), rtol=1e-9)
    np.testing.assert_allclose(found.squared_error, (left[live] ** 2).mean(), rtol=1e-9)


def _steps(algorithm, action, observation):
    """Return entries [T, B, ...] of steps without a reward or an end."""
    shape = action.shape
    extras = tf.nest.map_structure(
        lambda s: tf.zeros([*shape, *s.shape], s.dtype), algorithm.unroll.step.extras
    )
    nothing = tf.zeros(shape, tf.bool)
    return Entry(
        *(tf.constant(action), tf.zeros(shape), nothing, nothing),
        *(tf.constant(observation), nothing, extras),
    )


def _batch(entries, start):
    columns = entries.first.shape[1]
    return Batch(
        entries,
        start,
        key=-tf.ones([columns], tf.int64),
        weight=tf.ones([columns]),
        version=tf.zeros([columns], tf.int64),
        fresh=tf.zeros([columns], tf.bool),
    )


class _Reader:
    """A teacher that keeps the images that it reads, and always prefers action 1."""

    greedy, name, notes = False, "reader", ()

    def parameters(self, entries):
        self.read = entries.observation
        return tf.broadcast_to([0.0, 3.0, 0.0], [*entries.first.shape, A])


@pytest.mark.parametrize("agent", ["SmallConvAgent", "ShallowConvAgent"])
def test_teachers_read_the_frames_before_an_unroll_which_the_network_stacks(agent):
    size = 9 if agent == "SmallConvAgent" else 36
    image = tf.TensorSpec([size, size, 1], tf.uint8)
    spec = EnvironmentSpec("small", image, ActionSpec(Discrete(A)), 1, None, frame_stack=4)
    config = ImpalaSettings(teacher="x", unroll_length=T, batch_size=B, agent_name=agent)
    algorithm = make_algorithm(config, spec)
    algorithm.features.get(Distillation).begin([reader := _Reader()], 4)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, [3 + T + 1, B, size, size, 1], np.uint8)
    entries = _steps(algorithm, random.integers(0, A, [3 + T + 1, B], np.int32), images)
    before, unroll = (
        tf.nest.map_structure(lambda x, part=part: x[part], entries)
        for part in (slice(3), slice(3, None))
    )
    batch = _batch(unroll, algorithm.start_after(before))
    exchange = GradientReducer(SingleLearner(), config)
    exchange.begin(tf.constant(0, tf.int64))
    context = Context(tf.constant(0.0), tf.constant(1e6), tf.constant(np.nan))
    metrics, _ = algorithm.offline_update(batch, context, exchange)
    np.testing.assert_array_equal(reader.read, images)
    assert metrics["kl_teacher_pi"] > 0.1


@pytest.mark.parametrize(
    ("name", "flags"), [("impala", {"value_normalization": "popart"}), ("ppo", {})]
)
def test_updates_clone_the_recorded_actions_and_learn_their_returns(name, flags):
    """The recorded policy steps right where the ball is right, which pays 1 at once."""
    spec = level_spec("catch")
    kind = Config.of_algorithm(name)
    config = kind(
        algorithm=name,
        level_name="catch",
        unroll_length=T,
        batch_size=8,
        learning_rate=0.01,
        offline_updates=1,
        teacher_data="x",
        **flags,
    )
    algorithm = make_algorithm(config, spec)
    random = np.random.default_rng(0)
    columns = 8
    observation = random.random([T + 1, columns, *spec.observation.shape]).astype(np.float32)
    right = observation[:-1, :, 0, 0] > 0.5
    action = np.zeros([T + 1, columns], np.int32)
    action[1:] = 2 * right
    start = algorithm.initial_state(columns)
    batch = _batch(_steps(algorithm, action, observation), start)
    context = Context(tf.constant(0.0), tf.constant(1e6), tf.constant(np.nan))
    exchange = GradientReducer(SingleLearner(), config)

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return algorithm.offline_update(batch, context, exchange)[0]

    metrics = [{k: float(v) for k, v in update().items()} for _ in range(150)]
    assert metrics[0]["cloning_loss"] == pytest.approx(np.log(3), abs=0.1)
    assert metrics[-1]["cloning_loss"] < 0.3
    assert metrics[-1]["loss/total"] < metrics[0]["loss/total"]
    assert metrics[-1]["teacher_cost"] == 1.0
    assert all(np.isfinite(each) for each in metrics[-1].values())
