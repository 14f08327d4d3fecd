"""The loss and the cost of teachers against NumPy and SciPy in float64."""

import dataclasses
import math

import in_process
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from impala_mm.algorithms.feature import Host, Reading
from impala_mm.algorithms.feature_settings import RegulariserSettings, TeacherSettings
from impala_mm.algorithms.features.teacher import Distillation, Returns, Taught
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.parts import action_policies, losses
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.algorithms.q_learning import settings as dqn_settings
from impala_mm.config.flags import AUTO
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.records import checkpoint, run_checkpoints, saved_variables
from impala_mm.runtime import starter
from tests.helpers.regularised import Regularised

ACTIONS = ActionSpec(Discrete(4))


@dataclasses.dataclass(frozen=True)
class _Settings(RegulariserSettings, TeacherSettings):
    """Settings of a student of a policy."""


def _context(frames=0.0, total=1000.0, episode_return=math.nan):
    return Context(*(tf.constant(x, tf.float32) for x in (frames, total, episode_return)))


def _batch(seed, teachers=1, columns=3):
    """Return float64 logits [T, B, A] of the policy and of teachers, and live, known, weight."""
    rng = np.random.default_rng(seed)
    policy, *theirs = rng.normal(0, 2, (1 + teachers, 5, columns, 4))
    live, known = rng.random((2, 5, columns)) < 0.7
    live[0], known[0] = True, True
    return policy, theirs, live, known, rng.integers(1, 4, columns).astype(float)


def _expected(policy, theirs):
    """Return the mean over the teachers of KL(teacher || policy), [T, B]."""
    p = special.softmax(policy, -1)
    return np.mean([stats.entropy(special.softmax(t, -1), p, axis=-1) for t in theirs], 0)


def _measure(made, batch, reduction, their_values=(), values=()):
    policy, theirs, live, known, weight = batch
    taught = Taught(tuple(map(tf.constant, theirs)), tf.constant(known), their_values)
    return made.measure(
        *(action_policies.categorical(tf.convert_to_tensor(policy)), action_policies.categorical),
        *((), (), tf.constant(live), tf.constant(weight), reduction),
        taught=taught,
        values=values,
    )


