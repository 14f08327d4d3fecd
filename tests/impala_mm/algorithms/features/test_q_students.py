"""Students that compute values: complete updates of DQN and R2D2 with a teacher."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms import registry
from impala_mm.algorithms.feature import Reading
from impala_mm.algorithms.features.teacher import Distillation, Returns
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_learning import algorithm as q_learning
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from impala_mm.records import checkpoint, run_checkpoints, saved_variables
from tests.helpers import in_threads
from tests.impala_mm.algorithms.q_learning import test_q_learning as family

B, PROGRESS = family.B, family.PROGRESS
TEACHER = {"teacher": "x", "teacher_method": "constant"}


class Teacher:
    """A teacher of values, which are sums of the observations' numbers."""

    greedy = True

    def __init__(self, temperature=0.1):
        self._temperature, self.asked = temperature, 0

    def values(self, entries):
        seen = tf.cast(entries.observation, tf.float32)
        return tf.stack([seen[..., 0] - seen[..., 2], seen[..., 1] * 2.0], -1)

    def parameters(self, entries):
        self.asked += 1
        return self.values(entries) / self._temperature


def _taught(group=None, teacher=None, **settings):
    algorithm, exchange = family._made(group, **TEACHER | settings)
    algorithm.features.get(Distillation).begin([teacher or Teacher()], 1)
    return algorithm, exchange


def _kl(theirs, mine, live, weight):
    """Return the sum over live steps of weight x KL, and the mean over them."""
    p, q = special.log_softmax(theirs / 0.1, -1), special.log_softmax(mine / 0.1, -1)
    terms = np.where(live, np.sum(np.exp(p) * (p - q), -1), 0)
    return np.sum(terms * weight), terms.sum() / live.sum()


@pytest.mark.parametrize("kind", family.KINDS)
@pytest.mark.parametrize("td_cost", [1.0, 0.0])
def test_the_divergence_from_the_teacher_is_added_to_the_loss(kind, td_cost):
    """For every kind of distribution, by the means, whose gradient it has."""
    flags = {"n_steps": 3, "duelling": True, "learning_rate": 0.0, **family.KINDS[kind]}
    alone, exchange = family._made(**flags)
    batch = family._columns(family._batch(alone), slice(None))
    without, priorities = alone.update(batch, PROGRESS, exchange)
    falling = {"teacher_method": "kickstarting", "teacher_frames": 400.0}  # a quarter is left
    algorithm, exchange = _taught(teacher_cost=2.8, td_cost=td_cost, **falling, **flags)
    found, same = algorithm.update(batch, PROGRESS, exchange)
    values = family._outputs(algorithm._online, batch, 0, 5)[0][: family.T]
    e = batch.unrolls
    live = (~e.first[1:] & (batch.weight > 0)).numpy()[: family.T]
    theirs = Teacher().values(e).numpy().astype(np.float64)[: family.T]
    total, mean = _kl(theirs, values, live, batch.weight.numpy())
    expected = td_cost * float(without["loss/total"]) + 0.7 * total / live.size
    assert float(found["loss/total"]) == pytest.approx(expected, rel=1e-4)
    assert float(found["kl_teacher_pi"]) == pytest.approx(mean, rel=1e-4)
    assert float(found["teacher_cost"]) == pytest.approx(0.7)
    np.testing.assert_allclose(same, priorities, rtol=1e-5)


def test_an_update_draws_the_policy_to_the_teachers():
    """By the teacher alone, without targets: DAgger."""
    algorithm, exchange = _taught(td_cost=0.0, learning_rate=0.02)
    batch = family._columns(family._batch(algorithm), slice(None))
    each = [
        float(algorithm.update(batch, PROGRESS, exchange)[0]["kl_teacher_pi"]) for _ in range(20)
    ]
    assert each[-1] < 0.5 * each[0]


