"""Batches of environments, stepped as `trajectory` says: an episode's end is its own entry."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf


class ReferenceScores(NamedTuple):
    """Mean returns that others had on a level, to normalise by."""

    random: float  # of random play
    human: float


class EnvironmentSpec(NamedTuple):
    """What networks and learners need to know of an environment."""

    level_name: str
    observation: tf.TensorSpec  # of one observation
    num_actions: int
    action_repeats: int  # environment frames per step
    reward_threshold: float | None  # the mean return at which it counts as solved
    frame_stack: int = 1  # how many newest frames a network sees at once
    note: str = ""  # what the user should be told of the options, in one sentence
    scores: ReferenceScores | None = None  # where they are known
    emulator: str = ""  # name and version, where two of them may play a game differently


class Options(NamedTuple):
    """How a level is played. What is not in `GENERAL_FLAGS` is for Atari alone."""

    width: int = 0  # pixels to which images are resized; 0: as they come, 84 for Atari
    height: int = 0
    num_action_repeats: int = 0  # 0: the level's own. Rewards of repeats are summed
    sticky_actions: float = -1  # probability that the last action is repeated; negative: the id's
    full_action_space: bool = False  # all 18 actions, not only those that do something in the game
    fire_after_life_loss: bool = False  # press FIRE for the agent after each lost life
    no_reward_steps: int = 0  # steps in a row without reward after which a game is cut; 0: never
    life_loss_ends: bool = True  # a lost life ends a training episode; elsewhere there are no lives
    max_frames: int = 0  # of a game, after which it is cut; 0: the id's own limit
    no_ops: int = 30  # at most so many frames of doing nothing begin a game


# Options that are flags of an experiment, too: those for any level, and those for Atari alone.
GENERAL_FLAGS = ("width", "height", "num_action_repeats")
OPTION_FLAGS = (
    *GENERAL_FLAGS,
    "sticky_actions",
    "full_action_space",
    "fire_after_life_loss",
    "no_reward_steps",
)


class Step(NamedTuple):
    """What one step of E environments brought."""

    reward: np.ndarray  # float32 [E], raw
    terminated: np.ndarray  # bool [E]
    truncated: np.ndarray  # bool [E]
    observation: np.ndarray  # [E, ...]
    first: np.ndarray  # bool [E]: this was a reset, and the action was ignored
    fault: np.ndarray  # bool [E]: the environment is broken; `rebuild` it


class Episode(NamedTuple):
    """A finished episode."""

    environment: int
    whole_game: bool  # raw return of a whole game; otherwise of a training episode (one life)
    episode_return: float
    length: int  # steps, resets not counted


class Environments(Protocol):
    """E copies of one environment."""

    spec: EnvironmentSpec
    faults: list[str]  # one line for each fault so far, newest last
    picture_rate: float  # pictures a second at which a game looks as a person would play it

    def reset(self) -> Step:
        """Resets all; first is true everywhere."""

    def step(self, actions: np.ndarray) -> Step:
        """One step of each; an environment whose episode ended with the step before resets."""

    def rebuild(self, environment: int) -> Step:
        """Makes a broken one anew and resets it: [1] of everything."""

    def episodes(self) -> list[Episode]:
        """Those that ended since the last call."""

    def picture(self) -> np.ndarray:
        """What environment 0 looks like to people now, uint8 [height, width, 3].

        Only of environments made with `renders`; raises BadLevel where it has no looks.
        """

    def close(self) -> None:
        """Frees what the environments hold."""


class BadLevel(ValueError):
    """The user's choice of level or of its options cannot be played; says why in one sentence."""
