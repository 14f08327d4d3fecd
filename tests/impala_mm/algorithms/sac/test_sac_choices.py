"""SAC for choices: exact expectations against float64 computations, masks, several learners."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.sac import algorithm as sac
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.make import level_spec
from tests.helpers import in_threads

B, N = 12, (3, 2)  # columns, and the numbers of choices of a MultiDiscrete
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
MULTI = ActionSpec(MultiDiscrete((2,), N, (0, 0)))
ONE = ActionSpec(Discrete(3))


def _made(actions=MULTI, group=None, role=Role.LEARNER, masked=True, **settings):
    config = Config.of_algorithm("sac")(
        algorithm="sac", precision="float32", reward_clipping="none",
        **{"mlp_sizes": "8", "batch_size": 2, "unroll_length": 2, "minibatch_steps": B}
        | {"updates_per_step": 0.25, "compile_updates": False, "discrete_sac": True} | settings,
    )  # fmt: skip
    environment = level_spec("Pendulum-v1")._replace(actions=actions)
    if masked:
        environment = environment._replace(masks=actions.mask_specs)
    tf.random.set_seed(1)
    made = registry.make_algorithm(config, environment, role)
    return made, GradientReducer(group or SingleLearner(), config)


def _batch(algorithm, seed=0, columns=B):
    """Return a batch with a termination, a truncation, a reset, masks and a column of padding."""
    random = np.random.default_rng(seed)

    def draw(spec):
        shape = [2, columns, *spec.shape]
        if spec.dtype == tf.bool:
            return np.zeros(shape, bool)
        if spec.dtype.is_integer:
            return random.integers(0, 2, shape).astype(spec.dtype.as_numpy_dtype)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    entries.terminated[1, 0] = entries.truncated[1, 1] = entries.first[1, 2] = True
    if not isinstance(entries.mask, tuple):  # choice 2 of the first element is often forbidden
        entries.mask[...] = True
        entries.mask[..., 2] = random.random([2, columns]) < 0.5
    weight, numbers = np.ones(columns, np.float32), np.arange(columns)
    weight[-1] = 0
    start = algorithm.initial_state(columns)
    return Batch(entries, start, numbers, weight, numbers, numbers < 4)


def _tensors(batch):
    return tf.nest.map_structure(tf.constant, batch)


class Linear(snt.Module):
    """A linear layer in float64."""

    def __init__(self, size, copies=()):
        super().__init__(name="linear")
        self.w = tf.Variable(tf.zeros([*copies, 3, size], tf.float64))

    def __call__(self, entries):
        return tf.tensordot(tf.cast(entries, tf.float64), self.w, 1)


class DoublePolicy(snt.Module):
    """A policy's network in float64."""

    def __init__(self, config, environment, mean=None):
        super().__init__(name="policy")
        self.distribution = action_policies.choose(environment.actions)
        self.layer = Linear(environment.actions.num_features)

    def initial_state(self, batch):
        return ()

    def parameters(self, entries, state):
        return self.layer(entries.observation)

    def unroll(self, entries, state):
        return self.distribution.make(self.parameters(entries, state), entries.mask)