@settings(max_examples=20, deadline=None)
@given(
    teachers=st.integers(1, 3),
    cost=st.sampled_from([0.3, 1.0, 7.0]),
    reduction=st.sampled_from(losses.REDUCTIONS),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loss_is_the_mean_divergence_from_the_teachers_times_the_cost(
    teachers, cost, reduction, seed
):
    """Its gradient is that of the cross-entropy to the teachers' mean policy."""
    made = Regularised(_Settings(teacher="x", teacher_cost=cost, entropy_cost=0.0), ACTIONS)
    made.distillation._share.assign(0.25)  # the cost has fallen to a quarter
    cost *= 0.25
    batch = _batch(seed, teachers)
    policy, theirs, live, known, weight = batch
    logits = tf.Variable(policy)
    with tf.GradientTape() as tape:
        measured = _measure(made, (logits, *batch[1:]), reduction)
    size = live.size if reduction == "mean" else 1
    counted = np.where(live & known, weight, 0) / size
    loss = cost * np.sum(counted * _expected(policy, theirs))
    assert float(measured.loss) == pytest.approx(loss, rel=1e-9, abs=1e-12)
    mean = np.mean([special.softmax(t, -1) for t in theirs], 0)
    gradient = cost * counted[..., None] * (special.softmax(policy, -1) - mean)
    np.testing.assert_allclose(tape.gradient(measured.loss, logits), gradient, atol=1e-9)
    assert float(measured.counts["kl_teacher_pi"]) == (live & known).sum()
    broken = [losses.mask(live, np.where(live[..., None], t, np.nan)) for t in theirs]
    again = _measure(made, (policy, broken, live, known, weight), reduction).loss
    assert again.numpy() == measured.loss.numpy(), "dead entries may hold anything"


@pytest.mark.parametrize("distill", ["value", "policy_and_value"])
def test_values_of_observations_are_compared_by_their_squared_differences(distill):
    made = Regularised(
        _Settings(teacher="x", teacher_cost=0.5, entropy_cost=0.0, distill=distill), ACTIONS
    )
    policy, theirs, live, known, weight = _batch(4, teachers=2)
    mine, *others = np.random.default_rng(8).normal(size=(3, *live.shape))
    given = tf.Variable(mine)
    with tf.GradientTape() as tape:
        measured = _measure(
            made, (policy, theirs, live, known, weight), "mean", tuple(others), given
        )
    counted = np.where(live & known, weight, 0) / live.size
    terms = np.mean([(mine - other) ** 2 for other in others], 0)
    terms += _expected(policy, theirs) if distill == "policy_and_value" else 0
    assert float(measured.loss) == pytest.approx(0.5 * np.sum(counted * terms), rel=1e-9)
    slope = counted * (mine - np.mean(others, 0))
    np.testing.assert_allclose(tape.gradient(measured.loss, given), slope, atol=1e-12)
    assert "loss/teacher" in measured.totals


def _share(method, before, frames, episode_return, end, returns):
    """Return the share of the cost by the rules in words."""
    if before == 0 or frames >= end:
        return 0.0
    if method == "constant":
        return 1.0
    if method == "kickstarting":
        return 1 - frames / end
    if math.isnan(episode_return):
        return before
    score = (episode_return - returns.random) / (returns.teacher - returns.random)
    return min(max(1 - score, 0.0), 1.0)


@settings(max_examples=30, deadline=None)
@given(
    method=st.sampled_from(["kickstarting", "qdagger", "dqfd", "constant"]),
    end=st.sampled_from([AUTO, 300.0]),
    returns=st.sampled_from([Returns(500.0, 20.0), Returns(-1.0, -21.0), Returns(0.5, -0.5)]),
    scores=st.lists(
        st.one_of(st.just(math.nan), st.floats(-2, 2, allow_subnormal=False)),
        min_size=1,
        max_size=8,
    ),
)
def test_the_cost_falls_by_frames_or_by_the_students_score_and_stays_0(
    method, end, returns, scores
):
    kind = dqn_settings.DQNSettings if method == "dqfd" else _Settings
    config = kind(teacher="x", teacher_method=method, teacher_frames=end, teacher_cost=3.0)
    made = Distillation(config)
    made.set_returns(returns)
    made.begin([None], 1)
    share = 1.0
    for i, score in enumerate(scores):
        given = returns.random + score * (returns.teacher - returns.random)
        frames = 70.0 * i
        metrics = made.begin_update(_context(frames, 600.0, given))
        never = method == "constant" and end == AUTO
        share = _share(method, share, frames, given, math.inf if never else 300.0, returns)
        assert float(metrics["teacher_cost"]) == pytest.approx(3 * share, rel=1e-4, abs=1e-4)
        share = float(made.cost()) / 3  # a small one may be 0 in float32
        assert made.is_over() == (share == 0)
        if method == "qdagger":
            expected = pytest.approx(score, rel=1e-3, abs=1e-3, nan_ok=True)
            assert float(metrics["student_score"]) == expected


def test_a_kickstarting_cost_does_not_rise_again_when_a_run_is_to_last_longer():
    made = Distillation(_Settings(teacher="x", teacher_method="kickstarting"))
    made.begin([None], 1)
    costs = [
        float(made.begin_update(_context(frames, end, math.nan))["teacher_cost"])
        for frames, end in ((0.0, 1000.0), (400.0, 1000.0), (400.0, 2000.0), (900.0, 2000.0))
    ]
    assert costs[0] > costs[1] == costs[2] > costs[3] > 0


@pytest.mark.parametrize("method", ["kickstarting", "qdagger", "constant"])
def test_the_cost_stays_in_a_run_that_only_learns_from_recorded_games(method, monkeypatch):
    config = _Settings(teacher="x", teacher_method=method, teacher_frames=50, offline_updates=100)
    for alone, plays in ((dataclasses.replace(config, num_actors=0), ""), (config, "0")):
        monkeypatch.setenv(starter.ACTORS_VARIABLE, plays)
        made = Distillation(alone)
        made.begin([None], 1)
        assert float(made.begin_update(_context(99.0, 100.0))["teacher_cost"]) == 1
        assert not made.is_over()


def test_returns_of_the_flags_count_more_than_those_of_the_checkpoint():
    made = Distillation(_Settings(teacher="x", teacher_return=7.0))
    assert made.returns() == (7.0, -math.inf)
    made.set_returns(Returns(9.0, 2.0))
    assert made.returns() == (7.0, 2.0)


EXCHANGE = GradientReducer(SingleLearner(), Config())


def _ask(made, entries, size):
    """Return the teachers' answers at entries, of as many parameters."""
    made.attach(Host(PolicyDistribution(None, size, ()), remembers=False))
    batch = Batch(entries, (), *[tf.zeros([entries.first.shape[1]])] * 4)
    return made.prepare(batch, Reading(EXCHANGE, None, tuple))[1]


class _Even:
    """A teacher of zeros that counts how often it is asked."""

    greedy, asked = False, 0

    def parameters(self, entries):
        def count():
            self.asked += 1
            return np.zeros([*entries.first.shape, 2], np.float32)

        return tf.ensure_shape(tf.numpy_function(count, [], tf.float32), [*entries.first.shape, 2])


def _entries(first):
    nothing, first = tf.zeros(first.shape), tf.constant(first)
    return Entry(nothing, nothing, first, first, nothing, first, tf.zeros([*first.shape, 2]))


def test_teachers_compute_nothing_once_their_cost_is_0():
    teacher, made = _Even(), Distillation(_Settings(teacher="x", teacher_frames=100))
    made.begin([teacher], 1)
    batch = _entries(np.zeros([3, 2], bool))

    @tf.function(autograph=False)
    def update(frames):
        metrics = made.begin_update(Context(frames, tf.constant(1e9), tf.constant(0.0)))
        taught = _ask(made, batch, 2)
        measured = made.after({"kl_teacher_pi": tf.constant([1.0, 2.0])}, EXCHANGE)
        return metrics, taught.parameters, measured["kl_teacher_pi"]

    for frames, asked, measured in ((0, 1, 0.5), (99, 2, 0.5), (100, 2, np.nan), (50, 2, np.nan)):
        *_, found = update(tf.constant(frames, tf.float32))
        assert teacher.asked == asked
        np.testing.assert_equal(found.numpy(), np.float32(measured))


def test_entries_whose_frames_before_the_unroll_a_teacher_lacks_do_not_count():
    first = np.zeros([6, 3], bool)
    first[0, 1] = first[2, 2] = True
    made = Distillation(_Settings(teacher="x"))
    made.begin([_Even()], 4)
    known = _ask(made, _entries(first), 2).known
    expected = [[0, 1, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    np.testing.assert_array_equal(known, np.array(expected, bool))


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vmpo", {}),
        ("r2d2", {"burn_in": 2}),
    ],
)
def test_a_run_with_a_teacher_is_resumed_without_one(tmp_path, name, flags):
    taught, alone = (
        in_process.made(name, "CartPole-v1", teacher=teacher, **flags)[0].variables
        for teacher in ("x", "")
    )
    assert len(taught.carried) == len(alone.carried) + 2
    for number, variable in enumerate([*taught.trained, *taught.carried]):
        variable.assign(tf.cast(tf.fill(variable.shape, number % 100), variable.dtype))
    checkpoints = run_checkpoints.Checkpoints(tmp_path, taught, keep=1)
    checkpoints.snapshot()
    path = checkpoints.save(checkpoint.CheckpointInfo(1, {}, {}, {}))
    saved_variables.load(path, saved_variables.named(alone))
    saved = [v for v in (*taught.trained, *taught.carried) if not v.name.startswith("teacher_")]
    for there, here in zip(saved, [*alone.trained, *alone.carried], strict=True):
        assert there.name == here.name
        np.testing.assert_array_equal(there.numpy(), here.numpy(), err_msg=here.name)


@pytest.mark.parametrize(
    ("name", "level", "own"),
    [
        ("ppo", "Pendulum-v1", {"minibatches": 1, "epochs": 1}),
        ("sac", "Pendulum-v1", {"compile_updates": False, "updates_per_step": 0.25}),
    ],
)
def test_the_learning_rate_of_each_kind_of_student_follows_the_teachers_cost(name, level, own):
    """After 300 of 400 frames a quarter of the cost is left."""
    algorithm, exchange = in_process.made(
        name, level, batch_size=2, unroll_length=2, teacher="x", teacher_method="kickstarting",
        teacher_frames=400.0, teacher_rate=0.1, learning_rate=0.02,
        learning_rate_schedule="constant", **own,
    )  # fmt: skip
    algorithm.features.get(Distillation).begin([_Even()], 1)
    batch = in_process.tensors(in_process.random_batch(algorithm, 3, 2))
    metrics, _ = algorithm.update(batch, _context(300.0), exchange)
    expected = 0.25 * 0.1 + 0.75 * 0.02
    assert float(metrics["learning_rate"]) == pytest.approx(expected)
    optimizer = algorithm._optimizers["policy"] if name == "sac" else algorithm._optimizer
    assert float(optimizer.learning_rate) == pytest.approx(expected)
