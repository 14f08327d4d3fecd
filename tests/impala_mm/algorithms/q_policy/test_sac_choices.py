"""SAC for choices: exact expectations against float64 computations, masks, several learners."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.q_policy import algorithm as q_policy
from impala_mm.algorithms.q_policy import sac
from impala_mm.distributed import minibatches
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from impala_mm.environments.make import level_spec
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import DoubleChoiceCritic, DoublePolicy
from tests.helpers.in_process import tensors

B, N = 12, (3, 2)  # columns, and the numbers of choices of a MultiDiscrete
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
MULTI = ActionSpec(MultiDiscrete((2,), N, (0, 0)))
ONE = ActionSpec(Discrete(3))
SETTINGS = {
    "precision": "float32", "reward_clipping": "none", "mlp_sizes": "8", "batch_size": 2,
    "unroll_length": 2, "minibatch_steps": B, "updates_per_step": 0.25, "compile_updates": False,
    "discrete_sac": True,
}  # fmt: skip


def _made(actions=MULTI, masked=True, **settings):
    def spec(environment):
        masks = actions.mask_specs if masked else ()
        return environment._replace(actions=actions, masks=masks)

    return in_process.made("sac", "Pendulum-v1", spec, **SETTINGS | settings)


def _batch(algorithm):
    """Return a batch with a termination, a truncation, a reset, masks and a column of padding."""
    batch = in_process.random_batch(algorithm, 2, B)
    e = batch.unrolls
    e.terminated[1, 0] = e.truncated[1, 1] = e.first[1, 2] = True
    if not isinstance(e.mask, tuple):  # choice 2 of the first element is often forbidden
        e.mask[..., [i for i in range(e.mask.shape[-1]) if i != 2]] = True
    return batch


@pytest.fixture
def double(monkeypatch):
    monkeypatch.setattr(q_policy, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(sac, "ChoiceCriticNetwork", DoubleChoiceCritic)


def _fill(algorithm):
    in_process.fill(algorithm.variables.trained, algorithm._targets.trainable_variables, spread=1)


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
        p = special.softmax(np.where(mask[:, part], logits[:, part], -np.inf), -1)
        value += (p * values[..., part]).sum(-1)
        entropy += special.entr(p).sum(-1)
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
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
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
    given = tensors(batch)
    update = tf.function(
        lambda: algorithm.update(given, PROGRESS, exchange)[0]["loss/policy"], autograph=False
    )
    for _ in range(300):
        update()
    o = batch.unrolls.observation[0, :1].astype(np.float64)
    lesser = np.tanh(o @ algorithm._critics.layer.w.numpy()).reshape(2, 3).min(0)
    found = special.softmax(o @ algorithm._policy.layer.w.numpy())[0]
    np.testing.assert_allclose(found, special.softmax(lesser / 0.5), atol=1e-3)


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
    algorithm.update(tensors(batch), PROGRESS, exchange)
    assert float(algorithm._log_temperature) - before == pytest.approx(-0.1, abs=0.01)


@pytest.mark.parametrize(("temperature", "share"), [(9e5, 1.0), (1.1e-6, 0.0)])
def test_the_temperature_stays_within_limits(double, temperature, share):
    algorithm, exchange = _made(
        ONE, masked=False, target_entropy_share=share, temperature=temperature,
        temperature_rate=1.0, critic_rate=0.0, learning_rate=0.0,
    )  # fmt: skip
    _fill(algorithm)
    algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    limit = 1e6 if share else 1e-6
    assert np.exp(float(algorithm._log_temperature)) == pytest.approx(limit)


def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(double):
    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group=group, learning_rate=rate, critic_rate=rate, temperature_rate=rate,
            gradients_clipping=0.1,
        )  # fmt: skip
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = tensors(_batch(algorithm), mine)
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        learnt = algorithm.variables.trained, algorithm._targets.trainable_variables
        return in_threads.arrays(*learnt, [algorithm._log_temperature])

    # One minibatch has all columns, whose order does not matter.
    assert minibatches.check_size(B, 1, 1) == B
    one = in_threads.assert_several_are_one(learn, (3,))
    assert np.abs(one[0] - learn(SingleLearner(), 0.0)[0]).max() > 1e-3


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
    """A video shows the lesser one."""
    algorithm, _ = _made()
    taken = np.array([[0, 0], [1, 0], [2, 1], [1, 1]], np.int32)
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([4, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    features, _ = algorithm._critics.step(entry, ())
    every = algorithm._critics.all_values(features).numpy()
    assert every.shape == (2, 4, 5)
    assert np.abs(every[0] - every[1]).max() > 1e-3, "the two networks differ"
    expected = every[:, range(4), taken[:, 0]] + every[:, range(4), 3 + taken[:, 1]]
    found = algorithm._critics.values(features, tf.constant(taken))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    of_action = algorithm.value_of(entry, algorithm.initial_state(4), tf.constant(taken))
    np.testing.assert_allclose(of_action, expected.min(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("actions", "discrete", "said"),
    [
        (ONE, False, r"takes one of 3 actions \(Discrete\): set --discrete_sac"),
        (level_spec("Pendulum-v1").actions, True, "leave it out, or make choices of the numbers"),
        (ActionSpec(MultiBinary((2,))), True, "--discrete_sac chooses a Discrete or MultiDiscrete"),
        (ActionSpec(MultiBinary((2,))), False, r"takes MultiBinary\(\[2\]\): use --algorithm=ppo"),
    ],
)
def test_actions_of_another_kind_are_refused_in_a_sentence(actions, discrete, said):
    with pytest.raises(UnsuitableActions, match=said):
        _made(actions, masked=False, discrete_sac=discrete)


def test_dropout_is_refused_where_q_networks_of_choices_have_none():
    with pytest.raises(ValueError, match=r"--critic_dropout=0\.1 with --discrete_sac"):
        _made(critic_dropout=0.1)
