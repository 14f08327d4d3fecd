"""Hindsight at the learner: the goals that steps are trained with, in DQN and in SAC."""

import types

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.features.hindsight import Hindsight
from impala_mm.algorithms.interface import Context, EnvironmentNumber, Role
from impala_mm.algorithms.parts import update_seeds
from impala_mm.algorithms.q_learning import player, value_distributions
from impala_mm.algorithms.q_learning.network import ActionValues, QNetwork
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_process
from tests.helpers.in_process import tensors

T, B, K, BITS = 3, 8, 2, 4
LEVEL = "sandbox.bit_flip:BitFlip-v0"
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(algorithm="dqn", level=LEVEL, **settings):
    own = {"discrete_sac": True, "compile_updates": False} if algorithm == "sac" else {}
    own |= {"her_ratio": K, "unroll_length": T, "mlp_sizes": "8", "precision": "float32"}
    own |= {"reward_clipping": "none"}
    own |= {"env_kwargs": f'{{"bits": {BITS}}}'} if level == LEVEL else {}
    return in_process.made(algorithm, level, **own | settings)


def _batch(algorithm, steps=T):
    """Return a batch with terminations, a truncation, resets, and a column of padding."""
    batch = in_process.random_batch(algorithm, steps + 1, B, 0, BITS)
    e = batch.unrolls
    random = np.random.default_rng(0)
    for flags in (e.terminated, e.truncated, e.first):
        flags[:] = random.random(flags.shape) < 0.3
    e.first[1, 2] = e.truncated[1, 1] = True
    return batch._replace(weight=np.linspace(0.2, 1.0, B, dtype=np.float32) * batch.weight)


def _choose(monkeypatch, number):
    """Let each step have the goal of this number; -1 is its own."""
    draw = tf.random.stateless_uniform

    def uniform(shape, seed, *limits, **others):
        if limits != (-1, K, tf.int32):
            return draw(shape, seed, *limits, **others)
        return tf.fill(shape, number)

    monkeypatch.setattr(tf.random, "stateless_uniform", uniform)


def test_unrolls_become_columns_of_two_entries():
    algorithm, _ = _made()
    given = _batch(algorithm)
    found = algorithm.features.get(Hindsight).single_steps(tensors(given))
    assert found.unrolls.reward.shape == (2, T * B)
    for t in range(T):
        for b in range(B):
            column = t * B + b
            assert found.key[column] == b
            assert found.weight[column] == given.weight[b]
            seen = tf.nest.map_structure(lambda x, c=column: x[:, c], found.unrolls)
            played = tf.nest.map_structure(lambda x, t=t, b=b: x[t : t + 2, b], given.unrolls)
            tf.nest.map_structure(np.testing.assert_array_equal, seen, played)


def test_a_step_has_one_of_its_goals_at_random_and_its_results_under_that():
    algorithm, _ = _made()
    given = _batch(algorithm, steps=1)
    unrolls = tf.nest.map_structure(lambda x: np.repeat(x, 100, axis=1), given.unrolls)
    rest = [np.repeat(x, 100) for x in given[2:]]
    e, others = unrolls, unrolls.extras[1]
    batch = tensors(Batch(unrolls, (), *rest))

    def relabelled(group, update=0):
        seed = update_seeds.of_update(7, tf.constant(update, tf.int64), update_seeds.GOALS)
        return algorithm.features.get(Hindsight).relabel(batch, seed, group).unrolls

    second = types.SimpleNamespace(rank=1, size=2)
    shown = [
        relabelled(*of).observation["desired_goal"].numpy().tobytes()
        for of in ((second,), (second,), (second, 1), (SingleLearner(),))
    ]
    assert shown[0] == shown[1]
    assert len(set(shown)) == 3, "each learner and update draws its own"
    found = relabelled(SingleLearner())
    found = tf.nest.map_structure(lambda x: x.numpy(), found)
    counts = np.zeros(K + 1)
    for column in range(100 * B):
        shown = found.observation["desired_goal"][:, column]
        own = np.array_equal(shown, e.observation["desired_goal"][:, column])
        chosen = -1 if own else int(np.argmin(np.abs(others.goal[1, column] - shown[1]).sum(-1)))
        counts[chosen + 1] += 1
        reward, terminated = e.reward[:, column], e.terminated[:, column].copy()
        if not own:
            assert (shown == others.goal[1, column, chosen]).all(), "both entries show the goal"
            reward = [o[1, column, chosen] for o in (others.reward_before, others.reward)]
            terminated[1] = others.terminated[1, column, chosen]
        np.testing.assert_array_equal(found.reward[:, column], reward)
        np.testing.assert_array_equal(found.terminated[:, column], terminated)
    assert counts / (100 * B) == pytest.approx(np.full(K + 1, 1 / (K + 1)), abs=0.06)
    for name in ("action", "truncated", "first"):
        np.testing.assert_array_equal(getattr(found, name), getattr(e, name))
    for name in ("observation", "achieved_goal"):
        np.testing.assert_array_equal(found.observation[name], e.observation[name])


