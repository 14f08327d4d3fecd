"""The update that DQN and R2D2 share."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import q_learning, q_values, registry
from impala_mm.algorithms.interface import Context, EnvironmentNumber, Role
from impala_mm.algorithms.q_network import QNetwork
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.helpers import in_threads
from tests.helpers.double_network import Double

T, B, ACTIONS = 6, 8, 2
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(group=None, role=Role.LEARNER, algorithm="dqn", **settings):
    config = Config.of_algorithm(algorithm)(
        algorithm=algorithm, level_name="CartPole-v1", unroll_length=T, **settings
    )
    tf.random.set_seed(1)
    made = registry.make_algorithm(config, level_spec(config.level_name), role)
    return made, GradientReducer(group or SingleLearner(), config)


def _batch(algorithm, seed=0):
    """Return a batch with a termination, a truncation, resets, and a column of padding."""
    random = np.random.default_rng(seed)
    steps = T + algorithm.unroll.overlap

    def draw(spec):
        shape = [steps, B, *spec.shape]
        if spec.dtype.is_integer:
            return random.integers(0, ACTIONS, shape).astype(spec.dtype.as_numpy_dtype)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    terminated, truncated, first = (np.zeros([steps, B], bool) for _ in range(3))
    terminated[2, 0], first[3, 0], truncated[4, 1], first[5, 1], first[0, 2] = (True,) * 5
    entries = entries._replace(terminated=terminated, truncated=truncated, first=first)
    start = tf.nest.map_structure(lambda x: x.numpy(), algorithm.initial_state(B))
    weight = random.uniform(0.2, 1.0, B).astype(np.float32)
    weight[-1] = 0
    return Batch(entries, start, np.arange(B), weight, np.arange(B), np.arange(B) < 2)


def _columns(batch, chosen):
    """Return these columns of a batch as tensors."""
    entries = tf.nest.map_structure(lambda x: x[:, chosen], batch.unrolls)
    others = tf.nest.map_structure(lambda x: x[chosen], batch._replace(unrolls=()))
    return tf.nest.map_structure(tf.constant, others._replace(unrolls=entries))


def _values(network, batch, burn_in=0):
    return network.unroll(batch.unrolls, batch.start, burn_in)


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("huber", [0.1, float("inf")])
def test_each_step_has_a_whole_target_and_its_unroll_a_priority(n_steps, huber):
    algorithm, exchange = _made(n_steps=n_steps, huber_delta=huber, learning_rate=0.0)
    batch = _columns(_batch(algorithm), slice(None))
    assert batch.unrolls.reward.shape == (T + n_steps, B), "as many entries as a target needs"
    online, future = _values(algorithm._online, batch), _values(algorithm._target, batch)
    rule = q_values.Rule(0.99, n_steps)
    error, live = q_values.find_errors(online, future, batch.unrolls, batch.weight, rule)
    error, live = error.numpy()[:T], live.numpy()[:T]
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    size = np.abs(error)
    inside = np.minimum(size, huber)
    losses = inside * (size - inside / 2) * batch.weight.numpy()
    assert float(metrics["loss/total"]) == pytest.approx(losses.sum() / (T * B), rel=1e-5)
    expected = 0.9 * size.max(0) + 0.1 * size.sum(0) / np.maximum(live.sum(0), 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-5)


def test_the_target_network_follows_by_a_share_every_few_updates():
    algorithm, exchange = _made(target_period=3, target_share=0.25, learning_rate=0.01)
    target = algorithm._target.trainable_variables
    batch = _columns(_batch(algorithm), slice(None))
    begin = [v.numpy() for v in target]
    for number in range(1, 7):
        before = [v.numpy() for v in target]
        algorithm.update(batch, PROGRESS, exchange)
        for now, was, online in zip(target, before, algorithm.variables.trained, strict=True):
            expected = was + (0.25 * (online.numpy() - was) if number % 3 == 0 else 0)
            np.testing.assert_allclose(now, expected, atol=1e-7)
    assert any(np.abs(a - b.numpy()).max() > 1e-4 for a, b in zip(begin, target, strict=True))


def test_a_decaying_share_of_random_actions_reaches_the_actors():
    algorithm, exchange = _made(epsilon_frames=600.0, epsilon_start=0.9, epsilon_end=0.1)
    metrics, _ = algorithm.update(_columns(_batch(algorithm), slice(None)), PROGRESS, exchange)
    assert float(metrics["epsilon"]) == pytest.approx(0.5)
    actor, _ = _made(role=Role.ACTOR, epsilon_start=0.9)
    assert [v.shape for v in actor.variables.acting] == [
        v.shape for v in algorithm.variables.acting
    ]
    for own, given in zip(actor.variables.acting, algorithm.variables.acting, strict=True):
        own.assign(given)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), actor.unroll.step
    )
    number = EnvironmentNumber(tf.range(n), tf.constant(n))
    best = int(tf.argmax(actor._online.step(entry, actor.initial_state(n))[0][0]))
    for exploration, share in ((1.0, 0.25), (0.0, 0.0)):  # half of two random actions is the best
        found, _, _ = actor.act(entry, actor.initial_state(n), tf.fill([n], exploration), number)
        assert (found.numpy() != best).mean() == pytest.approx(share, abs=0.03)


def test_the_ladder_gives_each_environment_its_share():
    actor, _ = _made(role=Role.ACTOR, epsilon_schedule="ladder", epsilon_base=0.9)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), actor.unroll.step
    )
    best = int(tf.argmax(actor._online.step(entry, actor.initial_state(n))[0][0]))
    for number, power in ((0, 1), (6, 8)):
        environment = EnvironmentNumber(tf.fill([n], number), tf.constant(7))
        found, _, _ = actor.act(entry, actor.initial_state(n), tf.ones([n]), environment)
        assert (found.numpy() != best).mean() == pytest.approx(0.9**power / 2, abs=0.03)


def test_values_are_judged_in_the_unit_of_rewards():
    algorithm, _ = _made(value_rescaling=0.001, duelling=True)
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([3, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    values = algorithm._online.step(entry, algorithm.initial_state(3))[0].numpy()
    output = algorithm.judge(entry, algorithm.initial_state(3))
    found = output.value.numpy().astype(np.float64)
    rescaled = np.sign(found) * (np.sqrt(np.abs(found) + 1) - 1) + 0.001 * found
    np.testing.assert_allclose(rescaled, values.max(-1), rtol=1e-5)
    np.testing.assert_array_equal(output.policy, np.eye(2)[values.argmax(-1)])
    np.testing.assert_array_equal(tf.reduce_max(output.values, -1), output.value)


class DoubleQ(QNetwork):
    """A Q-network in float64."""

    def __init__(self, config, environment, duelling):
        snt.Module.__init__(self, name="q_network")
        self._body, self._duelling = Double(), duelling
        self._advantages, self._value = snt.Linear(ACTIONS), snt.Linear(1)
        self._head(tf.zeros([1, 8], tf.float64))


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-9), (False, 1e-5)])
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    monkeypatch, learners, double, tolerance
):
    if double:
        monkeypatch.setattr(q_learning, "QNetwork", DoubleQ)

    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group, learning_rate=rate, n_steps=3, duelling=True, value_rescaling=0.001,
            target_share=0.3, gradients_clipping=0.01, target_period=2,
        )  # fmt: skip
        random = np.random.default_rng(7)
        for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
            variable.assign(random.normal(size=variable.shape) * 0.5)
        share = B // group.size
        mine = slice(share * group.rank, share * (group.rank + 1))
        batch = _columns(_batch(algorithm), mine)
        found = [algorithm.update(batch, PROGRESS, exchange)[1].numpy() for _ in range(4)]
        variables = [*algorithm.variables.trained, *algorithm._target.trainable_variables]
        return [v.numpy() for v in variables], found[-1]

    ((one, priorities),) = in_threads.together(1, learn)
    unmoved, _ = learn(SingleLearner(), 0.0)
    assert max(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-3
    several = in_threads.together(learners, learn)
    for variables, _ in several:
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    joined = np.concatenate([found for _, found in several])
    np.testing.assert_allclose(joined, priorities, rtol=tolerance, atol=tolerance)


def test_actors_hold_no_targets_and_the_same_trained_variables():
    learner, _ = _made()
    actor, _ = _made(role=Role.ACTOR)
    for group in ("trained", "acting"):
        shapes = [[v.shape for v in getattr(a.variables, group)] for a in (learner, actor)]
        assert shapes[0] == shapes[1]
    assert len(actor.variables.carried) == 1, "epsilon"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replay=queue:0.5,elite:0.5:100"], "a Q-network records no features, which attentive"),
        (["--n_steps=0"], "--n_steps=0: it must be at least 1"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--algorithm=dqn", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
