"""The step convention, from an environment's steps to the batch that a learner reads."""

import itertools
import threading
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import remotely
import tensorflow as tf
from counting import Counting, level

from impala_mm.actor.actor import UnrollPlayer, run
from impala_mm.actor.failures import NothingPlayed
from impala_mm.actor.policy_puller import PulledParameters
from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.variables import ParameterLayout, Variables
from impala_mm.environments.make import make_environments
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.transport.messages import NumberRange

# Written by hand. Counting's episodes are 3 steps, truncated; 3, terminated; 1, terminated; its
# observation counts what was seen, resets included, and its reward is the action. Action n of
# this actor is n modulo 4, and the actions of rows 4, 8 and 10 are ignored. The mask says which
# transitions are somebody's step.
#  action reward terminated truncated observation first  mask
assert Counting.action_space.n == 4
TABLE = [
    (0, 0.0, False, False, 0.0, True, False),
    (1, 1.0, False, False, 1.0, False, True),
    (2, 2.0, False, False, 2.0, False, True),
    (3, 3.0, False, True, 3.0, False, True),
    (0, 0.0, False, False, 4.0, True, False),
    (1, 1.0, False, False, 5.0, False, True),
    (2, 2.0, False, False, 6.0, False, True),
    (3, 3.0, True, False, 7.0, False, True),
    (0, 0.0, False, False, 8.0, True, False),
    (1, 1.0, True, False, 9.0, False, True),
    (2, 0.0, False, False, 10.0, True, False),
    (3, 3.0, False, False, 11.0, False, True),
]


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


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_twelve_rows_stand_in_unrolls_of_any_length(unrolls, length):
    rows = []
    for i, (entries, _) in enumerate(unrolls(length, count=-(-11 // length))):
        columns = tf.nest.map_structure(lambda x: x.numpy()[:, 0], entries)
        assert len(columns.action) == length + 1
        rows += [
            (
                columns.action[t],
                columns.reward[t],
                columns.terminated[t],
                columns.truncated[t],
                columns.observation[t, 0],
                columns.first[t],
                not columns.first[t],
            )
            for t in range(i > 0, length + 1)  # entry 0 repeats the last of the unroll before
        ]
    assert rows[:12] == TABLE


@pytest.mark.parametrize("length", [1, 2, 5])
def test_entry_0_repeats_the_last_entry_of_the_unroll_before(unrolls, length):
    for (before, _), (after, _) in itertools.pairwise(unrolls(length, count=6)):
        for old, new in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
            np.testing.assert_array_equal(old[-1], new[0])


@pytest.mark.parametrize("length", [1, 2, 5])
def test_start_is_the_core_state_before_entry_0_is_read(unrolls, length):
    """Before row t of TABLE, `before[t]` entries were read since the last first."""
    before = [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 1]
    for i, (_, start) in enumerate(unrolls(length, count=11 // length)):
        assert start.read.numpy() == [before[i * length]]


def test_an_overlap_repeats_as_many_entries_and_starts_before_the_first_of_them(unrolls):
    """With burn-in, 3 of 5 entries are the last ones of the previous unroll."""
    before = [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 1]
    for i, (entries, start) in enumerate(unrolls(2, count=5, overlap=3)):
        rows = range(2 * i - 2, 2 * i + 3)  # before row 0 there was nothing but the reset
        seen = [TABLE[max(row, 0)][4] for row in rows]
        assert entries.observation.numpy()[:, 0, 0].tolist() == seen
        if i > 0:
            assert start.read.numpy() == [before[rows[0]]]


def test_extras_stand_with_the_action_they_were_recorded_with(unrolls):
    entries, _ = unrolls(5, count=1)[0]
    saw = entries.extras["saw"].numpy()[1:, 0]
    np.testing.assert_array_equal(saw, [row[4] for row in TABLE[:5]])


def test_environments_of_one_actor_do_not_mix():
    """Environment e begins with episode kind e, so the episodes of each end at other steps."""
    for entries, _ in _unrolls(4, count=3, num_envs=3):
        assert entries.reward.shape == (5, 3)
    first = np.concatenate([e.first.numpy()[1:] for e, _ in _unrolls(4, count=3, num_envs=3)])
    np.testing.assert_array_equal(np.flatnonzero(first[:, 0]), [3, 7, 9])
    np.testing.assert_array_equal(np.flatnonzero(first[:, 1]), [3, 5, 9])
    np.testing.assert_array_equal(np.flatnonzero(first[:, 2]), [1, 5, 9, 11])


def test_the_unroll_with_a_fault_is_dropped_and_the_next_begins_with_a_reset():
    class Breaks(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(4)
        steps = 0  # of all copies together
        broken = False

        def reset(self, *, seed=None, options=None):
            return np.array([50], np.float32), {}

        def step(self, action):
            Breaks.steps += 1
            if Breaks.steps == 2 * 6 and not Breaks.broken:  # the sixth step of the second copy
                Breaks.broken = True
                raise RuntimeError("the emulator is gone")
            return np.array([Breaks.steps], np.float32), 0.0, False, False, {}

    algorithm = Scripted(4)
    vector = make_environments(level(Breaks), 2, seed=0)
    player = UnrollPlayer(algorithm, [(vector, 2)])
    counts = [len(player.play()) for _ in range(2)]
    assert counts == [2, 1], "the second environment breaks in the second unroll"
    assert "RuntimeError: the emulator is gone" in vector.faults[-1].text
    contents = player.play()
    assert len(contents) == 2
    entries, _ = UnrollCodec(algorithm.unroll).decode(tf.constant(contents))
    assert entries.first.numpy()[0].tolist() == [False, True]
    assert entries.observation.numpy()[0, 1] == 50


def test_an_environment_that_cannot_be_made_anew_ends_the_actor_after_some_tries():
    class Once(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(4)
        made = 0

        def __init__(self):
            Once.made += 1
            if Once.made > 2:  # one to inspect, one to play
                raise RuntimeError("there is no second one")

        def reset(self, *, seed=None, options=None):
            return np.array([50], np.float32), {}

        def step(self, action):
            raise RuntimeError("the emulator is gone")

    class AtOnce:
        """A link whose learner accepts everything at once."""

        def __init__(self):
            self.newest = PulledParameters(1, 0, b"")
            self.connected = threading.Event()
            self.connected.set()
            self.failure, self.sent = None, []

        def start(self):
            pass

        policy_wait, numbers = 0.0, NumberRange(0, 1, 1)

        def wait_for_turn(self, meanwhile):
            return True

        def send(self, group, meanwhile):
            self.sent.append(group)
            return True

    link, said = AtOnce(), []
    vector = make_environments(level(Once), 1, seed=0)
    layout = ParameterLayout([], [], "float32")
    told = []
    with pytest.raises(
        NothingPlayed,
        match=r"a single step after 5 rebuilds; the first fault: environment 0 .* is gone\n"
        r"  Traceback(.*\n)*.*raise RuntimeError\(\"the emulator is gone\"\)",
    ):
        run(
            *(Scripted(4), [(vector, 1)], layout, link, said.append, threading.Event()),
            *(Heartbeat(), told.append),
        )
    assert [line.split("\n")[0] for line in said] == [
        *(f"{fault.text}; it is rebuilt, and its unroll is dropped" for fault in told),
        "... 5 more faults of this kind: environment 0, when rebuilt: "
        "RuntimeError: there is no second one",
    ]
    assert [group.faults for group in link.sent] == [2, 1, 1, 1, 1]
    assert all(group.contents == [] for group in link.sent)
