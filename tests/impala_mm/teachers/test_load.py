"""Teachers of every kind, loaded and asked; and those that cannot teach, each with its sentence."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from saved_run import save
from scipy import special

import impala_mm
from impala_mm.algorithms.feature import Host, Reading
from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features.teacher import Distillation
from impala_mm.algorithms.parts import action_policies
from impala_mm.algorithms.q_learning import settings as dqn_settings
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.environments import from_flags
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.policy.policy import load_policy
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.teacher import NoTeacher


def _load(teacher, level="catch", **settings):
    """Return the teachers of a student of this level."""
    config = TeacherSettings(teacher=str(teacher), level_name=level, **settings)
    return load_teachers(config, level_spec(level))


def _entries(level="catch", steps=5, columns=3, seed=0):
    """Return random entries [T, B, ...] of a level, in which episodes begin now and then."""
    rng, spec = np.random.default_rng(seed), level_spec(level)
    shape = (steps, columns)
    first = rng.random(shape) < 0.2
    return Entry(
        action=tf.constant(rng.integers(0, spec.actions.discrete or 1, shape), tf.int32),
        reward=tf.constant(rng.normal(0, 1, shape), tf.float32),
        terminated=tf.constant(first),
        truncated=tf.constant(first),
        observation=tf.constant(rng.random((*shape, *spec.observation.shape)), tf.float32),
        first=tf.constant(first),
        extras=(),
    )


def _probabilities(logits):
    return special.softmax(np.asarray(logits, float), -1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(folder, level_name="catch", agent_name="MLPLSTMAgent", sure=True)
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "exported"
    load_policy(run).export(folder)
    return folder


def test_a_run_teaches_as_its_policy_plays_from_a_zero_state(run):
    (teacher,) = _load(run)
    entries = _entries()
    policy = load_policy(run)
    expected = policy.judge_unroll(entries, policy.initial_state(3)).parameters
    np.testing.assert_allclose(teacher.parameters(entries), expected, rtol=1e-6)
    state, steps = teacher.initial_state(3), []
    for t in range(5):
        logits, state = teacher.step(tf.nest.map_structure(lambda x, t=t: x[t], entries), state)
        steps.append(logits)
    np.testing.assert_allclose(np.stack(steps), expected, rtol=1e-4, atol=1e-5)
    assert [note for note in teacher.notes if "remembers earlier observations" in note]


def test_an_export_teaches_like_its_run_and_is_never_executed(run, exported, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", None)
    (teacher,), (original,) = _load(exported), _load(run)
    entries = _entries()
    np.testing.assert_array_equal(teacher.parameters(entries), original.parameters(entries))
    assert impala_mm.load_policy(exported).about.settings["agent_name"] == "MLPLSTMAgent"


def test_a_savedmodel_teaches_like_the_run_that_was_exported(run, exported, tmp_path):
    """That of an earlier version has no about.json; it asks for trust."""
    folder = tmp_path / "earlier"
    shutil.copytree(exported, folder)
    (folder / "variables" / "about.json").unlink()
    with pytest.raises(NoTeacher, match="give --trust_teacher if you know where it is from"):
        _load(folder)
    (teacher,), (original,) = _load(folder, trust_teacher=True), _load(run)
    entries = _entries()
    expected = _probabilities(original.parameters(entries))
    np.testing.assert_allclose(_probabilities(teacher.parameters(entries)), expected, atol=1e-4)


BOARD = tf.TensorSpec([None, 10, 5], name="board")
STACK = tf.TensorSpec([None, 2, 1, 3], tf.uint8, "stack")
FRAME = tf.TensorSpec([None, 2, 1, 1], tf.uint8, "observation")  # as our exports, which remember


def _saved(folder, answer, *inputs):
    """Save another program's SavedModel, whose outputs are those of a function; return its path."""
    module = tf.Module()
    module.answer = tf.function(answer, input_signature=inputs)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.answer})
    return folder


def _five_actions(board):
    return {"policy": tf.reduce_sum(board, 1)}


def test_a_trusted_savedmodel_of_another_program_teaches(tmp_path):
    folder = _saved(tmp_path / "x", lambda board: {"values": tf.reduce_sum(board, 1)[:, :3]}, BOARD)
    (teacher,) = _load(folder, trust_teacher=True, teacher_temperature=0.5)
    entries = _entries()
    values = np.sum(entries.observation, 2)[..., :3]
    np.testing.assert_allclose(teacher.parameters(entries), values / 0.5, rtol=1e-5)
    assert teacher.greedy


