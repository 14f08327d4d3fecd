"""The update that DQN and R2D2 share."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import Context, EnvironmentNumber, Role
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import player
from impala_mm.algorithms.q_learning.network import QNetwork
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import Double, DoubleOfImages, DoubleRecurrent
from tests.helpers.in_process import tensors

T, B, ACTIONS = 6, 8, 2
KINDS = {
    "none": {"huber_delta": 0.3},
    "categorical": {
        "value_distribution": "categorical", "num_atoms": 11, "v_min": -2.0, "v_max": 2.0,
    },
    "quantiles": {
        "value_distribution": "quantiles", "num_quantiles": 5, "num_target_quantiles": 4,
        "num_policy_quantiles": 6,
    },
}  # fmt: skip
IMAGE = tf.TensorSpec([9, 8, 1], tf.uint8)
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(group=None, algorithm="dqn", masks=(), observation=None, **settings):
    def spec(environment):
        observed = environment.observation if observation is None else observation
        return environment._replace(masks=masks, observation=observed)

    settings |= {"unroll_length": T}
    return in_process.made(algorithm, "CartPole-v1", spec, group, **settings)


def _batch(algorithm):
    """Return a batch with a termination, a truncation, resets, and a column of padding."""
    batch = in_process.random_batch(algorithm, T + algorithm.unroll.overlap, B)
    e = batch.unrolls
    e.terminated[2, 0] = e.first[3, 0] = e.truncated[4, 1] = e.first[5, 1] = e.first[0, 2] = True
    weight = np.linspace(0.2, 1.0, B, dtype=np.float32) * batch.weight
    return batch._replace(weight=weight, fresh=np.arange(B) < 2)


def _outputs(network, batch, use, count=1):
    """Return what the first update reads of a network, in float64."""
    draws = q_draws.Trained(SingleLearner(), 1, tf.constant(0, tf.int64), use, B, 1)
    found = network.unroll(batch.unrolls, batch.start, draws, count)
    levels = () if isinstance(found.levels, tuple) else found.levels.numpy()
    return *(x.numpy().astype(np.float64) for x in found[:2]), levels


def _step_loss(kind, played, levels, target, probabilities):
    """Return (loss, error) of a step by its numbers [N] and its target's outcomes [M]."""
    if kind == "none":
        error = (target * probabilities).sum() - played[0]
        inside = min(abs(error), 0.3)
        return inside * (abs(error) - inside / 2), abs(error)
    if kind == "categorical":
        atoms = np.linspace(-2, 2, 11)
        goal = np.zeros(11)
        for value, probability in zip(target, probabilities, strict=True):
            goal += probability * np.maximum(0, 1 - np.abs(np.clip(value, -2, 2) - atoms) / 0.4)
        probs = np.exp(played) / np.exp(played).sum()
        loss = sum(g * np.log(g / p) for g, p in zip(goal, probs, strict=True) if g > 0)
        return loss, abs((target * probabilities).sum() - probs @ atoms)
    loss = 0.0
    for value, level in zip(played, levels, strict=True):
        for outcome, probability in zip(target, probabilities, strict=True):
            error = outcome - value
            size = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
            loss += probability * abs(level - (error < 0)) * size
    return loss, abs(target.mean() - played.mean())


def _expected_losses(kind, batch, online, future, n_steps, double):
    """Return (losses, errors) [T, B], going on from each step for itself."""
    (means, numbers, levels), (target_means, following, _) = online, future
    e = tf.nest.map_structure(lambda x: x.numpy(), batch.unrolls)
    losses, errors = np.zeros([2, T, B])
    for b in range(B):
        for t in range(T):
            if e.first[t + 1, b] or not batch.weight[b]:
                continue
            total, factor, now = 0.0, 1.0, t
            while now < t + n_steps and not e.first[now + 1, b]:
                now += 1
                total += factor * e.reward[now, b]
                factor *= 0.0 if e.terminated[now, b] else 0.99
            allowed = np.ones(ACTIONS, bool)
            if not isinstance(e.mask, tuple) and e.mask[now, b].any():
                allowed = e.mask[now, b]
            judged = means if double else target_means
            best = max(np.flatnonzero(allowed), key=lambda a: judged[now, b, a])
            after = following[now, b, best]
            probabilities = np.full(len(after), 1 / len(after))
            if kind == "categorical":
                probabilities = np.exp(after) / np.exp(after).sum()
                after = np.linspace(-2, 2, 11)
            losses[t, b], errors[t, b] = _step_loss(
                kind,
                numbers[t, b, e.action[t + 1, b]],
                levels[t, b] if kind == "quantiles" else (),
                total + factor * after,
                probabilities,
            )
    return losses, errors


