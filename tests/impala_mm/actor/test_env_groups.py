"""An actor whose groups of environments take turns: each plays as it would play alone."""

import functools
import itertools
import threading
from contextlib import nullcontext

import pytest
import tensorflow as tf
from counting import Counting

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.actor.failures import FaultCounter, NothingPlayed, TooManyFaults
from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Fault
from impala_mm.runtime.heartbeat import Heartbeat

LENGTH = 5


class Obeys(Algorithm):
    """An algorithm that acts by its variable plus what it observes, and counts what it reads."""

    variables = Variables([], [], [])

    def __init__(self, overlap=1):
        scalars = [tf.TensorSpec([], t) for t in (tf.int32, tf.float32, tf.bool, tf.bool)]
        observation, first = tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.bool)
        step = Entry(*scalars, observation, first, {"policy": tf.TensorSpec([], tf.int32)})
        self.unroll = UnrollSpec(LENGTH, overlap, step, tf.TensorSpec([], tf.float32))
        self.policy = tf.Variable(0)

    def initial_state(self, batch):
        return tf.zeros([batch])

    def act(self, entry, read, exploration):
        seen = tf.cast(entry.observation[:, 0] + read, tf.int32)
        read = tf.where(entry.first, 0.0, read) + 1.0
        policy = tf.fill(tf.shape(seen), self.policy)
        return (policy + seen) % Counting.action_space.n, read, {"policy": policy}


class Stepped:
    """Environments whose step a test changes."""

    def __init__(self):
        self.environments, self.steps = made(0, 1)[0], 0

    def __getattr__(self, name):
        return getattr(self.environments, name)


def made(seed, size):
    return make_environments("Counting-v0", size, seed=seed), size


@pytest.mark.parametrize("overlap", [1, 2 * LENGTH + 1])
def test_groups_play_what_each_would_play_alone(overlap):
    groups = [(0, 3), (3, 2), (7, 1)]
    together = UnrollPlayer(Obeys(overlap), [made(*group) for group in groups])
    alone = [UnrollPlayer(Obeys(overlap), [made(*group)]) for group in groups]
    ended, ended_alone = [], []
    for _ in range(4):
        contents = together.play()
        assert contents == list(itertools.chain.from_iterable(one.play() for one in alone))
        ended += together.episodes().tolist()
        for begin, one in zip([0, 3, 5], alone, strict=True):
            ended_alone += [[begin + i, *rest] for i, *rest in one.episodes().tolist()]
    for environment in range(6):
        of_one, alone_too = (
            [rest for i, *rest in rows if i == environment] for rows in (ended, ended_alone)
        )
        # A group that waits for the others has not made its last step yet, or one step more.
        assert of_one
        assert abs(len(of_one) - len(alone_too)) <= 2
        assert all(one == other for one, other in zip(of_one, alone_too, strict=False))
    together.close()


@pytest.mark.parametrize("count", [1, 3])
def test_no_unroll_is_acted_in_by_two_policies_and_each_is_called_by_its_own(count):
    algorithm = Obeys()
    player = UnrollPlayer(algorithm, [made(10 * i, 2) for i in range(count)])
    codec, policies = UnrollCodec(algorithm.unroll), itertools.count(1)

    def load():
        algorithm.policy.assign(next(policies))
        return f"policy {int(algorithm.policy)}"

    for number in range(1, 6):
        contents = player.play(load)
        assert len(contents) == 2 * count
        entries, _ = codec.decode(tf.constant(contents))
        assert (entries.extras["policy"].numpy()[1:] == number).all()
        assert player.policy == f"policy {number}"
    player.close()


def test_one_group_steps_while_the_network_acts_for_the_other():
    """Each step waits until the other group has acted: a single thread would deadlock."""
    acted, changed = [0, 0], threading.Condition()

    class Waits(Stepped):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def step(self, actions):
            self.steps += 1
            due = self.steps + self.number  # group 0 acts first, and next after group 1
            with changed:
                others = 1 - self.number
                assert changed.wait_for(lambda: acted[others] >= due, 20), "nobody acted meanwhile"
            return self.environments.step(actions)

    algorithm = Obeys()
    player = UnrollPlayer(algorithm, [(Waits(0), 1), (Waits(1), 1)])

    def count(number, start, actions):
        with changed:
            acted[number] += 1
            changed.notify_all()
        start(actions)

    for number, group in enumerate(player._groups):
        start = group.stepper.start_step
        group.stepper.start_step = functools.partial(count, number, start)
    for _ in range(3):
        assert len(player.play()) == 2
    assert acted == [3 * LENGTH + 1, 3 * LENGTH]
    count(1, lambda actions: None, None)  # the step that group 0 is in ends, too
    player.close()


def test_a_step_that_fails_aside_fails_the_actor():
    class Breaks(Stepped):
        def step(self, actions):
            raise RuntimeError("the emulator is gone")

    player = UnrollPlayer(Obeys(), [(Breaks(), 1), made(0, 1)])
    with pytest.raises(RuntimeError, match="the emulator is gone"):
        player.play()
    player.close()


class Broken:
    """Environments that only have faults."""

    def __init__(self):
        self.faults = []

    def fail(self, number, kind="OSError at a.py:7"):
        text = f"environment {number} of Maze-v0: OSError: no map"
        self.faults.append(Fault(text, kind, "Traceback\n  File a.py", number))


def _count(groups, said, frames=1.0):
    heartbeat = Heartbeat()
    heartbeat.frames = frames
    return FaultCounter([(group, 1) for group in groups], heartbeat, said.append)


def test_environments_that_sometimes_fail_are_counted_and_play_on():
    groups, said = [Broken(), Broken()], []
    faults = _count(groups, said)
    for i in range(100):
        groups[i % 2].fail(i)
        faults.after_unroll(1)
        assert faults.new == 1
    (line,) = said
    assert line.startswith("group 0: environment 0 of Maze-v0: OSError: no map; it is rebuilt")
    assert line.endswith("\n  Traceback\n    File a.py")
    assert groups[0].faults == groups[1].faults == []


def test_an_actor_whose_environments_have_all_begun_to_fail_is_restarted():
    groups, said = [Broken(), Broken()], []
    faults = _count(groups, said)
    faults.after_unroll(2)
    for i in range(10):
        groups[0].fail(0)
        groups[1].fail(0)
        if i < 9:
            faults.after_unroll(0)
    words = r"each of the last 10 unrolls; the last fault: group 1: env"
    with pytest.raises(TooManyFaults, match=words) as caught:
        faults.after_unroll(0)
    assert caught.type is TooManyFaults, "a restart may help"
    assert said[1].startswith("... 19 more faults of this kind: group 1: environment 0 of Maze")


@pytest.mark.parametrize(
    ("frames", "rounds", "what"),
    [(0.0, 6, "a single step: 5 unrolls"), (9.0, 10, "an unroll without a fault: 9 unrolls")],
)
def test_an_environment_that_has_never_worked_is_given_up(frames, rounds, what):
    group = Broken()
    faults = _count([group], [], frames)
    for number in range(rounds):
        group.fail(0)
        with pytest.raises(NothingPlayed, match=what) if number == rounds - 1 else nullcontext():
            faults.after_unroll(0)
