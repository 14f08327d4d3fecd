"""The updates of the algorithms in tests/algorithms, against float64 computations in NumPy."""

import types

import numpy as np
import scipy.stats
import tensorflow as tf

from impala_mm.algorithms.interface import Context, Role
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.algorithms import sac

T, B = 6, 4
GAMMA = 0.9
PROGRESS = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))


def _made(module, level, **settings):
    tf.random.set_seed(1)
    name = module.__name__
    config = Config.of_algorithm(name)(
        algorithm=name, level_name=level, unroll_length=T, discounting=GAMMA,
        reward_clipping="none", precision="float32", **settings,
    )  # fmt: skip
    algorithm = module.make(config, level_spec(level), Role.LEARNER)
    return algorithm, GradientReducer(SingleLearner(), config)


def _batch(algorithm, seed=0):
    """Return a batch with a termination, a truncation, resets, and a last column of padding."""
    random = np.random.default_rng(seed)

    def draw(spec):
        shape = [T + 1, B, *spec.shape]
        if spec.dtype.is_integer:
            return random.integers(0, 2, shape).astype(spec.dtype.as_numpy_dtype)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    ends = [np.zeros([T + 1, B], bool) for _ in range(3)]
    terminated, truncated, first = ends
    terminated[2, 0], first[3, 0], truncated[4, 1], first[5, 1], first[0, 2] = (True,) * 5
    entries = entries._replace(terminated=terminated, truncated=truncated, first=first)
    entries.reward[first] = 0
    start = tf.nest.map_structure(lambda x: x.numpy(), algorithm.initial_state(B))
    weight = np.array([1, 1, 0.5, 0], np.float32)
    numbers = np.arange(B)
    return Batch(entries, start, numbers, weight, numbers, np.arange(B) < 3)


def _tensors(batch):
    return tf.nest.map_structure(tf.constant, batch)


def _live(batch):
    return ~batch.unrolls.first[1:] & (batch.weight > 0)


def test_sacs_goals_losses_and_targets_are_those_of_its_definition():
    algorithm, exchange = _made(
        sac, "Pendulum-v1", critic_rate=0.0, learning_rate=0.0, target_share=0.25, temperature=0.3
    )
    for target in algorithm._targets:
        target.assign_add(0.1 * tf.random.normal(target.shape))
    batch, entries = _batch(algorithm), _batch(algorithm).unrolls
    tensors = _tensors(batch)
    features = algorithm._unroll(algorithm._network, tensors.unrolls, tensors.start)
    of_target = algorithm._unroll(algorithm._target_network, tensors.unrolls, tensors.start)
    after, before = (algorithm._policy(features.policy[part]) for part in (np.s_[1:], np.s_[:-1]))
    tf.random.set_seed(5)  # the update below draws the same actions
    drawn_after, drawn = after.sample(), before.sample()

    def log_probs(policy, action):
        action = action.numpy().astype(float)
        normal = scipy.stats.norm(policy.mean.numpy(), policy.deviation.numpy())
        return (normal.logpdf(np.arctanh(action)) - np.log(1 - action**2)).sum(-1)

    future = algorithm._target_critics(of_target.value[1:], drawn_after).numpy().min(0)
    future = future - 0.3 * log_probs(after, drawn_after)
    goals = entries.reward[1:] + GAMMA * np.where(entries.terminated[1:], 0, future)
    values = algorithm._critics(features.value[:-1], entries.action[1:]).numpy()
    live = _live(batch)

    def reduced(terms):
        return np.where(live, terms * batch.weight, 0).sum() / (T * B)

    best = algorithm._critics(features.value[:-1], drawn).numpy().min(0)
    own = log_probs(before, drawn)
    before_update = [v.numpy() for v in algorithm._targets]
    tf.random.set_seed(5)
    metrics, _ = algorithm.update(tensors, PROGRESS, exchange)
    share = reduced(np.ones([T, B]))
    expected = {
        "loss/total": reduced(((values - goals) ** 2).sum(0) / 2),
        "loss/policy": reduced(0.3 * own - best),
        "entropy": reduced(-own) / share,
        "value": reduced(values[0]) / share,
        "temperature": 0.3,
    }
    for key, value in expected.items():
        np.testing.assert_allclose(metrics[key], value, rtol=2e-4, err_msg=key)
    # An entropy above -1, that of one action, lowers the temperature; Adam's first step is a rate.
    np.testing.assert_allclose(
        algorithm._log_temperature,
        np.log(0.3) - 0.001 * np.sign(expected["entropy"] + 1),
        rtol=1e-4,
    )
    for target, was, online in zip(
        algorithm._targets, before_update, algorithm._of_critics, strict=True
    ):
        np.testing.assert_allclose(target, 0.75 * was + 0.25 * online.numpy(), atol=1e-6)


def test_sacs_replay_counts_each_unroll_once_and_forgets_the_oldest(tmp_path):
    algorithm, _ = _made(sac, "Pendulum-v1", replay_unrolls=6, replay_columns=5, replay_updates=3)
    new, keys = _batch(algorithm), iter(range(0, 100, B))

    def fresh(_timeout):
        return new._replace(key=next(keys) + np.arange(B), weight=np.ones(B, np.float32),
                            fresh=np.ones(B, bool))  # fmt: skip

    source = algorithm.source(types.SimpleNamespace(next=fresh))
    played = [source.next(1.0) for _ in range(9)]
    assert [int(batch.fresh.sum()) for batch in played] == [B, 0, 0] * 3
    assert {len(batch.key) for batch in played} == {5}
    assert set(np.concatenate([batch.key for batch in played[7:]])) <= set(range(6, 12))
    source.save(tmp_path)
    again = algorithm.source(types.SimpleNamespace(next=lambda _timeout: None))
    again.restore(tmp_path)
    again._draws = 4
    assert set(np.concatenate([again.next(1.0).key for _ in range(4)])) <= set(range(6, 12))
    assert again.next(1.0) is None


def test_actors_hold_neither_optimizers_nor_targets_and_the_same_trained_variables():
    learner, _ = _made(sac, "Pendulum-v1")
    actor = sac.make(learner._config, level_spec("Pendulum-v1"), Role.ACTOR)
    shapes = [[v.shape for v in a.variables.trained] for a in (learner, actor)]
    assert shapes[0] == shapes[1]
    assert len(learner.variables.carried) > 0
    assert actor.variables.carried == []
    acting = [[v.shape for v in a.variables.acting] for a in (learner, actor)]
    assert acting[0] == acting[1]
