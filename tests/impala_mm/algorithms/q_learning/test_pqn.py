"""PQN's targets, gradients and minibatches, against NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import player
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_process, in_threads
from tests.helpers.in_process import tensors
from tests.impala_mm.algorithms.features.test_q_students import Teacher
from tests.impala_mm.algorithms.q_learning import test_q_learning as family

B, T, ACTIONS, PROGRESS = family.B, family.T, family.ACTIONS, family.PROGRESS
LAMBDA, RESCALING = 0.8, 0.001
MASKS = tf.TensorSpec([ACTIONS], tf.bool)
ONE_STEP = {
    "batch_size": B, "epochs": 1, "minibatches": 1, "q_lambda": LAMBDA, "gradients_clipping": -1.0,
    "duelling": True, "learning_rate": 0.0,
}  # fmt: skip


def _made(group=None, role=Role.LEARNER, **settings):
    return family._made(group, "pqn", role=role, **settings)


def _rescaled(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + RESCALING * x


def _restored(y):
    """Return the inverse of `_rescaled`, by R2D2's published formula."""
    root = np.sqrt(1 + 4 * RESCALING * (np.abs(y) + 1 + RESCALING))
    return np.sign(y) * (((root - 1) / (2 * RESCALING)) ** 2 - 1)


def _returns(batch, best):
    """Return the targets of live steps: the weighted sum of the returns of n steps, for all n."""
    e, found = batch.unrolls, np.zeros([T, B])
    live = ~e.first[1:] & (batch.weight > 0)
    for t, b in np.argwhere(live):
        returns, total, discount = [], 0.0, 1.0
        for k in range(t + 1, T + 1):
            total += discount * e.reward[k, b]
            discount *= 0.0 if e.terminated[k, b] else 0.99
            returns.append(total + discount * best[k, b])
            if e.terminated[k, b] or e.truncated[k, b]:
                break
        shares = [(1 - LAMBDA) * LAMBDA**i for i in range(len(returns) - 1)]
        found[t, b] = np.dot([*shares, LAMBDA ** (len(returns) - 1)], returns)
    return found, live


def _terms(output, actions, targets):
    """Return the losses of steps [T, B], and their derivatives by values or logits [T, B, A, ...].

    The loss of values is Huber's. That of logits is the divergence from the target, which is
    divided between the two atoms next to it.
    """
    chosen = np.eye(ACTIONS)[actions]
    if output.ndim == 3:
        errors = targets - (output * chosen).sum(-1)
        inside = np.clip(errors, -0.3, 0.3)
        assert 0 < (inside == errors).mean() < 1
        return inside * (errors - inside / 2), -inside[..., None] * chosen
    atoms = np.linspace(-2, 2, 11)
    goals = np.maximum(0, 1 - np.abs(np.clip(targets, -2, 2)[..., None] - atoms) / 0.4)
    probs = special.softmax((output * chosen[..., None]).sum(2), -1)
    of_values = chosen[..., None] * (probs - goals)[:, :, None]
    return special.rel_entr(goals, probs).sum(-1), of_values


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("none", {"value_rescaling": RESCALING, "minibatch_of": "unrolls"}),
        ("none", {"loss_reduction": "sum", "teacher_cost": 0.7}),
        ("categorical", {"minibatch_of": "steps"}),
    ],
)
def test_values_learn_the_returns_of_lambda_of_the_best_allowed_actions(kind, settings):
    flags = ONE_STEP | family.KINDS[kind] | {"masks": MASKS} | settings
    taught = "teacher_cost" in settings
    if taught:
        flags |= {"teacher": "x", "teacher_method": "constant"}
    algorithm, exchange = _made(**flags)
    in_process.fill(algorithm.variables.trained, spread=0.1)
    if taught:
        algorithm.features.get(Distillation).begin([Teacher()], 1)
    batch = family._batch(algorithm)
    given = tensors(batch)
    found = {}
    exchange.apply = lambda optimizer, gradients, variables: found.update(gradients=gradients)
    metrics, priorities = algorithm.update(given, PROGRESS, exchange)
    np.testing.assert_array_equal(priorities, batch.weight)

    with tf.GradientTape() as tape:
        out = algorithm._online.unroll(given.unrolls, given.start, q_draws.Calm(), 1)
        means, numbers = out.mean[:-1], out.numbers[:-1]
    values = out.mean.numpy().astype(float)
    rescaled = "value_rescaling" in settings
    in_rewards = _restored(values) if rescaled else values
    masks = batch.unrolls.mask
    allowed = masks | ~masks.any(-1, keepdims=True)
    best = np.where(allowed, in_rewards, -np.inf).max(-1)
    targets, live = _returns(batch, best)
    targets = _rescaled(targets) if rescaled else targets
    weights = np.where(live, batch.weight, 0) / (1 if "loss_reduction" in settings else T * B)

    played = np.take_along_axis(values[:-1], batch.unrolls.action[1:, :, None], 2)[..., 0]
    errors = targets - played
    output = means if kind == "none" else numbers
    terms, of_values = _terms(output.numpy().astype(float), batch.unrolls.action[1:], targets)
    total, slopes = (weights * terms).sum(), weights.reshape(T, B, *[1] * (of_values.ndim - 2))
    of_values = slopes * of_values
    if taught:
        p = special.softmax(Teacher().values(given.unrolls).numpy()[:-1] / 0.1 + np.where(
            allowed[:-1], 0, -np.inf), -1)  # fmt: skip
        q = special.softmax(np.where(allowed[:-1], values[:-1] / 0.1, -np.inf), -1)
        kl = special.rel_entr(p, q).sum(-1)
        assert float(metrics["kl_teacher_pi"]) == pytest.approx(kl[live].mean(), rel=1e-4)
        total += 0.7 * (weights * kl).sum()
        of_values += 0.7 * slopes * (q - p) / 0.1
    assert float(metrics["loss/total"]) == pytest.approx(total, rel=1e-4)
    steps = T * B if "loss_reduction" in settings else 1
    assert float(metrics["loss_per_step/total"]) == pytest.approx(total / steps, rel=1e-4)
    error = np.where(live, batch.weight * np.abs(errors), 0).mean()
    assert float(metrics["q/error"]) == pytest.approx(error, rel=1e-4)
    assert float(metrics["q/value"]) == pytest.approx(best[:-1][live].mean(), rel=1e-4)
    due = tape.gradient(output, algorithm.variables.trained, tf.constant(of_values, tf.float32))
    for gradient, expected in zip(found["gradients"], due, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5 * steps)