def test_a_burn_in_is_read_by_teachers_and_not_taught():
    algorithm, exchange = _taught(
        algorithm="r2d2", burn_in=3, n_steps=2, teacher_cost=1.0, learning_rate=0.0
    )
    batch = family._columns(family._batch(algorithm), slice(None))
    reading = Reading(exchange, None, tuple)
    (taught,) = algorithm.features.begin(batch, PROGRESS, reading).prepared
    expected = Teacher().parameters(batch.unrolls)
    np.testing.assert_array_equal(taught.parameters[0], expected)
    found, _ = algorithm.update(batch, PROGRESS, exchange)
    assert np.isfinite(float(found["kl_teacher_pi"]))


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_recorded_games_are_learnt_from_by_an_ordinary_update_and_their_actions_margin(algorithm):
    """Its actions, and not those of the student, have the costs of the margin and of CQL."""
    flags = {"algorithm": algorithm, "n_steps": 3, "learning_rate": 0.0, "duelling": True}
    flags |= {"burn_in": 2} if algorithm == "r2d2" else {}
    flags |= {"normalize_observations": True, "reward_clipping": "none"}
    alone, exchange = family._made(**flags)
    batch = family._columns(family._batch(alone), slice(None))
    recorded = np.arange(B) >= 3
    batch = batch._replace(key=tf.where(recorded, tf.constant(-1, tf.int64), batch.key))
    context = Context(tf.constant(0.0), tf.constant(1e6), tf.constant(np.nan))
    costs = {"margin_cost": 0.4, "cql_cost": 0.3, "offline_updates": 1, "teacher_data": "x"}
    student, exchange = family._made(**flags, **costs)
    found = student.offline_update(batch, context, exchange)[0]
    skipped = student.unroll.overlap - 1 if algorithm == "r2d2" else 0
    read = batch._replace(unrolls=tf.nest.map_structure(lambda x: x[skipped:], batch.unrolls))
    values = (
        student._online.unroll(
            alone._normaliser.read(batch.unrolls), batch.start, q_draws.Calm(), 1, skipped
        )
        .mean.numpy()
        .astype(np.float64)[: family.T]
    )
    without = alone.update(batch, context, exchange)[0]
    e, weight = read.unrolls, batch.weight.numpy().astype(np.float64)
    live = (~e.first[1:] & (batch.weight > 0)).numpy()[: family.T]
    played = e.action.numpy()[1 : family.T + 1]
    chosen = np.take_along_axis(values, played[..., None], -1)[..., 0]
    others = values + 1.0 * (np.arange(2) != played[..., None])
    margins = np.where(live & recorded, others.max(-1) - chosen, 0)
    in_rewards = values
    if epsilon := student._config.value_rescaling:
        in_rewards = q_values.restore(tf.constant(values), epsilon).numpy()
    taken = np.take_along_axis(in_rewards, played[..., None], -1)[..., 0]
    cql = np.where(live & recorded, special.logsumexp(in_rewards / 0.1, -1) - taken / 0.1, 0)
    added = (0.4 * margins * weight).sum() + (0.3 * cql * weight).sum()
    expected = float(without["loss/total"]) + added / live.size
    assert float(found["loss/total"]) == pytest.approx(expected, rel=1e-4)
    assert float(found["loss/margin"]) == pytest.approx(
        margins.sum() / (live & recorded).sum(), rel=1e-4
    )
    assert student._normaliser.carried[0] == (weight > 0).sum() * family.T, "all count as new"


