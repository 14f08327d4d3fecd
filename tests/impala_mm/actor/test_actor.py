"""The step convention, from an environment's steps to the batch that a learner reads."""

import itertools
import threading
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import remotely
import tensorflow as tf
from counting import Counting, StandingLink, level

from impala_mm.actor.actor import UnrollPlayer, run
from impala_mm.actor.failures import NothingPlayed
from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.variables import ParameterLayout, Variables
from impala_mm.environments.make import make_environments
from impala_mm.runtime.heartbeat import Heartbeat

# Written by hand. Counting's episodes are 3 steps, truncated; 3, terminated; 1, terminated; its
# observation counts what was seen, resets included, and its reward is the action. Action n of
# this actor is n modulo 4, and the actions of rows 4, 8 and 10 are ignored.
#  action reward terminated truncated observation first
assert Counting.action_space.n == 4
TABLE = [
    (0, 0.0, False, False, 0.0, True),
    (1, 1.0, False, False, 1.0, False),
    (2, 2.0, False, False, 2.0, False),
    (3, 3.0, False, True, 3.0, False),
    (0, 0.0, False, False, 4.0, True),
    (1, 1.0, False, False, 5.0, False),
    (2, 2.0, False, False, 6.0, False),
    (3, 3.0, True, False, 7.0, False),
    (0, 0.0, False, False, 8.0, True),
    (1, 1.0, True, False, 9.0, False),
    (2, 0.0, False, False, 10.0, True),
    (3, 3.0, False, False, 11.0, False),
]
# The number of entries that were read before each row, since the last first.
BEFORE = [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 1]


class Counted(NamedTuple):
    """A core state that counts the entries read since the last first."""

    read: tf.Tensor  # float32 [B]


class Scripted(Algorithm):
    """An algorithm that acts 1, 2, 3, 0, 1... and records the observation and core state."""

    variables = Variables([], [], [])

    def __init__(self, length, overlap=1):
        scalars = [tf.TensorSpec([], t) for t in (tf.int32, tf.float32, tf.bool, tf.bool)]
        observation, first = tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.bool)
        extras = {"saw": tf.TensorSpec([], tf.float32)}
        step = Entry(*scalars, observation, first, extras)
        self.unroll = UnrollSpec(length, overlap, step, Counted(tf.TensorSpec([], tf.float32)))
        self._acted = tf.Variable(0)

    def initial_state(self, batch):
        return Counted(tf.zeros([batch]))

    def act(self, entry, core_state, exploration):
        self._acted.assign_add(1)
        action = tf.fill(tf.shape(entry.reward), self._acted % 4)
        read = tf.where(entry.first, 0.0, core_state.read) + 1.0
        return action, Counted(read), {"saw": entry.observation[:, 0]}


@pytest.fixture(params=["actor", "learner"])
def unrolls(request):
    """Return a function that plays one environment; the actor or the learner chooses actions."""
    return _unrolls if request.param == "actor" else _unrolls_from_afar


def _unrolls_from_afar(length, count, overlap=1):
    with remotely.remote(Scripted(length, overlap)) as there:
        there.act("Counting-v0", [1])
        return [there.taken(1)[:2] for _ in range(count)]


def _unrolls(length, count, num_envs=1, overlap=1):
    algorithm = Scripted(length, overlap)
    player = UnrollPlayer(
        algorithm, [(make_environments("Counting-v0", num_envs, seed=0), num_envs)]
    )
    codec = UnrollCodec(algorithm.unroll)
    return [codec.decode(tf.constant(player.play())) for _ in range(count)]


