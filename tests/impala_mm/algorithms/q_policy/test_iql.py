"""IQL: its updates against float64 computations, alone and on several learners."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_policy import algorithm as q_policy
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import DoubleCritic, DoublePolicy, Linear
from tests.helpers.in_process import tensors
from tests.helpers.in_threads import arrays

PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
SMALL = {
    "batch_size": 2, "unroll_length": 2, "minibatch_steps": 8, "updates_per_step": 0.5,
    "mlp_sizes": "8,8", "precision": "float32", "reward_clipping": "none", "compile_updates": False,
    "discounting": 0.9,
}  # fmt: skip
B = 16


def _made(group=None, level="Pendulum-v1", **settings):
    return in_process.made("iql", level, group=group, **SMALL | settings)


class DoubleValue(Linear):
    """V in float64: V(o) = tanh(w o)."""

    def __init__(self, config, choices, num_features, count):
        super().__init__(num_features, choices, "value")

    def __call__(self, features):
        return tf.tanh(super().__call__(features))[None]


@pytest.fixture(autouse=True)
def double(monkeypatch):
    monkeypatch.setattr(q_policy, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(q_policy, "CriticNetwork", DoubleCritic)
    monkeypatch.setattr(q_policy.networks, "make_choice_critics", DoubleValue)


def _fill(algorithm):
    in_process.fill(algorithm.variables.trained, algorithm._followers)


def _part(algorithm):
    """Return a part with a termination, a truncation, a reset and padding, and what is live."""
    batch = in_process.batch_with_ends(algorithm, B)
    e = batch.unrolls
    live = ~e.first[1] & (batch.weight > 0)
    t, states = tensors(batch), q_policy.States((), ())
    part = q_policy.Part(t.unrolls, states, tf.constant(live)[None], t.weight, noise=())
    return part, e, live


def _of(algorithm, observation, action):
    """Return V and the lesser slow Q, [B] each, of observations and actions."""
    seen = observation.astype(np.float64)
    inputs = np.concatenate([seen, action, action.astype(np.float64) ** 2], -1)
    q = np.tanh(inputs @ algorithm._targets.layer.w.numpy()).min(-1)
    return np.tanh(seen @ algorithm._value.w.numpy())[:, 0], q


def test_goals_are_v_of_what_follows_and_v_is_an_expectile_of_played_actions():
    algorithm, exchange = _made(expectile=0.8, critic_rate=0.0)
    _fill(algorithm)
    part, e, live = _part(algorithm)
    following, _ = _of(algorithm, e.observation[1], e.action[1])
    expected = e.reward[1] + 0.9 * np.where(e.terminated[1], 0.0, following)
    found = algorithm._goals(part).numpy()[0]
    np.testing.assert_allclose(found, np.where(live, expected, 0), rtol=1e-6, atol=1e-6)
    v, q = _of(algorithm, e.observation[0], e.action[1])
    assert 0 < np.mean(q > v) < 1
    terms = np.where(q > v, 0.8, 0.2) * (q - v) ** 2
    loss = algorithm._train_critics(part, exchange)["loss/baseline"]
    assert float(loss) == pytest.approx(np.where(live, terms, 0).mean(), rel=1e-6)


@pytest.mark.parametrize("largest", [1.5, 100.0])
def test_the_policy_repeats_played_actions_by_their_advantages(largest):
    algorithm, _ = _made(largest_weight=largest)
    _fill(algorithm)
    part, e, live = _part(algorithm)
    v, q = _of(algorithm, e.observation[0], e.action[1])
    weights = np.exp(3.0 * (q - v))
    assert np.any(weights[live] > 1.5)
    parameters = tf.constant(e.observation[0], tf.float64) @ algorithm._policy.layer.w
    mean, raw = parameters.numpy().T
    deviation = 0.02 + np.logaddexp(0.0, raw + np.log(np.expm1(0.58)))
    score = (e.action[1][:, 0] - mean) / deviation
    log_prob = -0.5 * score**2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    with tf.GradientTape() as tape:
        policy = algorithm._policy.unroll(part.before, part.states.policy)
        loss, metrics = algorithm._policy_loss(part, policy)
    terms = np.where(live, -np.minimum(weights, largest) * log_prob, 0)
    assert float(loss) == pytest.approx(terms.mean(), rel=1e-6)
    capped = np.where(live, weights >= largest, False).mean()
    assert float(metrics["capped_weights"]) == pytest.approx(capped)
    # The weights are constants: only the policy is trained by this loss.
    others = [*algorithm._targets.trainable_variables, *algorithm._value.trainable_variables]
    assert tape.gradient(loss, others) == [None] * len(others)


def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch):
    def learn(group, rate=0.01):
        algorithm, exchange = _made(group, learning_rate=rate, critic_rate=rate, target_share=0.3)
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = in_process.random_batch(algorithm, 2, B)._replace(weight=np.ones(B, np.float32))
        for _ in range(2):
            algorithm.update(tensors(batch, mine), PROGRESS, exchange)
        return arrays(algorithm.variables.trained, algorithm._followers)

    one = in_threads.assert_several_are_one_by_minibatches(monkeypatch, learn)
    unmoved = learn(SingleLearner(), 0.0)
    # All of the policy, the Q-networks, V and the slow copies move.
    assert min(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-4


def test_it_takes_choices_and_memories_too(monkeypatch):
    """V reads what the slow Q-networks' own network, here with an LSTM, makes of observations."""
    monkeypatch.undo()
    algorithm, exchange = _made(level="CartPole-v1", agent_name="MLPLSTMAgent")
    before = arrays(algorithm.variables.trained)
    batch = in_process.random_batch(algorithm, 3, 4)
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
    assert np.isfinite(list(map(float, metrics.values()))).all()
    after = arrays(algorithm.variables.trained)
    moved = [np.abs(a - b).max() > 0 for a, b in zip(after, before, strict=True)]
    assert np.mean(moved) > 0.9