def test_steps_in_hindsight_are_taught_with_the_goals_that_they_have():
    class Seeing(Teacher):
        def values(self, entries):
            self.shapes = {k: x.shape for k, x in entries.observation.items()}
            goal = entries.observation["desired_goal"]
            return tf.cast(goal[..., :1], tf.float32) + tf.range(15.0)

    config = Config.of_algorithm("dqn")(
        algorithm="dqn", level_name="sandbox.bit_flip:BitFlip-v0", unroll_length=6, her_ratio=4,
        **TEACHER,
    )  # fmt: skip
    algorithm = registry.make_algorithm(config, level_spec(config.level_name))
    teacher = Seeing()
    algorithm.features.get(Distillation).begin([teacher], 1)
    batch = family._columns(family._batch(algorithm), slice(None))
    exchange = GradientReducer(SingleLearner(), config)
    found, priorities = algorithm.update(batch, PROGRESS, exchange)
    assert np.isfinite(float(found["kl_teacher_pi"]))
    assert priorities.shape == [B]
    assert {shape[:2] for shape in teacher.shapes.values()} == {(2, 6 * B)}


def test_teachers_are_asked_no_more_once_the_students_score_is_theirs():
    teacher = Teacher()
    algorithm, exchange = _taught(teacher=teacher, teacher_method="qdagger", teacher_frames=1e9)
    algorithm.features.get(Distillation).set_returns(Returns(500.0, 20.0))
    batch = family._columns(family._batch(algorithm), slice(None))

    def update(score):
        context = Context(tf.constant(1.0), tf.constant(1e9), tf.constant(score))
        return algorithm.update(batch, context, exchange)[0]

    assert float(update(260.0)["teacher_cost"]) == pytest.approx(1.5)
    assert teacher.asked == 1
    assert float(update(501.0)["teacher_cost"]) == 0.0
    found = update(100.0)
    assert float(found["teacher_cost"]) == 0.0
    assert np.isnan(found["kl_teacher_pi"])
    assert teacher.asked == 1
    assert algorithm.features.get(Distillation).is_over()


def test_the_learning_rate_follows_the_teachers_cost():
    algorithm, exchange = _taught(
        teacher_method="kickstarting", teacher_frames=400.0, teacher_rate=0.1, learning_rate=0.02
    )
    batch = family._columns(family._batch(algorithm), slice(None))
    metrics, _ = algorithm.update(batch, PROGRESS, exchange)  # after 300 frames
    assert float(metrics["learning_rate"]) == pytest.approx(0.25 * 0.1 + 0.75 * 0.02)


@pytest.mark.parametrize(
    ("learners", "kind", "distill"),
    [
        (2, "none", "policy_and_value"),
        (4, "categorical", "policy"),
        pytest.param(2, "quantiles", "best_action", marks=pytest.mark.slow),
        pytest.param(4, "none", "margin", marks=pytest.mark.slow),
    ],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    monkeypatch, learners, kind, distill
):
    """With a teacher, and with the cost of recorded actions, in float64."""
    monkeypatch.setattr(q_learning, "QNetwork", family.DoubleQ)

    def learn(group, cost=0.4):
        algorithm, exchange = _taught(
            group, learning_rate=0.01, n_steps=3, distill=distill, teacher_cost=cost, cql_cost=cost,
            target_share=0.3, gradients_clipping=0.01, target_period=2, **family.KINDS[kind],
        )  # fmt: skip
        random = np.random.default_rng(7)
        for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
            variable.assign(random.normal(size=variable.shape) * 0.5)
        batch = family._columns(family._batch(algorithm), in_threads.share_of(group, B))
        for _ in range(4):
            algorithm.update(batch, PROGRESS, exchange)
        return [v.numpy() for v in algorithm.variables.trained]

    (one,) = in_threads.together(1, learn)
    (untaught,) = in_threads.together(1, lambda group: learn(group, 1e-12))
    assert max(np.abs(a - b).max() for a, b in zip(one, untaught, strict=True)) > 1e-3
    for variables in in_threads.together(learners, learn):
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "flags"),
    [("dqn", {}), ("dqn", {"normalize_observations": True}), ("r2d2", {"burn_in": 2})],
)
def test_a_run_with_a_teacher_is_resumed_without_one(tmp_path, name, flags):
    taught, alone = (
        family._made(algorithm=name, teacher=teacher, **flags)[0].variables for teacher in ("x", "")
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
