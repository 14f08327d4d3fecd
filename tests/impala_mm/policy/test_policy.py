"""A policy from a run's folder acts as the network did, in one environment or in many."""

import json
import math
import re
import shutil

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from saved_run import save

import impala_mm
from impala_mm.algorithms.impala.algorithm import Impala
from impala_mm.algorithms.interface import Algorithm
from impala_mm.environments import types
from impala_mm.policy.core import CannotTeach
from impala_mm.records import checkpoint

LARGE = "ShallowConvLSTMAgent"  # whose graphs are traced in seconds
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in (LARGE, "MLPGTrXLAgent")]


@pytest.fixture(scope="module", params=["MLPLSTMAgent", *OTHERS])
def logdir(request, tmp_path_factory):
    """Write a run with a checkpoint whose policy prefers some actions."""
    level = "memory"
    if request.param == LARGE:
        pytest.importorskip("ale_py")
        level = "PongNoFrameskip-v4"
    path = tmp_path_factory.mktemp("run")
    save(path, agent_name=request.param, level_name=level)
    return path


@pytest.fixture(scope="module")
def policy(logdir):
    """Load the policy, which prefers different actions for different observations."""
    policy = impala_mm.load_policy(logdir)
    tf.random.set_seed(3)
    head = {v.name: v for v in policy.algorithm.variables.trained if "policy_logits" in v.name}
    weights, biases = head["policy_logits/w:0"], head["policy_logits/b:0"]
    weights.assign(tf.random.normal(weights.shape, stddev=30.0))
    seen = _observations(policy, 12)
    entry = policy.entry(seen, [0.0] * 12, [0] * 12, [True] * 12)
    _, _, logits = policy.step(entry, policy.initial_state(12), explore=False)
    biases.assign(-tf.reduce_mean(logits, 0))
    return policy


def _observations(policy, count):
    rng, spec = np.random.default_rng(0), policy.spec.observation
    if spec.dtype == tf.uint8:
        blocks = rng.integers(0, 255, (count, 4, 4, 1), np.uint8)
        return blocks.repeat(21, axis=1).repeat(21, axis=2)
    return rng.normal(size=(count, *spec.shape)).astype(np.float32)


def _play(policy, observations, rewards):
    policy.reset()
    return [policy(o, r) for o, r in zip(observations, rewards, strict=True)]


def test_a_batch_acts_as_each_of_it_alone(policy):
    length, batch = 8, 3
    observations = _observations(policy, length * batch)
    observations = observations.reshape(length, batch, *observations.shape[1:])
    rewards = np.random.default_rng(1).normal(size=(length, batch)).astype(np.float32)
    alone = [_play(policy, observations[:, i], rewards[:, i]) for i in range(batch)]
    state, actions = policy.initial_state(batch), np.zeros(batch, np.int32)
    for t in range(length):
        entry = policy.entry(observations[t], rewards[t], actions, [t == 0] * batch)
        value, probabilities = policy.judge(entry, state).value, policy.judge(entry, state).policy
        actions, state, _ = policy.step(entry, state, explore=False)
        assert actions.tolist() == [actions_of[t] for actions_of in alone]
        assert actions.tolist() == probabilities.numpy().argmax(1).tolist()
        assert value.shape == [batch]


def test_an_unroll_is_judged_as_its_entries_one_by_one(policy):
    """A student may ask its teacher within its own graph; an episode may begin in the unroll."""
    length, batch = 6, 2
    observations = _observations(policy, length * batch)
    observations = observations.reshape(length, batch, *observations.shape[1:])
    rewards = np.random.default_rng(1).normal(size=(length, batch)).astype(np.float32)
    first = np.zeros([length, batch], bool)
    first[0], first[3, 0], first[2, 1] = True, True, True
    entries = [
        policy.entry(observations[t], rewards[t], np.full(batch, t % 2), first[t])
        for t in range(length)
    ]
    state, expected = policy.initial_state(batch), []
    for at, entry in enumerate(entries):
        if at == 1:
            start = state
        expected.append(policy.judge(entry, state))
        _, state, _ = policy.step(entry, state, explore=False)
    unroll = tf.nest.map_structure(
        lambda *parts: None if parts[0] is None else tf.stack(parts), *entries[1:]
    )
    judged = tf.function(policy.judge_unroll, autograph=False)(unroll, start)
    for name in ("policy", "value", "parameters"):
        one_by_one = np.stack([getattr(each, name).numpy() for each in expected[1:]])
        np.testing.assert_allclose(
            getattr(judged, name), one_by_one, rtol=1e-3, atol=2e-3, err_msg=name
        )
    np.testing.assert_allclose(tf.nn.softmax(judged.parameters), judged.policy, atol=1e-6)
    fresh = policy.judge_unroll(unroll, policy.initial_state(batch))
    assert np.allclose(fresh.parameters[2, 0], judged.parameters[2, 0], rtol=1e-3), "after a reset"