@pytest.mark.parametrize(
    ("answer", "inputs", "said"),
    [
        (
            lambda board, clock: {"policy": tf.reduce_sum(board, 1)[:, :3] + clock[:, None]},
            (BOARD, tf.TensorSpec([None], name="clock")),
            "it asks for an input ",
        ),
        (lambda board: {"move": board}, (BOARD,), "its outputs are move"),
        (
            lambda board: {"policy": board},
            (tf.TensorSpec([None, 4], name="board"),),
            "its input board has shape (None, 4), and in catch one such entry is (1, 10, 5)",
        ),
        (_five_actions, (BOARD,), "its output policy has shape [1, 5] for one observation"),
    ],
)
def test_a_trusted_savedmodel_that_does_not_fit_is_refused(tmp_path, answer, inputs, said):
    folder = _saved(tmp_path / "foreign", answer, *inputs)
    with pytest.raises(NoTeacher, match=re.escape(said)):
        _load(folder, trust_teacher=True)


def _brightness(frames):
    return tf.reduce_sum(tf.cast(frames, tf.float32), [1, 2])


@pytest.mark.parametrize("kind", ["function", STACK, FRAME])
def test_where_frames_are_stacked_functions_and_savedmodels_read_stacks(tmp_path, kind):
    observation = tf.TensorSpec([2, 1, 1], tf.uint8)
    spec = EnvironmentSpec("small", observation, ActionSpec(Discrete(3)), 1, None, 3)
    name = "tests.helpers.scripted:brightest_frame"
    if kind is STACK:
        name = _saved(tmp_path / "x", lambda stack: {"logits": _brightness(stack)}, kind)
    elif kind is FRAME:
        answer = lambda observation: {"logits": tf.tile(_brightness(observation), [1, 3])}  # noqa: E731
        name = _saved(tmp_path / "x", answer, kind)
    config = TeacherSettings(teacher=str(name), level_name="small", trust_teacher=True)
    (teacher,) = load_teachers(config, spec)
    frames = np.random.default_rng(0).integers(0, 256, [7, 2, 2, 1, 1]).astype(np.uint8)
    first = np.zeros([7, 2], bool)
    first[0], first[4, 1] = True, True
    zeros = tf.zeros([7, 2])
    entries = Entry(tf.zeros([7, 2], tf.int32), zeros, first, first, frames, tf.constant(first), ())
    brightness = np.zeros([7, 2, 3], np.float32)  # of the frames of each stack, the oldest first
    for t in range(7):
        before = np.where(first[t, :, None], 0, brightness[t - 1, :, 1:])
        brightness[t] = np.concatenate([before, frames[t].astype(int).sum((1, 2))], -1)
    state, steps = teacher.initial_state(2), []
    for t in range(7):
        entry = tf.nest.map_structure(lambda x, t=t: tf.constant(x[t]), entries)
        logits, state = teacher.step(entry, state)
        steps.append(logits)
    for found in (tf.function(teacher.parameters)(entries).numpy(), np.array(steps)):
        if kind == "function":
            np.testing.assert_array_equal(found.argmax(-1), brightness.argmax(-1))
        else:
            read = brightness if kind is STACK else brightness[..., [2, 2, 2]]
            np.testing.assert_array_equal(found, read)


def test_a_teacher_of_values_has_their_softmax(tmp_path):
    save(tmp_path, level_name="catch", algorithm="dqn", sure=True)
    (teacher,) = _load(tmp_path, teacher_temperature=0.2)
    assert teacher.greedy
    entries, policy = _entries(), load_policy(tmp_path)
    found = teacher.parameters(entries).numpy()
    state = policy.initial_state(3)
    for t in range(5):
        entry = tf.nest.map_structure(lambda x, t=t: x[t], entries)
        np.testing.assert_allclose(found[t], policy.judge(entry, state).values / 0.2, rtol=1e-4)


