"""Teachers that act in an actor, in the first steps of episodes."""

import math
import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.feature import Host
from impala_mm.algorithms.features.guide import Guidance, Guide
from impala_mm.algorithms.interface import Context, Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.parts import action_policies
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry, UnrollCodec
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.records import saved_variables
from impala_mm.teachers.load import load_teachers

CATCHER = "tests.helpers.scripted:catcher"
ACTIONS = ActionSpec(Discrete(3))


def _settings(**flags):
    config = Config.of_algorithm("impala")
    return config(**{"level_name": "catch", "teacher": CATCHER, "teacher_cost": 0.0} | flags)


def _student(**flags):
    config = _settings(**flags)
    return make_algorithm(config, level_spec(config.level_name), Setup(Role.ACTOR))


def _played(student, unrolls, size=8, level="catch"):
    """Return (entries [T+1, B] of all unrolls, returns of the games)."""
    environments = make_environments(level, size, seed=3)
    config = student.features.get(Guidance).config

    def load(settings):
        return load_teachers(config, level_spec(level))

    player = UnrollPlayer(student, [(environments, size)], None, load)
    codec = UnrollCodec(student.unroll)
    entries = [codec.decode(tf.constant(player.play()))[0] for _ in range(unrolls)]
    together = tf.nest.map_structure(lambda *parts: np.concatenate(parts, 1), *entries)
    return together, player.episodes()[:, 2]


def _is_teachers(entries):
    """Return where the recorded policy is the catcher's, whose choice is almost certain."""
    logits = entries.extras - entries.extras.max(-1, keepdims=True)
    return (np.exp(logits).sum(-1) < 1.001) & ~entries.first


def test_a_teacher_that_acts_all_the_time_plays_perfectly_and_its_policy_is_recorded():
    entries, returns = _played(_student(guide_steps=10**8), unrolls=4)
    assert len(returns) > 5
    steps = ~entries.first[1:]
    taken = np.take_along_axis(entries.extras[1:], entries.action[1:, :, None], -1)[..., 0]
    assert (taken >= -0.001)[steps].all(), "the log-probability of what the teacher does is 0"
    # An episode may end only after the first one, which began in the student's hands if h < 9.
    assert (returns == 1).mean() > 0.9


def test_it_acts_for_one_to_guide_steps_and_then_the_student_does_until_the_episode_ends():
    entries, _ = _played(_student(guide_steps=4), unrolls=6, size=32)
    lengths = []
    for column in range(entries.first.shape[1]):
        first, theirs = entries.first[:, column], _is_teachers(entries)[:, column]
        begins = np.flatnonzero(first)
        for begin in begins[begins + 9 < len(first)]:
            acted = theirs[begin + 1 : begin + 10]
            lengths.append(int(acted.sum()))
            assert acted[: lengths[-1]].all(), "the teacher acts first, without a gap"
    counts = np.bincount(lengths, minlength=6)
    assert counts[0] == counts[5] == 0
    assert stats.chisquare(counts[1:5]).pvalue > 1e-3, counts


@pytest.mark.parametrize(("share", "most"), [(1.0, 4), (0.26, 2), (0.01, 1)])
def test_the_number_of_steps_falls_with_the_share(share, most):
    student = _student(guide_steps=4)
    student.features.get(Guidance).share.assign(share)
    entries, _ = _played(student, unrolls=4, size=16)
    theirs = _is_teachers(entries)
    begun = entries.first & (np.arange(len(entries.first))[:, None] + most + 1 < len(theirs))
    lengths = [theirs[t + 1 : t + 10, b].sum() for t, b in np.argwhere(begun)]
    assert max(lengths) == most


def test_once_the_share_is_0_teachers_are_not_loaded_and_the_student_acts():
    student = _student(guide_steps=4, teacher="gone:away")
    student.features.get(Guidance).share.assign(0.0)
    entries, _ = _played(student, unrolls=2)
    assert not _is_teachers(entries).any()


def test_a_share_of_the_later_steps_is_the_teachers():
    entries, _ = _played(_student(guide_share=0.3), unrolls=6, size=32)
    steps = ~entries.first[1:]
    assert _is_teachers(entries)[1:][steps].mean() == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [("r2d2", {"agent_name": "MLPLSTMAgent"}), ("sac", {"discrete_sac": True})],
)
def test_students_of_values_learn_from_the_teachers_steps_too(algorithm, flags):
    made = Config.of_algorithm(algorithm)
    config = made(level_name="catch", teacher=CATCHER, guide_steps=100, **flags)
    student = make_algorithm(config, level_spec("catch"), Setup(Role.ACTOR))
    _, returns = _played(student, unrolls=4, size=4)
    assert (returns == 1).mean() > 0.8
    assert any(
        variable is student.features.get(Guidance).share for variable in student.variables.acting
    )