class DoubleCritic(sac.ChoiceCriticNetwork):
    """Two Q-networks in float64: Q(o) = tanh(w o)."""

    def __init__(self, config, environment, mean=None):
        snt.Module.__init__(self, name="critic")
        self._actions = environment.actions
        self.layer = Linear(2 * environment.actions.num_features)

    def initial_state(self, batch):
        return ()

    def unroll(self, entries, state):
        return entries.observation

    def all_values(self, features):
        return tf.stack(tf.split(tf.tanh(self.layer(features)), 2, axis=-1))


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(sac, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(sac, "ChoiceCriticNetwork", DoubleCritic)


def _fill(algorithm, seed=7):
    random = np.random.default_rng(seed)
    for variable in (*algorithm.variables.trained, *algorithm._targets.trainable_variables):
        variable.assign(random.normal(size=variable.shape))


def _expected(logits, mask, values, n):
    """Return (value, entropy) of policies over choices among n, each a sum over its elements.

    Of the values [2, B, sum(n)] of two networks the lesser count: those of a single choice, or the
    sums over several choices.
    """
    if len(n) == 1:
        values = values.min(0, keepdims=True)
    value, entropy, begin = np.zeros(values.shape[:2]), np.zeros(len(logits)), 0
    for k in n:
        part = slice(begin, begin + k)
        p = np.exp(logits[:, part]) * mask[:, part]
        p /= p.sum(-1, keepdims=True)
        value += (p * values[..., part]).sum(-1)
        entropy -= (p * np.log(np.where(p > 0, p, 1))).sum(-1)
        begin += k
    return value.min(0), entropy


@pytest.mark.parametrize(("actions", "n"), [(MULTI, N), (ONE, (3,))])
def test_losses_are_exact_expectations(double, actions, n):
    algorithm, exchange = _made(
        actions, temperature=0.3, discounting=0.9, critic_rate=0.0, learning_rate=0.0,
        fixed_temperature=True, target_share=0.0,
    )  # fmt: skip
    _fill(algorithm)
    batch = _batch(algorithm)
    e, live = batch.unrolls, ~batch.unrolls.first[1] & (batch.weight > 0)
    before, after = e.observation.astype(np.float64)
    policy = algorithm._policy.layer.w.numpy()
    online, target = (
        np.tanh(x @ net.layer.w.numpy()).reshape(B, 2, -1).swapaxes(0, 1)
        for x, net in ((before, algorithm._critics), (after, algorithm._targets))
    )
    value, entropy = _expected(after @ policy, e.mask[1], target, n)
    goals = e.reward[1] + 0.9 * np.where(e.terminated[1], 0, value + 0.3 * entropy)
    begins = np.cumsum([0, *n[:-1]])
    chosen = begins + e.action[1].reshape(B, -1)
    played = np.stack([q[np.arange(B)[:, None], chosen].sum(-1) for q in online])
    loss = (0.5 * ((goals - played) ** 2).sum(0) * live).sum() / B
    value, entropy = _expected(before @ policy, e.mask[0], online, n)
    of_policy = (-(0.3 * entropy + value) * live).sum() / B
    metrics, _ = algorithm.update(_tensors(batch), PROGRESS, exchange)
    for name, expected in {
        "loss/total": loss,
        "loss/policy": of_policy,
        "entropy": (entropy * live).sum() / live.sum(),
        "q/value": (played[0] * live).sum() / live.sum(),
    }.items():
        assert float(metrics[name]) == pytest.approx(expected, rel=1e-6), name


def test_the_policy_becomes_the_soft_best_one(double):
    """Of fixed values, the policy of the largest soft value is softmax(value / temperature)."""
    algorithm, exchange = _made(
        ONE, masked=False, temperature=0.5, fixed_temperature=True, critic_rate=0.0,
        learning_rate=0.05, target_share=0.0,
    )  # fmt: skip
    _fill(algorithm)
    batch = _batch(algorithm)
    batch.unrolls.observation[:] = [0.5, -0.3, 0.8]
    given = _tensors(batch)
    update = tf.function(
        lambda: algorithm.update(given, PROGRESS, exchange)[0]["loss/policy"], autograph=False
    )
    for _ in range(300):
        update()
    o = batch.unrolls.observation[0, :1].astype(np.float64)
    lesser = np.tanh(o @ algorithm._critics.layer.w.numpy()).reshape(2, 3).min(0)
    best = np.exp(lesser / 0.5) / np.exp(lesser / 0.5).sum()
    found = tf.nn.softmax(o @ algorithm._policy.layer.w.numpy()).numpy()[0]
    np.testing.assert_allclose(found, best, atol=1e-3)


@pytest.mark.parametrize(
    ("actions", "mask", "allowed"),
    [
        (MULTI, (), 6),
        (MULTI, [[1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 1, 0, 0, 1]], [6, 4, 2, 1]),
        # An element of which nothing is allowed counts as one of which everything is.
        (MULTI, [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], [3, 6]),
        (ONE, [[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]], [3, 2, 1, 3]),
    ],
)
def test_the_target_entropy_is_a_share_of_the_largest_one_that_masks_allow(actions, mask, allowed):
    algorithm, _ = _made(actions, target_entropy_share=0.25)
    given = mask if isinstance(mask, tuple) else tf.constant(np.array(mask, bool))
    found = algorithm._kind.target_entropy(given)
    np.testing.assert_allclose(found, 0.25 * np.log(allowed), rtol=1e-6)


def test_the_temperature_falls_where_the_policy_is_even_over_what_masks_allow(double):
    """Its entropy is log 2, which is less than 0.95 log 3 and more than 0.95 log 2."""
    algorithm, exchange = _made(
        ONE, target_entropy_share=0.95, temperature_rate=0.1, critic_rate=0.0, learning_rate=0.0
    )
    batch = _batch(algorithm)  # the policy's weights are 0
    batch.unrolls.mask[...] = [True, False, True]
    before = float(algorithm._log_temperature)
    algorithm.update(_tensors(batch), PROGRESS, exchange)
    assert float(algorithm._log_temperature) - before == pytest.approx(-0.1, abs=0.01)


@pytest.mark.parametrize(("temperature", "share"), [(9e5, 1.0), (1.1e-6, 0.0)])
def test_the_temperature_stays_within_limits(double, temperature, share):
    algorithm, exchange = _made(
        ONE, masked=False, target_entropy_share=share, temperature=temperature,
        temperature_rate=1.0, critic_rate=0.0, learning_rate=0.0,
    )  # fmt: skip
    _fill(algorithm)
    batch = _tensors(_batch(algorithm))
    for _ in range(3):
        algorithm.update(batch, PROGRESS, exchange)
    limit = 1e6 if share else 1e-6
    assert np.exp(float(algorithm._log_temperature)) == pytest.approx(limit)


@pytest.mark.parametrize("learners", [2, 3])
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(double, monkeypatch, learners):
    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group=group, learning_rate=rate, critic_rate=rate, temperature_rate=rate,
            gradients_clipping=0.1,
        )  # fmt: skip
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = _tensors(batches.columns(_batch(algorithm), mine))
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        learnt = (*algorithm.variables.trained, *algorithm._targets.trainable_variables)
        return [v.numpy() for v in (*learnt, algorithm._log_temperature)]

    # One minibatch has all columns, whose order does not matter.
    assert minibatches.check_size(B, 1, 1) == B
    several = in_threads.together(learners, learn)
    (one,) = in_threads.together(1, learn)
    (unmoved,) = in_threads.together(1, lambda group: learn(group, 0.0))
    assert np.abs(one[0] - unmoved[0]).max() > 1e-3
    for variables in several:
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("actions", "n"), [(MULTI, N), (ONE, (3,))])
def test_only_allowed_choices_are_played_at_random_and_by_the_policy(actions, n):
    algorithm, _ = _made(actions, role=Role.ACTOR, random_steps=9)
    count = 3000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([count, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    mask = np.ones([count, sum(n)], bool)
    mask[:, 1] = False
    entry = entry._replace(mask=tf.constant(mask))
    for exploration in (1.0, 0.0):
        action, _, _ = algorithm.act(
            entry, algorithm.initial_state(count), tf.fill([count], exploration)
        )
        first = action.numpy().reshape(count, -1)[:, 0]
        assert set(first.tolist()) <= {0, 2}
        if exploration:
            assert np.mean(first == 2) == pytest.approx(0.5, abs=0.05)


def test_values_are_those_of_the_choices_that_were_taken():
    algorithm, _ = _made()
    critics = algorithm._critics
    features = tf.random.normal([2, 5, 3])
    actions = tf.constant(np.random.default_rng(0).integers(0, 2, (2, 5, 2)), tf.int32)
    every, found = critics.all_values(features).numpy(), critics.values(features, actions).numpy()
    assert every.shape == (2, 2, 5, 5)
    for q in range(2):
        for t, b in np.ndindex(2, 5):
            first, second = actions[t, b].numpy()
            expected = every[q, t, b, first] + every[q, t, b, 3 + second]
            assert found[q, t, b] == pytest.approx(expected, abs=1e-6)
    assert np.abs(every[0] - every[1]).max() > 1e-3, "the two networks differ"


def test_a_video_shows_the_lesser_value_of_the_choices_that_were_taken():
    algorithm, _ = _made()
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([4, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    taken = tf.constant([[0, 0], [1, 0], [0, 1], [1, 1]], tf.int32)
    features, _ = algorithm._critics.step(entry, ())
    expected = algorithm._critics.values(features, taken).numpy().min(0)
    found = algorithm.value_of(entry, algorithm.initial_state(4), taken)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("actions", "discrete", "said"),
    [
        (
            ONE,
            False,
            r"takes one of 3 actions \(Discrete\): set --discrete_sac, or use --algorithm=dqn or "
            r"ppo",
        ),
        (None, True, r"leave it out, or make choices of the numbers by --discretization=lin"),
        (
            ActionSpec(MultiBinary((2,))),
            True,
            r"--discrete_sac chooses a Discrete or MultiDiscrete action, and Pendulum-v1 takes "
            r"MultiBinary\(\[2\]\): use --algorithm=ppo",
        ),
        (ActionSpec(MultiBinary((2,))), False, r"takes MultiBinary\(\[2\]\): use --algorithm=ppo"),
    ],
)
def test_actions_of_another_kind_are_refused_in_a_sentence(actions, discrete, said):
    actions = actions or level_spec("Pendulum-v1").actions
    with pytest.raises(UnsuitableActions, match=said):
        _made(actions, masked=False, discrete_sac=discrete)