def test_functions_teach_by_actions_and_by_probabilities():
    catcher, unsure = _load("tests.helpers.scripted:catcher,tests.helpers.scripted:unsure")
    entries = _entries()
    asked = tf.function(catcher.parameters)(entries)
    found = _probabilities(asked)
    assert asked.shape == [5, 3, 3]
    ball = np.argmax(entries.observation[:, :, :-1].numpy().max(2), -1)
    paddle = np.argmax(entries.observation[:, :, -1], -1)
    np.testing.assert_array_equal(found.argmax(-1), np.sign(ball - paddle) + 1)
    assert (found.max(-1) > 0.99999).all()
    np.testing.assert_allclose(_probabilities(unsure.parameters(entries))[..., 1], 0.5, rtol=1e-5)


def test_a_teacher_with_fewer_actions_never_takes_the_others():
    """CartPole's has two; the student's level has three actions and the same observations."""
    level = "tests.helpers.games:Three-v0"
    with pytest.raises(NoTeacher, match="--teacher_actions says which of the teacher's actions"):
        _load("cartpole", level)
    (teacher,) = _load("cartpole", level, teacher_actions="1,-,0")
    found = _probabilities(teacher.parameters(_entries(level)))
    assert found[..., 1].max() < 1e-8
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)
    assert "the teacher cartpole was trained on CartPole-v1, not on " in teacher.notes[0]


def test_a_savedmodel_and_a_function_may_have_more_actions_than_are_named(tmp_path):
    """The model has five actions, and the function six."""
    folder = _saved(tmp_path / "foreign", _five_actions, BOARD)
    (model,) = _load(folder, trust_teacher=True, teacher_actions="1,0,3")
    entries = _entries()
    sums = np.maximum(np.sum(entries.observation, 2), 1e-6)[..., [1, 0, 3]]
    np.testing.assert_allclose(
        _probabilities(model.parameters(entries)), sums / sums.sum(-1, keepdims=True), rtol=1e-5
    )
    (function,) = _load("tests.helpers.scripted:six_actions", teacher_actions="1,0,3")
    found = _probabilities(function.parameters(entries))
    np.testing.assert_allclose(found, np.broadcast_to([0.25, 0.25, 0.5], found.shape), rtol=1e-5)
    with pytest.raises(NoTeacher, match="the teacher has no action 6: its actions are 0 to 5"):
        _load("tests.helpers.scripted:six_actions", teacher_actions="1,0,6")
    with pytest.raises(NoTeacher, match="than --teacher_actions names, it must return their prob"):
        _load("tests.helpers.scripted:too_far", teacher_actions="1,0,2")


def test_the_code_that_a_strangers_run_names_is_not_executed(tmp_path, monkeypatch):
    """Its folder lies in the current one, in which users' modules are searched first."""
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "runs" / "stranger", level_name="catch")
    evil = tmp_path / "runs" / "stranger" / "evil.py"
    for module in (evil, evil.with_stem("evil_settings"), evil.with_stem("__init__")):
        module.write_text("open('ran', 'w')\n")
    about = json.loads((path / "about.json").read_text())
    for changed in (
        {"imports": "runs.stranger.evil"},
        {"imports": "impala"},
        {"algorithm": "runs.stranger.evil"},
        {"algorithm": ["runs.stranger.evil"]},
    ):
        about["settings"] |= {"imports": ""} | changed
        (path / "about.json").write_text(json.dumps(about))
        with pytest.raises(NoTeacher) as refused:
            _load("runs/stranger")
        assert "is a module, which would be executed" in str(refused.value)
        assert "give --trust_teacher if you know where it is from" in str(refused.value)
    about["settings"] |= {
        "algorithm": "impala",
        "level_name": "runs.stranger.evil:Evil-v0",
        "env_wrappers": "runs.stranger.evil:Evil",
        "teacher": "runs.stranger.evil:teach",
        "guide_steps": 5,
    }
    (path / "about.json").write_text(json.dumps(about))
    assert _load("runs/stranger")
    assert not (tmp_path / "ran").exists()


def test_a_run_of_a_users_algorithm_teaches_students_of_it_and_those_who_trust_it(tmp_path):
    path, own = save(tmp_path, level_name="catch"), "tests.helpers.heavy"
    about = json.loads((path / "about.json").read_text())
    about["settings"]["algorithm"] = own
    (path / "about.json").write_text(json.dumps(about))
    with pytest.raises(NoTeacher, match=f"its --algorithm={own} is a module"):
        _load(tmp_path)
    assert _load(tmp_path, algorithm=own)
    about["settings"] |= {"imports": own}
    (path / "about.json").write_text(json.dumps(about))
    with pytest.raises(NoTeacher, match=f"its --import={own} is a module"):
        _load(tmp_path, algorithm=own)
    assert _load(tmp_path, algorithm=own, imports=own)
    assert _load(tmp_path, trust_teacher=True)