@pytest.mark.parametrize(
    "case",
    [
        {"value_distribution": "quantiles", "num_quantiles": 5, "huber_delta": 1.0},
        pytest.param({"agent_name": "MLPLSTMAgent"}, marks=pytest.mark.slow),
        pytest.param({"normalize_rewards": True}, marks=pytest.mark.slow),
    ],
    ids=["quantiles", "memory", "rewards"],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch, case):
    """A network with a memory reads whole unrolls, from the state that each began with."""
    monkeypatch.setattr(player, "QNetwork", family.DoubleQ)

    def learn(group, rate=0.1, start=1.0):
        algorithm, exchange = _made(
            group, learning_rate=rate, noisy=True, epochs=2, minibatches=2, batch_size=B,
            gradients_clipping=0.1, **case,
        )  # fmt: skip
        in_process.fill(algorithm.variables.trained)
        batch = tensors(family._batch(algorithm), np.arange(B)[in_threads.share_of(group, B)])
        batch = batch._replace(start=tf.nest.map_structure(lambda x: x * start, batch.start))
        for _ in range(2):
            metrics, _ = algorithm.update(batch, PROGRESS, exchange)
        assert metrics["optimizer_steps"] == 4
        return in_threads.arrays(algorithm.variables.trained, algorithm._normaliser.carried)

    row = 0 if "agent_name" in case else B
    one = in_threads.assert_several_are_one_by_minibatches(monkeypatch, learn, row=row)
    assert in_threads.largest_change(one, learn(SingleLearner(), 0.0)) > 1e-3
    if "agent_name" in case:
        assert in_threads.largest_change(one, learn(SingleLearner(), start=0.0)) > 1e-4


def test_actors_record_nothing_and_explore_by_the_learners_share():
    settings = {"epsilon_frames": 600.0, "epsilon_start": 0.9, "epsilon_end": 0.1}
    algorithm, exchange = _made(batch_size=B, **settings)
    assert not tf.nest.flatten(algorithm.unroll.step.extras)
    metrics, _ = algorithm.update(tensors(family._batch(algorithm)), PROGRESS, exchange)
    assert float(metrics["epsilon"]) == pytest.approx(0.5)
    actor, _ = _made(role=Role.ACTOR)
    for own, given in zip(actor.variables.acting, algorithm.variables.acting, strict=True):
        own.assign(given)
    assert float(actor._epsilon) == pytest.approx(0.5)