def test_a_teacher_that_cannot_teach_is_refused_when_it_is_loaded(tmp_path, monkeypatch):
    save(tmp_path, level_name="catch")
    assert impala_mm.load_policy(tmp_path, as_teacher=True)
    monkeypatch.setattr(Impala, "judge_unroll", Algorithm.judge_unroll)
    assert impala_mm.load_policy(tmp_path)
    with pytest.raises(
        CannotTeach, match=r"/checkpoints/\d+ cannot teach: its --algorithm=impala has"
    ):
        impala_mm.load_policy(tmp_path, as_teacher=True)


def test_the_action_and_the_reward_before_are_read(policy):
    """Every network reads the observation, the last reward and the last action."""
    observation = _observations(policy, 1)

    def logits(reward, action, first):
        entry = policy.entry(observation, [reward], [action], [first])
        return policy.step(entry, policy.initial_state(1), explore=False)[2].numpy()

    usual = logits(0.0, 0, False)
    assert np.abs(logits(1.0, 0, False) - usual).max() > 0.1
    assert np.abs(logits(0.0, 1, False) - usual).max() > 0.1
    assert (logits(1.0, 1, True) == logits(0.0, 0, True)).all(), "not where an episode begins"


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path):
    save(tmp_path, level_name="catch")
    policy = impala_mm.load_policy(tmp_path)
    with pytest.raises(ValueError, match=r"observation of shape \[4\], and its space has"):
        policy(np.zeros(4))
    with pytest.raises(checkpoint.Mismatch, match=r"2 actions .* \[4\], but .* for 3 actions"):
        impala_mm.load_policy(tmp_path, level_name="CartPole-v1")
    with pytest.raises(types.BadLevel, match="there is no environment CartPole-v77"):
        impala_mm.load_policy(tmp_path, level_name="CartPole-v77")
    with pytest.raises(checkpoint.Missing, match="does not exist"):
        impala_mm.load_policy(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mlp_sizes": "abc"}, "--mlp_sizes=abc: it must be whole numbers of at least 1"),
        ({"mlp_sizes": 5}, "--mlp_sizes=5: it needs text"),
        ({"seed": [1]}, "--seed=[1]: it needs a whole number"),
        ({"discounting": None}, "--discounting=None: it needs a number"),
        ({"target_entropy": math.inf}, "--target_entropy=inf: no policy has that entropy"),
    ],
)
def test_recorded_flags_that_cannot_be_used_are_named(tmp_path, changes, why):
    path = save(tmp_path, level_name="catch") / "about.json"
    about, unread = json.loads(path.read_text()), {"batch_size": "many", "optimizer": "gone"}
    path.write_text(json.dumps(about | {"settings": about["settings"] | unread}))
    assert impala_mm.load_policy(tmp_path), "playing does not read these"
    path.write_text(json.dumps(about | {"settings": about["settings"] | changes}))
    with pytest.raises(checkpoint.Mismatch, match=re.escape(f"cannot be used ({why}")):
        impala_mm.load_policy(tmp_path)


def test_the_newest_the_best_or_one_that_is_named(tmp_path):
    for updates in (1, 2):
        path = save(tmp_path, updates=updates, level_name="catch")
    assert impala_mm.load_policy(tmp_path).path == path
    assert impala_mm.load_policy(path.with_name("0000000001")).about.updates == 1


def test_environments_of_a_batch_begin_their_episodes_apart(policy):
    """A batch acts as single policies that are reset when their own episode begins."""
    seen = _observations(policy, 12).reshape(4, 3, *policy.spec.observation.shape)
    rewards = np.array([[0, 0, 0], [1, -1, 0], [0, 2, 1], [1, 1, 0]], np.float32)
    starts = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]], bool)
    policy.reset()
    together = [policy.act(o, r, s) for o, r, s in zip(seen, rewards, starts, strict=True)]
    for i in range(3):
        policy.reset()
        for t in range(4):
            if starts[t, i]:
                policy.reset()
            assert policy(seen[t, i], rewards[t, i]) == together[t][i], (t, i)


def test_values_are_those_of_what_act_reads_next_and_change_nothing(policy):
    seen = _observations(policy, 4)
    policy.reset()
    first = policy.values(seen)
    assert first.shape == (4,)
    np.testing.assert_array_equal(policy.values(seen), first)
    entry = policy.entry(seen, [0.0] * 4, [0] * 4, [True] * 4)
    judged = policy.judge(entry, policy.initial_state(4)).value
    np.testing.assert_allclose(first, judged, rtol=1e-5, atol=1e-6)


def test_predict_is_called_as_in_stable_baselines3(policy):
    seen = _observations(policy, 6)
    action, state = policy.predict(seen[0], deterministic=True)
    assert action == _play(policy, seen[:1], [0])[0]
    assert np.ndim(action) == 0
    again, _ = policy.predict(seen[1], state, deterministic=True)
    assert again == _play(policy, seen[:2], [0, 0])[1]
    actions, state = policy.predict(seen[:2], None, np.array([True, True]), True)
    assert len(actions) == 2
    # The second environment has begun an episode.
    actions, _ = policy.predict(seen[2:4], state, np.array([False, True]), True)
    assert actions[0] == _play(policy, seen[[0, 2]], [0, 0])[1]
    assert actions[1] == _play(policy, seen[3:4], [0])[0]
    drawn = {int(policy.predict(seen[5])[0]) for _ in range(60)}
    assert drawn <= set(range(policy.spec.actions.discrete))