@pytest.mark.parametrize("length", [1, 5])
def test_the_twelve_rows_stand_in_unrolls_of_any_length(unrolls, length):
    """Entry 0 repeats the last one of the unroll before, and `start` is the state before it."""
    rows, played = [], unrolls(length, count=-(-11 // length))
    for i, (entries, start) in enumerate(played):
        action, reward, terminated, truncated, observation, first, extras = (
            np.asarray(part)[:, 0] for part in tf.nest.flatten(entries)
        )
        assert len(action) == length + 1
        each = zip(action, reward, terminated, truncated, observation[:, 0], first, strict=True)
        rows += list(each)[i > 0 :]
        assert start.read.numpy() == [BEFORE[i * length]]
        np.testing.assert_array_equal(extras[1:], observation[:-1, 0], "beside the action")
    assert rows[:12] == TABLE
    for (before, _), (after, _) in itertools.pairwise(played):
        for old, new in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
            np.testing.assert_array_equal(old[-1], new[0])


def test_an_overlap_repeats_as_many_entries_and_starts_before_the_first_of_them(unrolls):
    """With burn-in, 3 of 5 entries are the last ones of the previous unroll."""
    for i, (entries, start) in enumerate(unrolls(2, count=5, overlap=3)):
        rows = range(2 * i - 2, 2 * i + 3)  # before row 0 there was nothing but the reset
        seen = [TABLE[max(row, 0)][4] for row in rows]
        assert entries.observation.numpy()[:, 0, 0].tolist() == seen
        if i > 0:
            assert start.read.numpy() == [BEFORE[rows[0]]]


def test_environments_of_one_actor_do_not_mix():
    """Environment e begins with episode kind e, so the episodes of each end at other steps."""
    first = np.concatenate([e.first.numpy()[1:] for e, _ in _unrolls(4, count=3, num_envs=3)])
    ends = [np.flatnonzero(column).tolist() for column in first.T]
    assert ends == [[3, 7, 9], [3, 5, 9], [1, 5, 9, 11]]


class Fifty(gymnasium.Env):
    """An environment that begins with 50."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        return np.array([50], np.float32), {}


@pytest.mark.parametrize(
    ("at", "complete"),
    [(6, [2, 1, 2, 2]), (8, [2, 1, 1, 2])],  # the eighth is in two unrolls: their end and begin
)
def test_unrolls_with_a_fault_are_dropped_and_another_environment_plays_on(at, complete):
    class Breaks(Fifty):
        steps = 0  # of all copies together
        broken = False

        def step(self, action):
            Breaks.steps += 1
            if Breaks.steps == 2 * at and not Breaks.broken:  # that step of the second copy
                Breaks.broken = True
                raise RuntimeError("the emulator is gone")
            return np.array([Breaks.steps], np.float32), 0.0, False, False, {}

    algorithm = Scripted(4)
    vector = make_environments(level(Breaks), 2, seed=0)
    player = UnrollPlayer(algorithm, [(vector, 2)])
    contents = [player.play() for _ in range(4)]
    assert [len(unrolls) for unrolls in contents] == complete
    assert "RuntimeError: the emulator is gone" in vector.faults[-1].text
    entries, _ = UnrollCodec(algorithm.unroll).decode(tf.constant(contents[-1]))
    assert not entries.first.numpy().any()
    assert (np.diff(entries.observation.numpy()[:, 1, 0]) == 2).all(), "it steps with the other"


def test_an_environment_that_cannot_be_made_anew_ends_the_actor_after_some_tries():
    class Once(Fifty):
        made = 0

        def __init__(self):
            Once.made += 1
            if Once.made > 2:  # one to inspect, one to play
                raise RuntimeError("there is no second one")

        def step(self, action):
            raise RuntimeError("the emulator is gone")

    link, said, told = StandingLink(itertools.repeat((1, 0))), [], []
    vector = make_environments(level(Once), 1, seed=0)
    layout = ParameterLayout([], [], "float32")
    words = r"a single step: 5 unrolls had faults; the first fault: environment 0 .* is gone\n"
    with pytest.raises(NothingPlayed, match=words + r"  Traceback(.*\n)*.*raise RuntimeError"):
        run(
            *(Scripted(4), [(vector, 1)], layout, link, said.append, threading.Event()),
            *(Heartbeat(), told.append),
        )
    *first, rest = (line.split("\n")[0] for line in said)
    assert [line.partition(";")[0] for line in first] == [fault.text for fault in told]
    assert rest.startswith("... 3 more faults of this kind: environment 0 of ")
    sent = list(itertools.chain.from_iterable(link.sent))
    assert [(group.contents, group.faults) for group in sent] == [([], n) for n in (3, 1, 0, 1, 0)]
