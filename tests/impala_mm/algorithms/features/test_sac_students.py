"""SAC with a teacher: the divergence in its policy's loss, and SAC as a teacher."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms import registry
from impala_mm.algorithms.feature import Reading, Student, mean
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.sac import algorithm as sac
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.helpers import in_threads
from tests.impala_mm.algorithms.sac import test_sac as family

B, PROGRESS = family.B, family.PROGRESS


class Teacher:
    """A policy whose parameters are sums of the observations' numbers."""

    greedy = False

    def parameters(self, entries):
        seen = entries.observation
        return tf.stack([seen[..., 0] - seen[..., 1], 0.5 * seen[..., 2]], -1)


def _taught(group=None, **settings):
    flags = {"teacher": "x", "teacher_method": "constant", "compile_updates": False}
    algorithm, exchange = family._made(group, **flags | settings)
    algorithm.features.get(Distillation).begin([Teacher()], 1)
    return algorithm, exchange


def test_the_policys_loss_has_the_divergence_of_numbers(monkeypatch):
    monkeypatch.setattr(sac, "PolicyNetwork", family.DoublePolicy)
    monkeypatch.setattr(sac, "CriticNetwork", family.DoubleCritic)
    algorithm, _ = _taught(teacher_cost=0.6)
    family._fill(algorithm)
    batch = family._tensors(family._batch(algorithm))
    e = batch.unrolls
    reading = Reading(None, None, tuple)
    prepared = algorithm.features.begin(batch, PROGRESS, reading).prepared
    taught = tf.nest.map_structure(lambda x: x[:-1], prepared)
    algorithm.features.get(Distillation)._share.assign(0.25)  # the cost has fallen to a quarter
    live = ~e.first[1:] & (batch.weight > 0)
    before = tf.nest.map_structure(lambda x: x[:-1], e)
    policy = algorithm._policy.unroll(before, ())
    student = Student(
        live=live,
        weight=batch.weight,
        reduction="mean",
        actions=(),
        make=lambda x: algorithm._policy.distribution.make(tf.cast(x, tf.float64), before.mask),
        policy=policy,
    )
    loss, (sums,) = algorithm.features.loss(student, taught)

    seen = e.observation[0].numpy().astype(np.float64)
    theirs = np.stack([seen[:, 0] - seen[:, 1], 0.5 * seen[:, 2]], -1)
    mine = seen @ algorithm._policy.layer.w.numpy()

    def normal(parameters):
        raw = parameters[:, 1] + np.log(np.expm1(0.58))
        return parameters[:, 0], 0.02 + np.log1p(np.exp(raw))

    (m, s), (n, r) = normal(theirs), normal(mine)
    kl = np.log(r / s) + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5
    kl = np.where(live[0], kl, 0)
    assert float(loss) == pytest.approx(0.6 * 0.25 * kl.sum() / B, rel=1e-5)
    assert float(mean(sums["kl_teacher_pi"])) == pytest.approx(kl.sum() / live.numpy().sum(), 1e-5)


def test_an_update_draws_the_policy_to_the_teachers():
    algorithm, exchange = _taught(teacher_cost=50.0, learning_rate=0.02)
    batch = family._tensors(family._batch(algorithm))
    each = [
        float(algorithm.update(batch, PROGRESS, exchange)[0]["kl_teacher_pi"]) for _ in range(15)
    ]
    assert each[-1] < 0.5 * each[0]


