"""TD3: its updates against float64 computations, alone and on several learners."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_policy import algorithm as q_policy
from impala_mm.algorithms.q_policy.settings import TD3Settings
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.actions import UnsuitableActions
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import DoubleCritic, DoublePolicy
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
    return in_process.made("td3", level, group=group, **SMALL | settings)


@pytest.fixture(autouse=True)
def double(monkeypatch):
    monkeypatch.setattr(q_policy, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(q_policy, "CriticNetwork", DoubleCritic)


def _fill(algorithm):
    in_process.fill(algorithm.variables.trained, algorithm._followers)


def _values(observation, action, weights):
    """Return what `DoubleCritic` does, [B, Q-networks]."""
    inputs = [observation, action, action**2]
    return np.tanh(np.concatenate(inputs, -1).astype(np.float64) @ weights)


@pytest.mark.parametrize(
    ("flags", "counted"),
    [
        ({"smoothing": 0.7, "smoothing_limit": 0.3}, slice(None)),
        ({"num_critics": 1, "goal_critics": 1, "smoothing": 0.0}, slice(1)),
    ],
    ids=["td3", "ddpg"],
)
def test_goals_are_of_blurred_actions_of_the_copy(flags, counted):
    algorithm, _ = _made(**flags)
    _fill(algorithm)
    batch = tensors(in_process.batch_with_ends(algorithm, B))
    e, live = batch.unrolls, ~batch.unrolls.first[1] & (batch.weight > 0)
    noise = algorithm._draw_noise(batch, SingleLearner())
    part = q_policy.Part(e, q_policy.States((), ()), live[None], batch.weight, noise)
    found = algorithm._goals(part).numpy()[0]
    after = e.observation[1].numpy().astype(np.float64)
    blur = flags["smoothing"] * noise[0, 0].numpy()
    limit = flags.get("smoothing_limit", 0.5)
    assert flags["smoothing"] == 0 or 0 < np.mean(np.abs(blur) > limit) < 1
    action = np.tanh(after @ algorithm._target_policy.layer.w.numpy())
    action = np.clip(action + np.clip(blur, -limit, limit), -1, 1)
    values = _values(after, action, algorithm._targets.layer.w.numpy())
    following = np.where(e.terminated[1], 0.0, values[:, counted].min(-1))
    expected = np.where(live, e.reward[1].numpy() + 0.9 * following, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cloning", [0.0, 2.5])
def test_the_policys_loss_is_the_first_value_and_the_distance_from_recorded_actions(cloning):
    algorithm, _ = _made(cloning=cloning)
    _fill(algorithm)
    batch = tensors(in_process.batch_with_ends(algorithm, B))
    e, live = batch.unrolls, (~batch.unrolls.first[1] & (batch.weight > 0)).numpy()
    part = q_policy.Part(e, q_policy.States((), ()), live[None], batch.weight, ())
    policy = algorithm._policy.unroll(part.before, part.states.policy)
    loss, _ = algorithm._policy_loss(part, policy)
    seen = e.observation[0].numpy().astype(np.float64)
    action = np.tanh(seen @ algorithm._policy.layer.w.numpy())
    value = _values(seen, action, algorithm._critics.layer.w.numpy())[:, 0]
    terms = -value
    if cloning:
        apart = ((action - e.action[1].numpy()) ** 2).mean(-1)
        terms = apart - cloning / np.abs(value[live]).mean() * value
    assert float(loss) == pytest.approx(np.where(live, terms, 0).mean(), rel=1e-6)


def test_the_policy_and_all_copies_move_after_every_second_step_of_the_critics():
    """The delay divides the number of optimizer steps."""
    algorithm, exchange = _made(updates_per_step=1.0, target_share=0.25, learning_rate=0.01)
    _fill(algorithm)
    before = arrays(*(n.trainable_variables for n in (algorithm._targets, algorithm._critics)))
    metrics, _ = algorithm.update(
        tensors(in_process.batch_with_ends(algorithm, B)), PROGRESS, exchange
    )
    steps = {name: int(o.step) for name, o in algorithm._optimizers.items()}
    assert steps == {"critics": 4, "policy": 2}
    assert int(metrics["optimizer_steps"]) == 4
    assert np.isfinite(list(map(float, metrics.values()))).all()
    # Two moves by a quarter, towards what the Q-networks were after their second and fourth steps.
    moved = np.abs(algorithm._targets.trainable_variables[0].numpy() - before[0]).max()
    assert 0 < moved < np.abs(before[1] - before[0]).max()
    with pytest.raises(ValueError, match="--policy_delay=3 does not divide the 4 optimizer steps"):
        _made(updates_per_step=1.0, policy_delay=3)


def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch):
    def learn(group, rate=0.01):
        algorithm, exchange = _made(group, learning_rate=rate, critic_rate=rate, target_share=0.3)
        _fill(algorithm)
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = tensors(
            in_process.batch_with_ends(algorithm, B)._replace(weight=np.ones(B, np.float32)), mine
        )
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        return arrays(algorithm.variables.trained, algorithm._followers)

    one = in_threads.assert_several_are_one_by_minibatches(monkeypatch, learn)
    unmoved = learn(SingleLearner(), 0.0)
    assert min(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-4


def test_actors_play_around_the_policys_action_and_tests_play_it(monkeypatch):
    monkeypatch.undo()
    algorithm, _ = _made(action_noise=0.2, random_steps=0)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([n, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    state = algorithm.initial_state(n)
    exact = np.tanh(algorithm.judge(entry, state).policy.numpy())[0, 0]
    drawn = algorithm.act(entry, state, tf.ones([n]))[0].numpy()
    assert np.median(drawn) == pytest.approx(exact, abs=0.02)
    np.testing.assert_allclose(np.quantile(drawn, 0.16), exact - 0.2, atol=0.03)
    likely = algorithm.act(entry, state, tf.zeros([n]))[0].numpy()
    np.testing.assert_allclose(likely, np.full((n, 1), exact), rtol=1e-6)


def test_choices_are_refused_in_a_sentence():
    with pytest.raises(UnsuitableActions, match="TD3 chooses numbers between two bounds"):
        _made(level="CartPole-v1")


def test_a_teacher_needs_noise_to_measure_the_distance_from_it():
    numbers = {"level_name": "Pendulum-v1", "teacher": "runs/teacher"}
    assert TD3Settings(**numbers, action_noise=0.0, teacher_cost=0.0).teacher
    with pytest.raises(ValueError, match="--action_noise=0 with a teacher"):
        TD3Settings(**numbers, action_noise=0.0)
