"""The loss and the cost of teachers against NumPy and SciPy in float64."""

import dataclasses
import math

import in_threads
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import nets
from impala_mm.algorithms import registry
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
from impala_mm.environments.make import level_spec
from impala_mm.records import checkpoint, run_checkpoints, saved_variables
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


def _measure(made, batch, reduction):
    policy, theirs, live, known, weight = batch
    taught = Taught(tuple(map(tf.constant, theirs)), tf.constant(known))
    return made.measure(
        *(action_policies.categorical(tf.convert_to_tensor(policy)), action_policies.categorical),
        *((), (), tf.constant(live), tf.constant(weight), reduction),
        taught=taught,
    )


@settings(max_examples=40, deadline=None)
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


def test_dead_entries_may_hold_anything():
    made = Regularised(_Settings(teacher="x"), ACTIONS)
    policy, theirs, live, known, weight = _batch(1)
    given = losses.mask(tf.constant(live), tf.constant(policy))
    broken = [losses.mask(live, np.where(live[..., None], t, np.nan)) for t in theirs]
    loss = _measure(made, (given, theirs, live, known, weight), "sum").loss
    assert _measure(made, (given, broken, live, known, weight), "sum").loss.numpy() == loss.numpy()
    assert np.isfinite(loss)


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


@settings(max_examples=60, deadline=None)
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


def test_returns_of_the_flags_count_more_than_those_of_the_checkpoint():
    made = Distillation(_Settings(teacher="x", teacher_return=7.0))
    assert made.returns() == (7.0, -math.inf)
    made.set_returns(Returns(9.0, 2.0))
    assert made.returns() == (7.0, 2.0)


EXCHANGE = GradientReducer(SingleLearner(), Config())


def _ask(made, entries, size=4, earlier=()):
    """Return the teachers' answers at entries, of as many parameters."""
    made.attach(Host(PolicyDistribution(None, size, ()), remembers=False))
    batch = Batch(entries, (), *[tf.zeros([entries.first.shape[1]])] * 4)
    return made.prepare(batch, Reading(EXCHANGE, None, lambda: earlier))[1]