def _move(algorithm, by=0.1):
    random = np.random.default_rng(5)
    for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
        variable.assign_add(random.normal(size=variable.shape) * by)


@pytest.mark.parametrize(
    ("kind", "n_steps", "double", "masked", "reduction"),
    [
        ("none", 1, True, False, "mean"),
        ("none", 3, False, False, "sum"),
        ("none", 3, True, True, "mean"),
        ("categorical", 3, True, True, "sum"),
        ("quantiles", 3, False, False, "mean"),
    ],
)
def test_each_step_has_a_whole_target_and_its_unroll_a_priority(
    kind, n_steps, double, masked, reduction
):
    masks = tf.TensorSpec([ACTIONS], tf.bool) if masked else ()
    algorithm, exchange = _made(
        masks=masks, n_steps=n_steps, double_q=double, duelling=True, noisy=masked,
        learning_rate=0.0, loss_reduction=reduction, **KINDS[kind],
    )  # fmt: skip
    _move(algorithm)
    batch = tensors(_batch(algorithm))
    assert batch.unrolls.reward.shape == (T + n_steps, B), "as many entries as a target needs"
    online = _outputs(algorithm._online, batch, 0, 5)
    future = _outputs(algorithm._target, batch, 1, 4)
    losses, errors = _expected_losses(kind, batch, online, future, n_steps, double)
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    weight = batch.weight.numpy()
    loss = (losses * weight).mean()
    total = loss * (T * B if reduction == "sum" else 1)
    assert float(metrics["loss/total"]) == pytest.approx(total, rel=1e-4)
    assert float(metrics["loss_per_step/total"]) == pytest.approx(loss, rel=1e-4)
    assert float(metrics["q/error"]) == pytest.approx((errors * weight).mean(), rel=1e-4)
    sizes, live = errors if kind == "none" else losses, losses > 0
    expected = 0.9 * sizes.max(0) + 0.1 * sizes.sum(0) / np.maximum(live.sum(0), 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-4, atol=1e-6)
    trained = ~batch.unrolls.first.numpy()[1 : T + 1] & (weight > 0)
    values = online[0]
    if masked:
        masks = batch.unrolls.mask.numpy()
        values = np.where(masks | ~masks.any(-1, keepdims=True), values, -np.inf)
    largest = values.max(-1)[:T][trained]
    assert float(metrics["q/value"]) == pytest.approx(largest.mean(), rel=1e-4)
    assert float(metrics["q/largest"]) == pytest.approx(largest.max(), rel=1e-4)
    second, best = np.sort(values, -1)[:T][trained].T[-2:]
    gaps = (best - second)[np.isfinite(second)]
    assert 0 < len(gaps) <= len(best)
    assert float(metrics["q/action_gap"]) == pytest.approx(gaps.mean(), rel=1e-3, abs=1e-6)


def test_the_first_priority_of_an_unroll_is_that_of_its_own_steps():
    """Later steps, which only complete its targets, belong to the next unroll."""
    algorithm, _ = _made(n_steps=3)
    batch = _batch(algorithm)
    played, entries = batch.unrolls.extras.copy(), batch.unrolls
    found = algorithm.first_priorities(tf.nest.map_structure(tf.constant, entries), ())
    played[T + 1 :, :, 0] += 100
    changed = tf.nest.map_structure(tf.constant, entries._replace(extras=played))
    np.testing.assert_array_equal(algorithm.first_priorities(changed, ()), found)
    played[T, :, 0] += 100
    changed = tf.nest.map_structure(tf.constant, entries._replace(extras=played))
    assert (algorithm.first_priorities(changed, ()).numpy() > found.numpy() + 50).all()


