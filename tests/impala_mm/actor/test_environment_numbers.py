"""An algorithm's act receives the number of each environment, wherever actions are chosen."""

import numpy as np
import pytest
import remotely
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import contract
from impala_mm.algorithms.interface import EnvironmentNumber, entry_spec
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.environments.make import level_spec, make_environments
from impala_mm.transport.messages import NumberRange

LENGTH = 3


class Numbered(remotely.Random):
    """An algorithm that acts at random and records each environment's number and their count."""

    def __init__(self):
        super().__init__("catch", LENGTH)
        scalar = tf.TensorSpec([], tf.int32)
        step = entry_spec(level_spec("catch"), EnvironmentNumber(scalar, scalar))
        self.unroll = UnrollSpec(LENGTH, 1, step, ())

    def act_by_number(self, entry, core_state, exploration, environment):
        """Return random actions."""
        actions, state, _ = super().act(entry, core_state, exploration)
        count = tf.fill(tf.shape(environment.number), environment.count)
        return actions, state, EnvironmentNumber(environment.number, count)


def _groups(*sizes):
    return [(make_environments("catch", size, seed=size), size) for size in sizes]


def _recorded(entries):
    """Return the numbers [B] in the entries that `act` chose, which are the same in each column."""
    number, count = (np.asarray(part)[1:] for part in entries.extras)
    assert (number == number[0]).all()
    assert (count == count[0]).all()
    return number[0].tolist(), set(count[0].tolist())


def test_an_actor_gives_each_environment_its_number():
    algorithm = Numbered()
    player, codec = UnrollPlayer(algorithm, _groups(2, 1)), UnrollCodec(algorithm.unroll)
    assert _recorded(codec.decode(tf.constant(player.play()))[0]) == ([0, 1, 2], {3})
    player.number(NumberRange(first=5, stride=2, bound=40))
    player.play()  # the first group has begun its unroll before
    assert _recorded(codec.decode(tf.constant(player.play()))[0]) == ([5, 7, 9], {40})
    player.close()


def test_a_learner_that_infers_gives_each_environment_its_number():
    with remotely.remote(Numbered()) as there:
        there.act("catch", [2, 1], actor=4)
        entries, _, _ = there.taken(3)
        numbers, counts = _recorded(entries)
        assert (set(numbers) <= {0, 1, 2}, counts) == (True, {3})
        there.act("catch", [2], actor=1)
        found = set()
        for _ in range(20):
            found |= set(np.asarray(there.taken(5)[0].extras.number)[-1].tolist())
        assert found == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("algorithm", [Numbered(), remotely.Random("catch", LENGTH)])
def test_outside_of_a_run_every_environment_is_number_0_of_1(algorithm):
    act = contract.evaluated_act(algorithm)
    first, nothing = tf.constant([True] * 3), tf.zeros([3])
    _, _, extras = act(Entry(None, nothing, None, None, None, first, None), (), nothing)
    if isinstance(algorithm, Numbered):
        assert (extras.number.numpy().tolist(), extras.count.numpy()[0]) == ([0, 0, 0], 1)
    else:
        assert extras == ()