class _Counting:
    """A teacher of zeros that counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def parameters(self, entries):
        def count():
            self.asked += 1
            return np.zeros([*entries.first.shape, 4], np.float32)

        return tf.numpy_function(count, [], tf.float32)


def _entries(first):
    nothing = tf.zeros(first.shape)
    logits = tf.zeros([*first.shape, 4])
    return Entry(nothing, nothing, first, first, nothing, tf.constant(first), logits)


def test_teachers_compute_nothing_once_their_cost_is_0():
    teacher, made = _Counting(), Distillation(_Settings(teacher="x", teacher_frames=100))
    made.begin([teacher], 1)
    batch = _entries(np.zeros([3, 2], bool))

    @tf.function(autograph=False)
    def update(frames):
        metrics = made.begin_update(Context(frames, tf.constant(1e9), tf.constant(0.0)))
        taught = _ask(made, batch)
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
    made.begin([_Counting()], 4)
    known = _ask(made, _entries(first)).known
    expected = [[0, 1, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    np.testing.assert_array_equal(known, np.array(expected, bool))


class _Stacking:
    """A teacher whose network stacks four frames."""

    def __init__(self, name):
        self.network = nets.make(name, IMAGE, ACTIONS, frame_stack=4)

    def parameters(self, e):
        state = self.network.initial_state(e.first.shape[1])
        return self.network.unroll(e.observation, e.reward, e.action, e.first, state)[0]


IMAGE = tf.TensorSpec([84, 84, 1], tf.uint8)


@pytest.mark.parametrize("student", ["SimpleConvNetAgent", "ShallowConvAgent"])
def test_teachers_see_the_frames_before_an_unroll_that_the_student_stacks(student):
    """They answer as if they had read the game from its start, whatever arranges the frames."""
    rng = np.random.default_rng(2)
    first = np.zeros([10, 3], bool)
    first[0] = first[4, 1] = first[7, 2] = True
    action = tf.constant(rng.integers(0, 4, first.shape), tf.int32)
    image = tf.constant(rng.integers(0, 256, [*first.shape, *IMAGE.shape]), tf.uint8)
    reward = tf.zeros(first.shape)
    entries = Entry(action, reward, first, first, image, tf.constant(first), ())
    teacher = _Stacking("SimpleConvNetAgent")
    expected = teacher.parameters(entries)[6:]

    reader = nets.make(student, IMAGE, ACTIONS, frame_stack=4)
    before, unroll = (
        tf.nest.map_structure(lambda x, part=part: x[part], entries)
        for part in (slice(6), slice(6, None))
    )
    e = before
    _, state = reader.unroll(e.observation, e.reward, e.action, e.first, reader.initial_state(3))
    made = Distillation(_Settings(teacher="x"))
    made.begin([teacher], 4)
    size = expected.shape[-1]
    taught = _ask(made, unroll, size, reader.earlier_images(state))
    assert taught.known.numpy().all()
    np.testing.assert_allclose(taught.parameters[0], expected, atol=1e-5)
    lacking = _ask(made, unroll, size)
    apart = np.abs(lacking.parameters[0] - expected).max(-1) > 1e-3
    assert apart.any()
    assert not (apart & lacking.known.numpy()).any()


@pytest.mark.parametrize(("distill", "kinds"), [("value", 1), ("policy_and_value", 2)])
def test_values_of_observations_are_compared_by_their_squared_differences(distill, kinds):
    config = _Settings(
        teacher="x", teacher_cost=0.5, entropy_cost=0.0, distill=distill, loss_reduction="mean"
    )
    made = Regularised(config, ACTIONS)
    policy, theirs, live, known, weight = _batch(4, teachers=2)
    mine, *others = np.random.default_rng(8).normal(size=(3, *live.shape))
    given = tf.Variable(mine)
    taught = Taught(*(tuple(map(tf.constant, theirs)), tf.constant(known)), tuple(others))
    with tf.GradientTape() as tape:
        measured = made.measure(
            *(action_policies.categorical(tf.constant(policy)), action_policies.categorical),
            *((), (), tf.constant(live), tf.constant(weight), "mean"),
            taught=taught,
            values=given,
        )
    counted = np.where(live & known, weight, 0) / live.size
    terms = np.mean([(mine - other) ** 2 for other in others], 0)
    terms += (kinds - 1) * _expected(policy, theirs)
    assert float(measured.loss) == pytest.approx(0.5 * np.sum(counted * terms), rel=1e-9)
    slope = counted * (mine - np.mean(others, 0))
    np.testing.assert_allclose(tape.gradient(measured.loss, given), slope, atol=1e-12)
    assert "loss/teacher" in measured.totals


def test_a_margin_needs_values_of_actions():
    for flags in ({"distill": "margin"}, {"teacher_method": "dqfd"}):
        with pytest.raises(ValueError, match=r"use --distill=best_action, or --algorithm=dqn"):
            _Settings(teacher="x", **flags)


def test_two_learners_with_half_the_columns_each_have_the_gradient_of_one():
    """With --loss_reduction=mean, in all digits that float64 has."""
    config = _Settings(teacher="x", teacher_cost=2.0, loss_reduction="mean")
    whole = _batch(5, teachers=2, columns=4)

    def act(size):
        def one(of):
            made, exchange = Regularised(config, ACTIONS), GradientReducer(of, Config())
            part = slice(of.rank * 4 // size, (of.rank + 1) * 4 // size)
            policy, theirs, live, known, weight = whole
            logits = tf.Variable(np.zeros_like(policy[:, :1]))

            def loss():
                given = logits + policy[:, part]
                rest = [t[:, part] for t in theirs], live[:, part], known[:, part], weight[part]
                return (_measure(made, (given, *rest), "mean").loss,)

            exchange.begin(0)
            _, gradients = exchange.differentiate(loss, [logits])
            return exchange.average(gradients)[0].numpy()

        return in_threads.together(size, one)

    (alone,) = act(1)
    for learner in act(2):
        np.testing.assert_allclose(learner, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("ppo", {}),
        ("vmpo", {}),
        ("impala", {"impact_clip": 0.3, "target_kl_pi_mu": 0.01}),
    ],
)
def test_a_run_with_a_teacher_is_resumed_without_one(tmp_path, name, flags):
    taught, alone = (
        registry.make_algorithm(
            Config.of_algorithm(name)(algorithm=name, teacher=teacher, **flags),
            level_spec("CartPole-v1"),
        ).variables
        for teacher in ("x", "")
    )
    assert len(taught.carried) == len(alone.carried) + 2
    for number, variable in enumerate([*taught.trained, *taught.carried]):
        variable.assign(tf.cast(tf.fill(variable.shape, number), variable.dtype))
    checkpoints = run_checkpoints.Checkpoints(tmp_path, taught, keep=1)
    checkpoints.snapshot()
    path = checkpoints.save(checkpoint.CheckpointInfo(1, {}, {}, {}))
    saved_variables.load(path, saved_variables.named(alone))
    saved = [v for v in (*taught.trained, *taught.carried) if not v.name.startswith("teacher_")]
    loaded = [*alone.trained, *alone.carried]
    for there, here in zip(saved, loaded, strict=True):
        assert there.name == here.name
        np.testing.assert_array_equal(there.numpy(), here.numpy(), err_msg=here.name)


class _Even:
    """A teacher whose numbers are all 0."""

    greedy = False

    def parameters(self, entries):
        return tf.zeros([*entries.reward.shape, 2])


@pytest.mark.parametrize("name", ["impala", "ppo", "sac"])
def test_the_learning_rate_of_each_kind_of_student_follows_the_teachers_cost(name):
    """After 300 of 400 frames a quarter of the cost is left."""
    own = {"sac": {"compile_updates": False, "updates_per_step": 0.25}, "ppo": {"minibatches": 1}}
    config = Config.of_algorithm(name)(
        algorithm=name, level_name="Pendulum-v1", batch_size=2, unroll_length=2, teacher="x",
        teacher_method="kickstarting", teacher_frames=400.0, teacher_rate=0.1, learning_rate=0.02,
        learning_rate_schedule="constant", **own.get(name, {}),
    )  # fmt: skip
    algorithm = registry.make_algorithm(config, level_spec("Pendulum-v1"))
    algorithm.features.get(Distillation).begin([_Even()], 1)
    entries = tf.nest.map_structure(
        lambda spec: tf.zeros([3, 2, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    numbers, fresh = tf.range(2, dtype=tf.int64), tf.ones([2], tf.bool)
    batch = Batch(entries, algorithm.initial_state(2), numbers, tf.ones([2]), numbers, fresh)
    exchange = GradientReducer(SingleLearner(), config)
    metrics, _ = algorithm.update(batch, _context(300.0), exchange)
    expected = 0.25 * 0.1 + 0.75 * 0.02
    assert float(metrics["learning_rate"]) == pytest.approx(expected)
    optimizer = algorithm._optimizers.policy if name == "sac" else algorithm._optimizer
    assert float(optimizer.learning_rate) == pytest.approx(expected)
