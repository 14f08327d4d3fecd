"""Cloning and the trust region against NumPy in float64, on hand-made unrolls."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms.feature import NO_FEATURES, Begun, Student
from impala_mm.algorithms.features import clear
from impala_mm.algorithms.impala import off_policy
from impala_mm.algorithms.impala.loss import vtrace_step
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.parts import action_policies, targets
from impala_mm.algorithms.parts.advantages import VTrace
from impala_mm.distributed import gradients, group
from tests.helpers import impala_by_numpy
from tests.helpers.impala_by_numpy import impala_loss
from tests.impala_mm.algorithms.impala.test_impala import _played
from tests.impala_mm.algorithms.parts.test_losses import unrolls
from tests.impala_mm.algorithms.parts.test_vtrace import paper

T, B, A = 4, 3, 3
RANDOM = np.random.default_rng(0)
_log_softmax = partial(special.log_softmax, axis=-1)
PI, MU = RANDOM.normal(0, 1, (2, T, B, A))  # logits
VALUES, RECORDED = RANDOM.normal(0, 2, (2, T, B))
LIVE = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
FRESH, WEIGHT = np.array([False, True, False]), np.array([1.0, 1.0, 0.25])


PROGRESS = Context(tf.constant(0.0), tf.ones([]), tf.constant(0.0))


def _kl(p, q):
    """Return KL(p || q) of logits in float64."""
    return (np.exp(_log_softmax(p)) * (_log_softmax(p) - _log_softmax(q))).sum(-1)


def _clone(cloned, reduction="sum", values=VALUES, recorded=RECORDED):
    """Return (policy's loss, values' loss), and the gradients of their sum."""
    pi, mu, values, recorded = (tf.constant(x, tf.float32) for x in (PI, MU, values, recorded))
    costs = {"policy_cloning_cost": 1.0, "value_cloning_cost": 1.0, "replay": "uniform:10"}
    (feature,) = clear.make(ImpalaSettings(**costs, cloned=cloned), None, Role.LEARNER)
    with tf.GradientTape() as tape:
        tape.watch([pi, values])
        student = Student(
            live=tf.constant(LIVE),
            weight=tf.constant(WEIGHT, tf.float32),
            reduction=reduction,
            actions=(),
            make=action_policies.categorical,
            policy=action_policies.categorical(pi),
            behaviour=mu,
            values=values,
            fresh=tf.constant(FRESH),
        )
        found = feature.loss(student, recorded)
    measured = SimpleNamespace(
        policy=found.measured["loss/policy_cloning"], value=found.measured["loss/value_cloning"]
    )
    np.testing.assert_allclose(found.loss, measured.policy + measured.value, rtol=1e-6)
    return measured, tape.gradient(found.loss, [pi, values])


def test_clears_terms_are_those_of_the_paper_on_replay_alone():
    found, gradients = _clone("replay")
    counts = LIVE * ~FRESH * WEIGHT
    np.testing.assert_allclose(found.policy, (counts * _kl(MU, PI)).sum(), rtol=1e-5)
    np.testing.assert_allclose(found.value, (counts * (VALUES - RECORDED) ** 2).sum(), rtol=1e-5)
    pi, mu = np.exp(_log_softmax(PI)), np.exp(_log_softmax(MU))
    np.testing.assert_allclose(gradients[0], counts[..., None] * (pi - mu), atol=1e-6)
    np.testing.assert_allclose(gradients[1], counts * 2 * (VALUES - RECORDED), atol=1e-5)
    mean, _ = _clone("replay", "mean")
    np.testing.assert_allclose(mean.policy, found.policy / (T * B), rtol=1e-6)


def test_the_predecessors_terms_count_new_unrolls_and_take_the_root():
    found, _ = _clone("all")
    counts = LIVE * WEIGHT
    np.testing.assert_allclose(found.policy, (counts * _kl(PI, MU)).sum(), rtol=1e-5)
    norm = np.sqrt((counts * (VALUES - RECORDED) ** 2).sum())
    np.testing.assert_allclose(found.value, norm, rtol=1e-5)
    found, gradients = _clone("all", values=VALUES, recorded=VALUES)
    assert found.value == 0
    assert np.isfinite(gradients[1]).all()


def test_states_beyond_the_threshold_are_not_trusted():
    divergence = _kl(PI, MU)
    threshold = float(np.median(divergence)) + 1e-4
    found = off_policy.is_trusted(
        action_policies.categorical(tf.constant(PI, tf.float32)),
        action_policies.categorical(tf.constant(MU, tf.float32)),
        threshold,
    )
    np.testing.assert_array_equal(found, divergence <= threshold)
    assert 0 < found.numpy().sum() < T * B


def test_an_untrusted_step_teaches_nothing_and_cuts_the_trace():
    """Against V-trace by the paper, with importance weights of 0 at untrusted steps."""
    values = RANDOM.normal(0, 2, (T + 1, B))
    rewards = RANDOM.normal(0, 1, (T + 1, B))
    actions = RANDOM.integers(0, A, (T + 1, B))
    pi, mu = RANDOM.normal(0, 1, (2, T + 1, B, A))
    divergence = _kl(pi[:-1], mu[:-1])
    threshold = float(np.quantile(divergence, 0.6))
    trusted = divergence <= threshold
    behaviour = np.zeros((T + 1, B))
    behaviour[1:] = np.take_along_axis(_log_softmax(mu[:-1]), actions[1:, :, None], -1)[..., 0]
    log_pi = np.take_along_axis(_log_softmax(pi[:-1]), actions[1:, :, None], -1)[..., 0]
    log_rhos = np.where(trusted, log_pi - behaviour[1:], -np.inf)
    vs, _ = paper(
        *(log_rhos, np.full((T, B), 0.9), rewards[1:], values[:-1], values[-1]),
        *(1.0, 1.0, 1.0, 0.95),
    )
    step = vtrace_step(
        parameters=tf.constant(pi, tf.float32),
        values=tf.constant(values, tf.float32),
        actions=tf.constant(actions, tf.int32),
        rewards=tf.constant(rewards, tf.float32),
        terminated=tf.zeros([T + 1, B], tf.bool),
        first=tf.zeros([T + 1, B], tf.bool),
        behaviour_log_probs=tf.constant(behaviour, tf.float32),
        weight=tf.ones([B]),
        discounting=0.9,
        estimate=VTrace(0.95),
        recorded=tf.constant(np.concatenate([mu[:1], mu[:-1]]), tf.float32),
        trust_region=threshold,
    )
    np.testing.assert_allclose(step.estimates.value_targets, vs, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(step.weights.numpy() > 0, trusted)
    untrusted = ~trusted
    np.testing.assert_allclose(vs[untrusted], values[:-1][untrusted])
    np.testing.assert_array_equal(step.trusted, trusted)


def _impacts_gains(log_pi, log_mu, log_target, advantages, clip):
    """Return what IMPACT's surrogate gains at each step, and its ratios."""
    ratio = np.minimum(np.exp(log_mu - log_target), 2.0) * np.exp(log_pi - log_mu)
    clipped = np.clip(ratio, 1 - clip, 1 + clip)
    return np.minimum(ratio * advantages, clipped * advantages), ratio