def _damaged(folder):
    path = save(folder, level_name="catch")
    data = next(path.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-1])
    return folder


REFUSED = {
    "cartpol": "did you mean cartpole?",
    "cartpole": "catch has 3 actions and observations float32 [10, 5], but the network was made "
    "for 2 actions and float32 [4]",
    "tests.helpers.none:play": "tests.helpers was found at",
    "tests.helpers.scripted:none": "tests.helpers.scripted has no function none",
    "tests.helpers.scripted:broken": "it raises ValueError: no idea",
    "tests.helpers.scripted:too_far": "it returns action 3, and actions are 0 to 2",
    "tests.helpers.scripted:too_few": "for 2 observations it returns int64 [1]: it must return 2",
    "tests.helpers.scripted:no_probabilities": "negative, or whose sum is not 1",
}


@pytest.mark.parametrize("teacher", REFUSED)
def test_what_cannot_teach_is_refused_in_a_sentence(teacher):
    with pytest.raises(NoTeacher) as refused:
        _load(teacher)
    said = str(refused.value)
    assert said.startswith(f"--teacher={teacher}: ")
    assert REFUSED[teacher] in said
    assert "\n" not in said


def test_a_damaged_checkpoint_and_a_folder_of_something_else_are_refused(tmp_path):
    with pytest.raises(NoTeacher, match=r"is cut short since it was written: copy it again, or "):
        _load(_damaged(tmp_path / "damaged"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ckpt.399").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(NoTeacher, match=r"ckpt.399 has no online_params, but a: give"):
        _load(tmp_path / "other")
    (tmp_path / "other" / "ckpt.399").rename(tmp_path / "other" / "weights.pickle")
    with pytest.raises(NoTeacher, match="other is not the folder of a run: a teacher is the fo"):
        _load(tmp_path / "other")
    with pytest.raises(NoTeacher, match=r"weights.pickle is a file: a teacher is the folder"):
        _load(tmp_path / "other" / "weights.pickle")
    (tmp_path / "other" / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(NoTeacher, match=r"it cannot be loaded \(.*\): copy its folder again"):
        _load(tmp_path / "other", trust_teacher=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoTeacher, match="empty is empty: give the folder of a run"):
        _load(tmp_path / "empty")


def test_an_order_of_numbers_is_refused(run):
    with pytest.raises(NoTeacher, match="--teacher_actions orders Discrete actions, and Pendulum"):
        _load(run, "Pendulum-v1", teacher_actions="1,0,3")


def test_numbers_from_another_distribution_are_refused(tmp_path):
    save(tmp_path, level_name="Pendulum-v1", box_policy="tanh")
    with pytest.raises(NoTeacher, match="it has --box_policy=tanh: there is no divergence"):
        _load(tmp_path, "Pendulum-v1", box_policy="normal")
    (teacher,) = _load(tmp_path, "Pendulum-v1", box_policy="tanh")
    assert teacher.parameters(_entries_of_numbers()).shape == [4, 2, 2]


def test_a_flag_that_a_teachers_algorithm_never_reads_refuses_nothing(tmp_path):
    own = "tests.helpers.td3_like"
    save(tmp_path, level_name="Pendulum-v1", algorithm=own)
    (teacher,) = _load(tmp_path, "Pendulum-v1", box_policy="tanh", trust_teacher=True)
    assert teacher.parameters(_entries_of_numbers()).shape == [4, 2, 2]


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        ({"discretization": "lin"}, {"discretization": "log"}, "--discretization=lin, and the"),
        (
            {"discretization": "log", "action_ratio": 5.0},
            {"discretization": "log"},
            "--action_ratio=5.0, and the student 30.0: the same choice would be another number",
        ),
        ({"discretization": "lin", "action_ratio": 5.0}, {"discretization": "lin"}, ""),
    ],
)
def test_choices_that_stand_for_other_numbers_are_refused(tmp_path, theirs, ours, said):
    level = "Pendulum-v1"
    save(tmp_path, level_name=level, **theirs)
    config = TeacherSettings(teacher=str(tmp_path), level_name=level, **ours)
    spec = level_spec(level, **from_flags.environment_options(config))
    if said:
        with pytest.raises(NoTeacher, match=re.escape(said)):
            load_teachers(config, spec)
    else:
        assert len(load_teachers(config, spec)) == 1


def _entries_of_numbers():
    shape = (4, 2)
    first = tf.zeros(shape, tf.bool)
    zeros = tf.zeros(shape)
    action, observation = tf.zeros([*shape, 1]), tf.zeros([*shape, 3])
    return Entry(action, zeros, first, first, observation, first, ())


def test_a_function_cannot_choose_numbers():
    with pytest.raises(NoTeacher, match="a function teaches Discrete actions, and Pendulum-v1"):
        _load("tests.helpers.scripted:unsure", "Pendulum-v1")


def test_the_best_checkpoint_of_a_run_teaches(tmp_path):
    for updates, episode_return in ((1, 5.0), (2, 3.0)):
        path = save(tmp_path, updates=updates, level_name="catch", seed=updates)
        about = json.loads((path / "about.json").read_text())
        (path / "about.json").write_text(json.dumps(about | {"episode_return": episode_return}))
    (teacher,) = _load(tmp_path)
    assert teacher._policy.about.updates == 1


def test_values_of_a_teacher_that_has_none_are_refused(tmp_path):
    save(tmp_path, level_name="catch", algorithm="dqn", discounting=0.9)
    catcher = "tests.helpers.scripted:catcher"
    with pytest.raises(NoTeacher, match="and the teacher has none of catch: use --distill=policy"):
        _load(catcher, distill="value")
    (teacher,) = _load(tmp_path, distill="value", reward_scaling=0.5)
    for said in ("--discounting=0.9, and its student has 0.99", "and its student has 0.5: their"):
        assert [note for note in teacher.notes if said in note]
    (teacher,) = _load(tmp_path, reward_scaling=0.5)
    assert not [note for note in teacher.notes if ", and its student has 0.5: " in note]

    def load(teacher, **flags):
        config = dqn_settings.DQNSettings(teacher=str(teacher), level_name="catch", **flags)
        return load_teachers(config, level_spec("catch"))

    assert len(load(tmp_path, distill="policy_and_value")) == 1
    assert len(load(catcher, distill="best_action")) == 1
    with pytest.raises(NoTeacher, match="of actions, and the teacher is a policy, which has none"):
        load(catcher, distill="policy_and_value")
    with pytest.raises(NoTeacher, match="--teacher_actions=1,-,0 has actions that the teacher la"):
        load(tmp_path, distill="value", teacher_actions="1,-,0")


def test_values_in_units_of_several_levels_teach_a_student_of_one_of_them_alone(tmp_path):
    levels = "CartPole-v0,CartPole-v1"
    save(tmp_path, level_name=levels, value_normalization="popart")

    def load(**settings):
        config = TeacherSettings(teacher=str(tmp_path), **settings)
        return load_teachers(config, level_spec("CartPole-v1"))

    with pytest.raises(NoTeacher, match=f"the teacher has none of {levels}"):
        load(level_name=levels, distill="policy_and_value")
    assert load(level_name=levels, distill="policy")
    (teacher,) = load(level_name="CartPole-v1", distill="value")
    of_levels = teacher._policy.algorithm.variables
    (head,) = [v for v in of_levels.trained if v.name.startswith("baseline/b")]
    head.assign([3.0, 5.0])
    _, values = teacher.judge(_entries("CartPole-v1"))
    assert float(np.median(values)) == pytest.approx(5.0 * 70_001 + 70_000, rel=0.2)


def test_values_are_compared_with_those_that_the_teacher_would_play_by(run, tmp_path):
    """A policy's are of observations; those of a teacher of values are its best actions'."""
    save(tmp_path, level_name="catch", algorithm="dqn", sure=True)
    entries = _entries()
    for folder in (run, tmp_path):
        config = TeacherSettings(
            teacher=str(folder), level_name="catch", distill="value", reward_clipping="none"
        )
        made = Distillation(config)
        made.begin(load_teachers(config, level_spec("catch")), 1)
        policy = load_policy(folder)
        expected = policy.judge_unroll(entries, policy.initial_state(3)).value
        made.attach(Host(action_policies.choose(ActionSpec(Discrete(3))), remembers=False))
        batch = Batch(entries, (), *[tf.zeros([3])] * 4)
        found = made.prepare(batch, Reading(None, None, tuple))[1].values[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