def test_whatever_the_constructor_of_an_environment_raises_is_one_of_our_errors(
    tmp_path, monkeypatch
):
    gymnasium.register("NeedsLicence-v0", entry_point=Licensed)
    save(tmp_path, level_name="NeedsLicence-v0")
    monkeypatch.setattr(Licensed, "valid", False)
    for call in (impala_mm.load_policy, impala_mm.evaluate):
        with pytest.raises(impala_mm.errors.BadEnvironment, match="RuntimeError: no licence") as e:
            call(tmp_path)
        assert isinstance(e.value.__cause__, RuntimeError)


class Licensed(gymnasium.Env):
    """Cannot be made once its licence is over."""

    valid = True
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        if not self.valid:
            raise RuntimeError("no licence")


def test_a_policy_whose_checkpoint_was_deleted_says_so_when_it_is_saved(tmp_path):
    folder = save(tmp_path / "run", level_name="catch")
    policy = impala_mm.load_policy(folder)
    shutil.rmtree(folder)
    with pytest.raises(impala_mm.errors.ImpalaError, match="has been deleted or replaced since"):
        policy.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_policy_may_have_another_precision():
    assert impala_mm.load_policy("cartpole", precision="bfloat16").config.precision == "bfloat16"


def test_wrong_lengths_are_refused(policy):
    seen = _observations(policy, 3)
    with pytest.raises(ValueError, match="3 observations, but 2 rewards"):
        policy.act(seen, [0.0, 1.0])
    with pytest.raises(ValueError, match="3 observations, but 1 action_masks"):
        policy.values(seen, action_masks=[None])


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_policy_acts_alike_and_is_smaller_than_its_checkpoint(logdir, tmp_path, half):
    policy = impala_mm.load_policy(logdir)
    policy.save(tmp_path / "saved", half=half)
    again = impala_mm.load_policy(tmp_path / "saved")
    for ours, theirs in zip(
        policy.algorithm.variables.trained, again.algorithm.variables.trained, strict=True
    ):
        kept = tf.cast(ours, tf.float16) if half else ours
        np.testing.assert_array_equal(tf.cast(kept, tf.float32), theirs)
    seen = _observations(policy, 3)
    np.testing.assert_allclose(again.values(seen), policy.values(seen), atol=0.02 if half else 0)

    def size(folder):
        return sum(path.stat().st_size for path in folder.glob("variables*"))

    assert size(tmp_path / "saved") < (0.3 if half else 0.6) * size(policy.path)
    with pytest.raises(impala_mm.errors.BadSettings, match="exists: name a new folder"):
        policy.save(tmp_path / "saved")


def test_an_export_from_python_is_that_of_the_command(logdir, tmp_path):
    policy = impala_mm.load_policy(logdir)
    tf.random.set_seed(5)
    expected = tf.random.uniform([4])
    tf.random.set_seed(5)
    policy.export(tmp_path / "export")
    np.testing.assert_array_equal(tf.random.uniform([4]), expected, "the seed is the caller's")
    assert {"saved_model.pb", "README.txt", "example.py"} <= {
        path.name for path in (tmp_path / "export").iterdir()
    }
    drawn = [_draws(tmp_path / "export") for _ in range(2)]
    assert (drawn[0] != drawn[1]).any(), "each server draws other actions"
    policy.export(tmp_path / "export")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(impala_mm.errors.BadSettings, match="it holds thesis"):
        policy.export(tmp_path / "mine")


def _draws(folder):
    """Return the actions that an export draws for 200 equal observations, once it is loaded."""
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    _, specs = serve.structured_input_signature
    given = {name: tf.zeros([200, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}
    return serve(**given | {"exploration": tf.ones([200])})["action"].numpy()


def test_a_saved_policy_has_the_weights_that_only_training_needs(tmp_path):
    """A new run that starts from them goes on with the moments of rewards and values."""
    path = tmp_path / "run"
    save(path, agent_name="MLPAgent", level_name="CartPole-v1", normalize_rewards=True)
    policy = impala_mm.load_policy(path)
    before = tf.train.load_checkpoint(str(policy.path / "variables"))
    names = [n for n in before.get_variable_to_shape_map() if n.startswith("weights/")]
    assert names
    assert before.get_tensor(names[0]).max() >= 70_000, "more than float16 holds"
    policy.save(tmp_path / "saved", half=True)
    after = tf.train.load_checkpoint(str(tmp_path / "saved" / "variables"))
    for name in names:
        np.testing.assert_array_equal(after.get_tensor(name), before.get_tensor(name))