def test_the_surrogate_is_that_of_impact():
    log_pi, log_mu, log_target, advantages = RANDOM.normal(0, 1, (4, 50, 20))
    defined, ratio = _impacts_gains(log_pi, log_mu, log_target, advantages, 0.3)
    inputs = [tf.constant(x, tf.float32) for x in (log_pi, log_mu, log_target, advantages)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        gains = off_policy.Surrogate(0.3).gains(*inputs)
        total = tf.reduce_sum(gains)
    np.testing.assert_allclose(gains, defined, rtol=1e-4, atol=1e-6)
    clipped = (ratio > 1.3) & (advantages > 0) | (ratio < 0.7) & (advantages < 0)
    gradients = tape.gradient(total, inputs)
    np.testing.assert_allclose(
        gradients[0], np.where(clipped, 0.0, ratio * advantages), rtol=1e-4, atol=1e-6
    )
    assert gradients[1] is None
    assert gradients[2] is None
    far = tf.constant([[500.0]]), tf.zeros([1, 1]), tf.zeros([1, 1]), tf.constant([[-1.0]])
    assert np.isfinite(off_policy.Surrogate(0.3).gains(*far)).all()


def test_with_impact_v_trace_judges_the_target_policy_and_the_gains_depend_on_all_three():
    random = np.random.default_rng(5)
    inputs = unrolls(5, 6, 8, resets=0)
    values, rewards = (inputs[name].astype(float) for name in ("values", "rewards"))
    target = random.normal(0, 1, (7, 8, 3))
    log_pi, log_target = (
        impala_by_numpy.log_probs(x[:-1], inputs["actions"][1:])
        for x in (inputs["parameters"], target)
    )
    log_mu = inputs["behaviour_log_probs"][1:].astype(float)
    vs, advantages = paper(
        *(log_target - log_mu, np.full((6, 8), 0.9), rewards[1:], values[:-1], values[-1]),
        *(1.0, 1.0, 1.0, 0.95),
    )
    gains, _ = _impacts_gains(log_pi, log_mu, log_target, advantages, 0.3)
    found = impala_loss(
        **inputs, target_parameters=np.float32(target), surrogate=off_policy.Surrogate(0.3),
        discounting=0.9, lambda_=0.95, baseline_cost=0.5, entropy_cost=0.0,
    )  # fmt: skip
    np.testing.assert_allclose(found.policy, -gains.sum(), rtol=1e-4)
    np.testing.assert_allclose(found.baseline, ((vs - values[:-1]) ** 2).sum() / 2, rtol=1e-4)


def test_the_target_policy_of_an_update_is_the_copy_and_not_the_policy():
    """The one that played, the policy and its copy all differ."""
    _, algorithm, batch = _played(impact_clip=0.3, policy_init_scale=1.0)
    policy, copies = algorithm._target._policy, algorithm._target.variables[:-1]
    for variable, copy in zip(policy, copies, strict=True):
        copy.assign(variable * 2.0)
        variable.assign(variable * 1.5)
    loss = algorithm._loss(Begun(batch, (), 0.0, {}), None, NO_FEATURES)[1]
    mine = [variable.numpy() for variable in policy]
    targets.follow(policy, copies)
    entries = algorithm._normaliser.read(batch.unrolls)
    of_copy, *_ = algorithm._unroll(entries, batch.start)
    log_target = impala_by_numpy.log_probs(of_copy[:-1], entries.action[1:])
    for variable, weights in zip(policy, mine, strict=True):
        variable.assign(weights)
    found = impala_by_numpy.learnt(algorithm, batch, log_target)
    gains, _ = _impacts_gains(found.log_pi, found.log_mu, log_target, found.advantages, 0.3)
    assert np.abs(found.log_pi - log_target).max() > 0.1
    np.testing.assert_allclose(loss.policy, -gains[found.live].sum(), rtol=1e-4)
    np.testing.assert_allclose(
        loss.baseline, ((found.targets - found.values) ** 2).sum() / 2, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("cloned", "fresh", "squared_error"),
    [("replay", [True, True, False, False], 1.0), ("all", [True] * 4, 50.0)],
)
def test_an_update_has_the_terms_with_their_costs(cloned, fresh, squared_error):
    """The cost of values is that of errors in units of their running mean."""
    totals = {}
    for policy_cost, value_cost in ((0.0, 0.0), (0.5, 0.25)):
        config, algorithm, batch = _played(
            replay="queue:0.5,uniform:0.5:100",
            policy_cloning_cost=policy_cost,
            value_cloning_cost=value_cost,
            trust_region=0.3,
            cloned=cloned,
        )
        algorithm._unit.learning[0].assign(squared_error)
        for variable in algorithm.variables.trained:
            variable.assign(variable * 1.5)  # the policy has moved since
        batch = batch._replace(fresh=tf.constant(fresh))
        step, _ = algorithm._step(Begun(batch, (), 0.0, {}))
        trusted = step.trusted.numpy()[step.steps.live.numpy()]
        alone = gradients.GradientReducer(group.SingleLearner(), config)
        metrics, _ = algorithm.update(batch, PROGRESS, alone)
        metrics = {name: float(value) for name, value in metrics.items()}
        assert metrics["trusted_share"] == pytest.approx(trusted.mean())
        assert trusted.any()
        totals[policy_cost] = metrics["loss/total"]
    value_cost = 0.25 / squared_error
    added = 0.5 * metrics["loss/policy_cloning"] + value_cost * metrics["loss/value_cloning"]
    assert metrics["loss/policy_cloning"] > 0
    assert metrics["loss/value_cloning"] > 0
    np.testing.assert_allclose(totals[0.5] - totals[0.0], added, rtol=1e-3)


def test_the_target_policy_is_copied_every_few_updates():
    config, algorithm, batch = _played(impact_clip=0.2, impact_target_updates=2)
    alone = gradients.GradientReducer(group.SingleLearner(), config)
    copies, policy = algorithm._target.variables[:-1], algorithm._target._policy
    after = []
    for _ in range(3):
        algorithm.update(batch, PROGRESS, alone)
        after.append([v.numpy() for v in policy])
    for copy, second, third in zip(copies, after[1], after[2], strict=True):
        np.testing.assert_array_equal(copy, second)
        assert np.abs(third - second).max() > 0
    assert set(map(id, copies)) <= set(map(id, algorithm.variables.carried))
    assert not set(map(id, copies)) & set(map(id, algorithm.variables.acting))


def test_the_divergence_from_the_policy_that_played_is_that_of_new_unrolls():
    added = {}
    for cost in (0.0, 1.0):
        config, algorithm, batch = _played(kl_mu_pi_cost=cost)
        for variable in algorithm.variables.trained:
            variable.assign(variable * 1.5)  # the policy has moved since
        exchange = gradients.GradientReducer(group.SingleLearner(), config)
        for number in (0, 2, 4):
            given = batch._replace(fresh=tf.range(4) < number)
            features = algorithm.features
            begun = features.begin(given, PROGRESS, algorithm._reading(given, exchange))
            loss, *_ = algorithm._loss(begun, None, features)
            added[number] = float(loss) - added.get(number, 0.0)
    assert added[4] > added[2] > added[0] == 0