def test_with_their_own_goals_steps_are_trained_on_as_without_hindsight(monkeypatch):
    _choose(monkeypatch, -1)
    found = []
    for ratio in (K, 0):
        algorithm, exchange = _made(her_ratio=ratio, learning_rate=0.01, huber_delta=0.1)
        batch = tensors(_batch(_made()[0]))
        if not ratio:
            batch = batch._replace(unrolls=batch.unrolls._replace(extras=batch.unrolls.extras[0]))
        metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
        numbers = [float(metrics["loss/total"]), float(metrics["q/error"]), *exchange.read()[1]]
        found.append([np.array(numbers), priorities, *algorithm.variables.trained])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class DoubleQ(QNetwork):
    """A Q-network in float64 that reads observation and goal: Q = w tanh(v (o, g))."""

    short_memory = "nothing"

    def __init__(self, config, environment, mean=None, network=""):
        snt.Module.__init__(self, name="q_network")
        self.distribution = value_distributions.Expected(config.huber_delta)
        self.v = tf.Variable(tf.zeros([2 * BITS, 5], tf.float64))
        self.w = tf.Variable(tf.zeros([5, BITS], tf.float64))

    def initial_state(self, batch):
        return ()

    def unroll(self, entries, state, draws, num_quantiles, burn_in=0):
        o = entries.observation
        read = tf.cast(tf.concat([o["observation"], o["desired_goal"]], -1), tf.float64)
        values = tf.tanh(read @ self.v) @ self.w
        return ActionValues(values, values[..., tf.newaxis], ())


def test_errors_are_those_of_steps_that_end_at_their_goal(monkeypatch):
    _choose(monkeypatch, 1)
    monkeypatch.setattr(player, "QNetwork", DoubleQ)
    algorithm, exchange = _made(
        learning_rate=0.0, discounting=0.9, double_q=False, huber_delta=float("inf")
    )
    in_process.fill(algorithm.variables.trained, algorithm._target.trainable_variables, spread=1)
    batch = _batch(algorithm)
    e, others, (v, w) = batch.unrolls, batch.unrolls.extras[1], algorithm.variables.trained
    target = [x.numpy() for x in algorithm._target.trainable_variables]

    def values(network, t, goal):
        read = np.concatenate([e.observation["observation"][t], goal], -1).astype(np.float64)
        return np.tanh(read @ network[0]) @ network[1]

    errors = np.zeros([T, B])
    for t in range(T):
        goal = others.goal[t + 1, :, 1]
        after = values(target, t + 1, goal).max(-1)
        aim = others.reward[t + 1, :, 1] + 0.9 * np.where(others.terminated[t + 1, :, 1], 0, after)
        q = values([v.numpy(), w.numpy()], t, goal)[np.arange(B), e.action[t + 1]]
        errors[t] = np.where(e.first[t + 1] | (batch.weight == 0), 0, aim - q)
    metrics, priorities = algorithm.update(tensors(batch), PROGRESS, exchange)
    loss = (0.5 * errors**2 * batch.weight).sum() / (T * B)
    assert float(metrics["loss/total"]) == pytest.approx(loss, rel=1e-6)
    live = (~e.first[1:] & (batch.weight > 0)).sum(0)
    expected = 0.9 * np.abs(errors).max(0) + 0.1 * np.abs(errors).sum(0) / np.maximum(live, 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_actors_leave_place_for_goals_and_learners_update(algorithm):
    sac = {"minibatch_steps": 2 * B, "updates_per_step": 1 / 3} if algorithm == "sac" else {}
    learner, exchange = _made(algorithm, batch_size=2, **sac)
    actor, _ = _made(algorithm, role=Role.ACTOR)
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([3, *spec.shape], spec.dtype), actor.unroll.step
    )
    number = EnvironmentNumber(tf.range(3), tf.constant(3))
    _, _, extras = actor.act_by_number(entry, actor.initial_state(3), tf.ones([3]), number)
    found = tf.nest.map_structure(lambda x: (x.shape, x.dtype), extras)
    declared = tf.nest.map_structure(lambda x: ((3, *x.shape), x.dtype), actor.unroll.step.extras)
    assert found == declared
    batch = tensors(_batch(learner, T if algorithm == "dqn" else 1))
    metrics, _ = learner.update(batch, PROGRESS, exchange)
    assert np.isfinite(float(metrics["loss/total"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"level": "CartPole-v1"}, "other goals can be given to the steps of CartPole-v1"),
        ({"agent_name": "MLPLSTMAgent"}, "use a network without an LSTM"),
        ({"normalize_rewards": True}, "--normalize_rewards"),
        ({"num_action_repeats": 2}, "--her_ratio=2 with --num_action_repeats=2"),
    ],
)
def test_hindsight_that_is_not_possible_is_refused(capsys, given, said):
    with pytest.raises(SystemExit):
        _made(**given)
    assert said in capsys.readouterr().err