def test_the_share_has_no_part_in_the_names_of_other_variables_of_a_checkpoint():
    """So a run is resumed without the guide, and another run's guide begins anew."""
    spec, flags = level_spec("catch"), {"value_normalization": "popart"}
    made = [
        make_algorithm(config, spec, Setup(Role.LEARNER))
        for config in (_settings(guide_steps=4, **flags), _settings(teacher="", **flags))
    ]
    guided, plain = (saved_variables.named(each.variables) for each in made)
    shapes = {name: variable.shape for name, variable in guided.items()}
    assert shapes.items() >= {name: variable.shape for name, variable in plain.items()}.items()
    (extra,) = guided.keys() - plain.keys()
    assert guided[extra] is made[0].features.get(Guidance).share
    assert extra not in saved_variables.named_weights(made[0].variables)


def _context(frames, total=1000.0):
    return Context(*(tf.constant(x, tf.float32) for x in (frames, total, math.nan)))


def test_the_share_falls_in_a_line_and_does_not_rise_when_more_frames_are_planned():
    guidance = Guidance(_settings(guide_steps=4))
    shares = [float(guidance.begin_update(_context(f))["guidance"]) for f in (0, 100, 400, 500)]
    np.testing.assert_allclose(shares, [1, 0.8, 0.2, 0], atol=1e-7)
    assert float(guidance.begin_update(_context(600, 10_000))["guidance"]) == 0
    by_flag = Guidance(_settings(guide_steps=4, teacher_frames=200.0))
    assert float(by_flag.begin_update(_context(50))["guidance"]) == pytest.approx(0.75)
    # Updates from recorded games alone, after which actors may play, are no frames.
    alone = Guidance(_settings(guide_steps=4, num_actors=0, offline_updates=9, teacher_cost=1.0))
    assert float(alone.begin_update(_context(400))["guidance"]) == 1


class Counts:
    """A teacher whose action is the number of entries that it has read in the episode, of 3."""

    greedy = True

    def initial_state(self, batch):
        return tf.zeros([batch], tf.int32)

    def step(self, entry, state):
        state = tf.where(entry.first, 0, state + 1)
        return tf.one_hot(state % 3, 3), state


def _entry(first):
    size = len(first)
    nothing = np.zeros(size, np.int32)
    return Entry(
        nothing, np.zeros(size, np.float32), None, None, nothing, np.array(first), None, ()
    )


def test_each_episode_has_one_teacher_which_keeps_its_memory_until_the_next():
    guidance = Guidance(_settings(guide_steps=50))
    guidance.attach(Host(action_policies.choose(ACTIONS), remembers=False, records_policy=True))
    loaded = []

    def load(settings):
        loaded.append(1)
        return [Counts(), Counts()]

    guide = Guide(guidance, 4, load, seed=[0, 0])
    # All are guided for 50 steps, two by each teacher.
    guide._random = types.SimpleNamespace(
        integers=lambda low, high=None, size=None: (
            np.full(size, 50) if high else np.resize([0, 1], size)
        )
    )
    students = np.full(4, 2, np.int32), [np.zeros([4, 3], np.float32)]
    chosen = []
    for first in ([True] * 4, [False] * 4, [False, False, True, True], [False] * 4):
        actions, extras = guide.take_over(_entry(first), *students)
        chosen.append(actions.tolist())
        np.testing.assert_array_equal(extras[0], 20 * np.eye(3)[actions])
        assert actions.dtype == np.int32
    assert chosen == [[0] * 4, [1] * 4, [2, 2, 0, 0], [0, 0, 1, 1]]
    assert len(loaded) == 1


@pytest.mark.parametrize(
    ("algorithm", "flags", "said"),
    [
        ("impala", {"inference": "learner"}, "--guide_steps=5: the teacher acts in the actors"),
        ("impala", {"teacher_method": "qdagger"}, "which is also the teacher's"),
        ("ppo", {}, "--guide_steps=5: --algorithm=ppo"),
    ],
)
def test_what_cannot_be_guided_is_refused(algorithm, flags, said):
    made = {"algorithm": algorithm, "teacher": CATCHER, "guide_steps": 5} | flags
    with pytest.raises(ValueError, match=said):
        Config.of_algorithm(algorithm)(**made)