def test_losses_are_averaged_over_shifts_of_values_and_of_targets():
    shifts = {"random_shift": 2, "value_shifts": 2, "target_shifts": 3}
    algorithm, exchange = _made(
        observation=IMAGE, n_steps=2, learning_rate=0.0, precision="float32", **shifts,
        **KINDS["none"],
    )  # fmt: skip
    _move(algorithm, 0.02)
    batch = tensors(_batch(algorithm))

    def read(network, use, copies):
        """Return (means, numbers) of each copy, whose images are shifted here."""
        draws = q_draws.Trained(SingleLearner(), 1, tf.constant(0, tf.int64), use, B, copies)
        offsets = draws.offsets(2).numpy().reshape(copies, B, 2)
        found = []
        for of_copy in offsets:
            moved = batch.unrolls.observation.numpy().copy()
            for b, (down, right) in enumerate(of_copy):
                padded = np.pad(moved[:, b], [(0, 0), (2, 2), (2, 2), (0, 0)], "edge")
                moved[:, b] = padded[:, 2 - down :, 2 - right :][:, :9, :8]
            shifted = batch._replace(unrolls=batch.unrolls._replace(observation=moved))
            found.append(_outputs(network, shifted, use)[:2])
        assert len(np.unique(offsets.reshape(-1, 2), axis=0)) > 3
        return [np.array(x) for x in zip(*found, strict=True)]

    means, numbers = read(algorithm._online, 0, 2)
    target_means, following = read(algorithm._target, 1, 3)
    future = (target_means.mean(0), following.mean(0), ())
    each = [
        _expected_losses("none", batch, (means.mean(0), one, ()), future, 2, True)
        for one in numbers
    ]
    losses, errors = np.mean(each, 0)
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    weight = batch.weight.numpy()
    assert float(metrics["loss/total"]) == pytest.approx((losses * weight).mean(), rel=1e-3)
    live = errors > 0
    expected = 0.9 * errors.max(0) + 0.1 * errors.sum(0) / np.maximum(live.sum(0), 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("role", "settings", "number", "share"),
    [
        (Role.ACTOR, {"noisy": True, "noisy_scale": 1e-6}, 0, 0.0),
        (Role.ACTOR, {"noisy": True, "noisy_scale": 1e-6, "epsilon_schedule": "decay"}, 0, 1.0),
        (Role.ACTOR, {"epsilon_schedule": "none"}, 0, 0.0),
        (Role.ACTOR, {"epsilon_schedule": "ladder", "epsilon_base": 0.9}, 0, 0.9),
        (Role.ACTOR, {"epsilon_schedule": "ladder", "epsilon_base": 0.9}, 6, 0.9**8),
        (Role.EVALUATOR, {"eval_epsilon": 0.3}, 0, 0.3),
        (Role.EVALUATOR, {"eval_epsilon": 0.3, "noisy": True}, 0, 0.3),
        (Role.EVALUATOR, {"eval_epsilon": 0.3, "epsilon_schedule": "ladder"}, 0, 0.3),
    ],
)
def test_random_actions_have_their_share_by_schedule_and_role(role, settings, number, share):
    """Noise replaces them, unless a schedule is given; evaluation has no noise."""
    algorithm, _ = _made(role=role, **settings)
    _assert_random(algorithm, number, share)


def _assert_random(algorithm, number, share, n=4000):
    """Assert that so many actions are random, of which half are the best; none if it is greedy."""
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    values, _ = algorithm._online.step(entry, algorithm.initial_state(n), q_draws.Calm())
    environment = EnvironmentNumber(tf.fill([n], number), tf.constant(7))
    for exploration in (1.0, 0.0):
        found, _, extras = algorithm.act_by_number(
            entry, algorithm.initial_state(n), tf.fill([n], exploration), environment
        )
        others = (found.numpy() != int(tf.argmax(values[0]))).mean()
        assert others == pytest.approx(exploration * share / 2, abs=0.03)
    assert np.ptp(extras[:, 1]) == 0, "the values have no noise"


@pytest.mark.parametrize("schedule", ["ladder", "none"])
def test_a_share_of_random_actions_that_does_not_decay_is_no_metric(schedule):
    """The share of --epsilon_schedule=decay would be that of no environment."""
    algorithm, exchange = _made(epsilon_schedule=schedule)
    metrics, _ = algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert "epsilon" not in metrics


