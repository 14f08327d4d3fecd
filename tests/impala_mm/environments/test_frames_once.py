"""Single frames are sent and stacked where they are read, as ALE's own vector stacks them."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import Algorithm, entry_spec
from impala_mm.data.trajectory import UnrollCodec, UnrollSpec
from impala_mm.data.variables import Variables
from nets.frame_stack import FrameStack

vector_env = pytest.importorskip("ale_py.vector_env")

from impala_mm.environments.atari import vector as atari  # noqa: E402
from impala_mm.environments.make import find_level  # noqa: E402

LENGTH = 20


class Watching(Algorithm):
    """An algorithm that acts at random and records the stack of frames before each action."""

    variables = Variables([], [], [])

    def __init__(self, spec, seed):
        self._actions, self._random = spec.num_actions, tf.random.Generator.from_seed(seed)
        self.stack = FrameStack(4, spec.observation)
        *picture, channels = spec.observation.shape
        seen = tf.TensorSpec([*picture, 4 * channels], tf.uint8)
        start = tf.TensorSpec([*picture, 3 * channels], tf.uint8)
        self.unroll = UnrollSpec(LENGTH, 1, entry_spec(spec, extras=seen), start)

    def initial_state(self, batch):
        return self.stack.initial_state(batch)

    def act(self, entry, core_state, exploration):
        seen, core_state = self.stack.step(entry.observation, entry.first, core_state)
        action = self._random.uniform([tf.shape(entry.first)[0]], 0, self._actions, tf.int32)
        return action, core_state, seen


def _reference(game, num_envs, seed, **limit):
    """Return ALE's own stacks of 4, uint8 [E, 4, 84, 84], with its own limit of frames."""
    vector = vector_env.AtariVectorEnv(
        *(game.rom, num_envs),
        num_threads=1,
        stack_num=4,
        frameskip=4,
        noop_max=game.no_ops + 1,
        repeat_action_probability=0.0,
        life_loss_info=True,
        reward_clipping=False,
        **limit,
    )
    stacks, _ = vector.reset(seed=seed + np.arange(num_envs))
    return vector, stacks


CASES = {
    "breakout": ({}, {}),
    "pong": ({"max_frames": 200}, {"max_num_frames_per_episode": 200}),
}


@pytest.mark.parametrize(
    ("rom", "num_envs", "steps"),
    [
        *(("breakout", 2, 440), ("pong", 2, 200)),
        *(pytest.param(rom, 8, 5000, marks=pytest.mark.slow) for rom in CASES),
    ],
)
def test_stacks_are_those_of_ales_own_vector_bit_for_bit(rom, num_envs, steps):
    """Compare the stacks of the actor, and those of the learner from an unroll's bytes."""
    options, limit = CASES[rom]
    game = find_level(f"{rom.capitalize()}NoFrameskip-v4", **options).game
    playing = atari.AtariVector(atari.AtariLevel(game, None).spec(), game, num_envs, seed=3)
    algorithm = Watching(playing.spec, seed=4)
    player = UnrollPlayer(algorithm, [(playing, num_envs)])
    decode = UnrollCodec(algorithm.unroll).decode
    vector, reference = _reference(game, num_envs, seed=3, **limit)
    restarted = lost = cut = 0
    for _ in range(steps // num_envs // LENGTH + 1):
        entries, start = decode(tf.constant(player.play()))
        stacks, _ = algorithm.stack.unroll(entries.observation, entries.first, start)
        first, truncated = entries.first.numpy(), entries.truncated.numpy()
        for t in range(LENGTH + 1):
            if t > 0:  # entry 0 is that which ended the unroll before
                reference, _, terminated, _, _ = vector.step(entries.action[t].numpy())
                acted = entries.extras[t].numpy()
                np.testing.assert_array_equal(acted, stacks[t - 1], f"entry {t}, actor")
                restarted += first[t].sum()
                lost += (entries.terminated[t].numpy() & terminated).sum()
                cut += truncated[t].sum()
            expected = np.moveaxis(reference, 1, -1)
            # The last picture of a game that the vector truncates is mostly the one before it.
            newest = np.where(truncated[t], 3, 4)
            for e, n in enumerate(newest):
                np.testing.assert_array_equal(
                    stacks[t][e, ..., :n], expected[e, ..., :n], f"entry {t} of {e}"
                )
    assert restarted > 0
    assert (cut if rom == "pong" else lost - restarted) > 0, "all that may end did so"
