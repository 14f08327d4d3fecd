"""Students that compute values: complete updates of DQN and R2D2 with a teacher."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms.feature import Reading
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from tests.helpers import in_process
from tests.helpers.in_process import tensors
from tests.impala_mm.algorithms.q_learning import test_q_learning as family

B, PROGRESS = family.B, family.PROGRESS
TEACHER = {"teacher": "x", "teacher_method": "constant"}


class Teacher:
    """A teacher of values, which are sums of the observations' numbers."""

    greedy = True

    def parameters(self, entries):
        return self.values(entries) / 0.1

    def values(self, entries):
        seen = self.seen = tf.cast(entries.observation, tf.float32)
        return tf.stack([seen[..., 0] - seen[..., 2], seen[..., 1] * 2.0], -1)


def _taught(group=None, **settings):
    algorithm, exchange = family._made(group, **TEACHER | settings)
    algorithm.features.get(Distillation).begin([Teacher()], 1)
    return algorithm, exchange


@pytest.mark.parametrize(
    ("kind", "td_cost"), [("none", 1.0), ("categorical", 0.0), ("quantiles", 1.0)]
)
def test_the_divergence_from_the_teacher_is_added_to_the_loss(kind, td_cost):
    """For every kind of distribution, by the means, whose gradient it has."""
    flags = {"n_steps": 3, "duelling": True, "learning_rate": 0.0, **family.KINDS[kind]}
    alone, exchange = family._made(**flags)
    batch = tensors(family._batch(alone))
    without, priorities = alone.update(batch, PROGRESS, exchange)
    falling = {"teacher_method": "kickstarting", "teacher_frames": 400.0}  # a quarter is left
    algorithm, exchange = _taught(teacher_cost=2.8, td_cost=td_cost, **falling, **flags)
    found, same = algorithm.update(batch, PROGRESS, exchange)
    mine = family._outputs(algorithm._online, batch, 0, 5)[0][: family.T]
    theirs = np.float64(Teacher().values(batch.unrolls))[: family.T]
    live = (~batch.unrolls.first[1:] & (batch.weight > 0)).numpy()[: family.T]
    p, q = (special.softmax(x / 0.1, -1) for x in (theirs, mine))
    terms = np.where(live, special.rel_entr(p, q).sum(-1), 0)
    expected = td_cost * float(without["loss/total"])
    expected += 0.7 * np.sum(terms * batch.weight.numpy()) / live.size
    assert float(found["loss/total"]) == pytest.approx(expected, rel=1e-4)
    assert float(found["kl_teacher_pi"]) == pytest.approx(terms.sum() / live.sum(), rel=1e-4)
    distances = np.abs(theirs - mine).mean(-1)[live]
    assert float(found["q/teacher_error"]) == pytest.approx(distances.mean(), rel=1e-4)
    assert float(found["teacher_cost"]) == pytest.approx(0.7)
    np.testing.assert_allclose(same, priorities, rtol=1e-5)


def test_a_burn_in_is_read_by_teachers_and_not_taught():
    algorithm, exchange = _taught(algorithm="r2d2", burn_in=3, n_steps=2, teacher_cost=1.0)
    batch = tensors(family._batch(algorithm))
    reading = Reading(exchange, None, tuple)
    (taught,) = algorithm.features.begin(batch, PROGRESS, reading).prepared
    np.testing.assert_array_equal(taught.parameters[0], Teacher().parameters(batch.unrolls))
    found, _ = algorithm.update(batch, PROGRESS, exchange)
    assert np.isfinite(float(found["kl_teacher_pi"]))


def test_recorded_games_are_learnt_from_by_an_ordinary_update_and_their_actions_margin():
    """Its actions, and not those of the student, have the costs of the margin and of CQL."""
    flags = {
        "algorithm": "r2d2", "n_steps": 3, "learning_rate": 0.0, "duelling": True, "burn_in": 2,
        "normalize_observations": True, "reward_clipping": "none",
    }  # fmt: skip
    alone, exchange = family._made(**flags)
    batch = tensors(family._batch(alone))
    recorded = np.arange(B) >= 3
    batch = batch._replace(key=tf.where(recorded, tf.constant(-1, tf.int64), batch.key))
    context = Context(tf.constant(0.0), tf.constant(1e6), tf.constant(np.nan))
    costs = {"margin_cost": 0.4, "cql_cost": 0.3, "offline_updates": 1, "teacher_data": "x"}
    student, exchange = family._made(**flags, **costs)
    found = student.offline_update(batch, context, exchange)[0]
    read = alone._normaliser.read(batch.unrolls)
    values = student._online.unroll(read, batch.start, q_draws.Calm(), 1, 2).mean[: family.T]
    without = alone.update(batch, context, exchange)[0]
    weight = batch.weight.numpy().astype(np.float64)
    e = batch.unrolls
    first, played = (x.numpy()[3 : family.T + 3] for x in (e.first, e.action))
    live = ~first & (weight > 0)
    in_rewards = q_values.restore(values, student._config.value_rescaling)
    values, in_rewards = np.float64(values), np.float64(in_rewards)
    one_hot = np.eye(2)[played]
    margins = (values + 1.0 - one_hot).max(-1) - (values * one_hot).sum(-1)
    cql = special.logsumexp(in_rewards / 0.1, -1) - (in_rewards * one_hot).sum(-1) / 0.1
    counted = live & recorded
    added = np.sum((0.4 * margins + 0.3 * cql) * weight * counted)
    expected = float(without["loss/total"]) + added / live.size
    assert float(found["loss/total"]) == pytest.approx(expected, rel=1e-4)
    assert float(found["loss/margin"]) == pytest.approx(margins[counted].mean(), rel=1e-4)
    assert student._normaliser.carried[0] == (weight > 0).sum() * family.T, "all count as new"


def test_steps_in_hindsight_are_taught_with_the_goals_that_they_have():
    class Seeing(Teacher):
        def values(self, entries):
            self.seen = goal = entries.observation["desired_goal"]
            return tf.cast(goal[..., :1], tf.float32) + tf.range(15.0)

    algorithm, exchange = in_process.made(
        "dqn", "sandbox.bit_flip:BitFlip-v0", unroll_length=family.T, her_ratio=4, **TEACHER
    )
    teacher = Seeing()
    algorithm.features.get(Distillation).begin([teacher], 1)
    found, priorities = algorithm.update(tensors(family._batch(algorithm)), PROGRESS, exchange)
    assert np.isfinite(float(found["kl_teacher_pi"]))
    assert priorities.shape == [B]
    assert teacher.seen.shape[:2] == (2, family.T * B)