def test_compiled_updates_learn_from_the_teacher_as_the_graph_does():
    found = []
    for compiled in (False, True):
        algorithm, exchange = _taught(compile_updates=compiled, learning_rate=0.01)
        family._fill(algorithm)
        update = tf.function(
            lambda batch, a=algorithm, x=exchange: a.update(batch, PROGRESS, x)[0], autograph=False
        )
        metrics = update(family._tensors(family._batch(algorithm)))
        assert np.isfinite(metrics["kl_teacher_pi"])
        found.append([v.numpy() for v in algorithm.variables.trained])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_choices_are_drawn_to_a_teacher_of_values():
    config = Config.of_algorithm("sac")(
        algorithm="sac", level_name="CartPole-v1", discrete_sac=True, teacher="x",
        teacher_method="constant", teacher_cost=2.0, compile_updates=False, learning_rate=0.0,
        reward_clipping="none", **family.SMALL,
    )  # fmt: skip
    algorithm = registry.make_algorithm(config, level_spec("CartPole-v1"))
    algorithm.features.get(Distillation).begin([Teacher()], 1)
    exchange = GradientReducer(SingleLearner(), config)
    batch = family._tensors(family._batch(algorithm))
    found = algorithm.update(batch, PROGRESS, exchange)[0]
    before = tf.nest.map_structure(lambda x: x[:-1], batch.unrolls)
    policy = algorithm._policy.unroll(before, batch.start[0])
    theirs = special.log_softmax(Teacher().parameters(batch.unrolls)[0].numpy(), -1)
    mine = special.log_softmax(policy.logits.numpy()[0], -1)
    live = (~batch.unrolls.first[1] & (batch.weight > 0)).numpy()
    kl = np.sum(np.exp(theirs) * (theirs - mine), -1)[live]
    # Four minibatches, each with a mean of its own.
    assert kl.min() * 0.9 <= float(found["kl_teacher_pi"]) <= kl.max() * 1.1


def test_two_learners_with_half_the_columns_each_are_one_with_all(monkeypatch):
    monkeypatch.setattr(sac, "PolicyNetwork", family.DoublePolicy)
    monkeypatch.setattr(sac, "CriticNetwork", family.DoubleCritic)

    def learn(group, cost=3.0):
        algorithm, exchange = _taught(
            group, learning_rate=0.01, critic_rate=0.01, gradients_clipping=0.1, teacher_cost=cost
        )
        family._fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = family._tensors(batches.columns(family._batch(algorithm), mine))
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        return [v.numpy() for v in algorithm.variables.trained]

    several = in_threads.together(2, learn)
    monkeypatch.setattr(
        minibatches, "shuffled_parts", family._joined(minibatches.shuffled_parts, 2)
    )
    (one,) = in_threads.together(1, learn)
    (untaught,) = in_threads.together(1, lambda group: learn(group, 1e-12))
    assert max(np.abs(a - b).max() for a, b in zip(one, untaught, strict=True)) > 1e-3
    for variables in several:
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"distill": "value"}, "--distill=value: SAC's values contain the weighted entropy"),
        ({"teacher_method": "dqfd"}, "--teacher_method=dqfd compares values of actions, of which"),
    ],
)
def test_what_sac_cannot_take_over_is_refused(flags, said):
    with pytest.raises(ValueError, match=said):
        family._config(teacher="x", **flags)


def test_recorded_games_are_learnt_from_by_an_ordinary_update_that_counts_them_as_new():
    """The normaliser sees them, and actors no longer play at random afterwards."""
    flags = {"compile_updates": False, "normalize_observations": True, "updates_per_step": 2.0}
    weights = []
    for recorded in (True, False):
        algorithm, exchange = family._made(**flags)
        family._fill(algorithm)
        batch = family._tensors(family._batch(algorithm))
        if recorded:
            update = algorithm.offline_update
            batch = batch._replace(key=-tf.ones_like(batch.key), fresh=tf.zeros([B], tf.bool))
        else:
            update = algorithm.update
            batch = batch._replace(fresh=batch.weight > 0)
        tf.random.set_seed(3)
        update(batch, PROGRESS, exchange)
        assert float(algorithm._plays_randomly) == 0
        assert algorithm._normaliser.carried[0] == B - 1, "one column is padding"
        weights.append([v.numpy() for v in algorithm.variables.trained])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sac_teaches_what_it_plays():
    algorithm, _ = family._made(role=sac.Role.EVALUATOR)
    batch = family._tensors(family._batch(algorithm))
    judged = algorithm.judge_unroll(batch.unrolls, batch.start)
    for t in (0, 1):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], batch.unrolls)
        expected = algorithm.judge(entry, batch.start)
        np.testing.assert_allclose(judged.parameters[t], expected.parameters, rtol=1e-5)
        np.testing.assert_allclose(judged.value[t], expected.value, rtol=1e-4, atol=1e-5)