def test_a_decaying_share_of_random_actions_reaches_the_actors():
    algorithm, exchange = _made(epsilon_frames=600.0, epsilon_start=0.9, epsilon_end=0.1)
    metrics, _ = algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    assert float(metrics["epsilon"]) == pytest.approx(0.5)
    actor, _ = _made(role=Role.ACTOR, epsilon_start=0.9)
    for own, given in zip(actor.variables.acting, algorithm.variables.acting, strict=True):
        own.assign(given)
    _assert_random(actor, 0, 0.5)


def test_the_target_network_follows_by_a_share_every_few_updates():
    algorithm, exchange = _made(target_period=3, target_share=0.25, learning_rate=0.01)
    target, batch = algorithm._target.trainable_variables, tensors(_batch(algorithm))
    for number in range(1, 7):
        before = in_threads.arrays(target)
        algorithm.update(batch, PROGRESS, exchange)
        moved = in_threads.largest_change(before, in_threads.arrays(target))
        assert (moved > 1e-5) == (number % 3 == 0)
        if number % 3 == 0:
            for now, was, online in zip(target, before, algorithm.variables.trained, strict=True):
                np.testing.assert_allclose(now, 0.75 * was + 0.25 * online.numpy(), atol=1e-7)


def test_values_are_judged_in_the_unit_of_rewards():
    algorithm, _ = _made(value_rescaling=0.001, duelling=True)
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([3, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    values, _ = algorithm._online.step(entry, algorithm.initial_state(3), q_draws.Calm())
    values = values.numpy()
    output = algorithm.judge(entry, algorithm.initial_state(3))
    found = output.value.numpy().astype(np.float64)
    rescaled = np.sign(found) * (np.sqrt(np.abs(found) + 1) - 1) + 0.001 * found
    np.testing.assert_allclose(rescaled, values.max(-1), rtol=1e-5)
    np.testing.assert_array_equal(output.policy, np.eye(2)[values.argmax(-1)])
    np.testing.assert_array_equal(tf.reduce_max(output.values, -1), output.value)


class DoubleQ(QNetwork):
    """A Q-network in float64."""

    short_memory = "nothing"

    def __init__(self, config, environment, mean=None, network=""):
        snt.Module.__init__(self, name="q_network")
        self._config, self.num_actions = config, ACTIONS
        shape = environment.observation.shape
        remembers = config.algorithm == "r2d2" or "LSTM" in config.agent_name
        make = DoubleRecurrent if remembers else Double
        self._body = DoubleOfImages(shape) if shape.rank == 3 else make()
        self._make_head(8, tf.float64)


# Cases that differ from DQN with an observation of four numbers.
CASES = KINDS | {
    "memory": {"algorithm": "r2d2", "burn_in": 2},
    "images": {
        "observation": IMAGE, "random_shift": 2, "value_shifts": 2, "target_shifts": 3,
        "precision": "float32",
    },
    "single": KINDS["none"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("learners", "kind"),
    [
        (2, "categorical"),
        pytest.param(4, "none", marks=pytest.mark.slow),
        *(pytest.param(2, kind, marks=pytest.mark.slow) for kind in CASES if kind != "categorical"),
    ],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch, learners, kind):
    if kind != "single":
        monkeypatch.setattr(player, "QNetwork", DoubleQ)

    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group, learning_rate=rate, n_steps=3, duelling=True, noisy=True,
            value_rescaling=0.0 if kind == "categorical" else 0.001,
            target_share=0.3, gradients_clipping=0.01, target_period=2, **CASES[kind],
        )  # fmt: skip
        variables = [algorithm.variables.trained, algorithm._target.trainable_variables]
        in_process.fill(*variables)
        columns = in_threads.share_of(group, B)
        batch, found = tensors(_batch(algorithm), np.arange(B)[columns]), None
        for _ in range(3):
            _, found = algorithm.update(batch, PROGRESS, exchange)
        priorities = np.zeros(B)
        priorities[columns] = found
        return in_threads.arrays(*variables), priorities

    ((one, priorities),) = in_threads.together(1, learn)
    assert in_threads.largest_change(one, learn(SingleLearner(), 0.0)[0]) > 1e-3
    several, joined = zip(*in_threads.together(learners, learn), strict=True)
    tolerance = 1e-5 if kind == "single" else 1e-9
    for each in several:
        in_threads.assert_close(each, one, tolerance, tolerance)
    in_threads.assert_close(sum(joined), priorities, tolerance, tolerance)
