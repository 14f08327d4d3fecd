"""The types that environments share: specs, options, steps, episodes, and `Environments` itself.

Environments step by the convention of `data/trajectory.py`: the end of an episode is a step of its
own, and the reset after it is another one.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from impala_mm.config.environment_flags import NO_OPPONENT, OPPONENTS
from impala_mm.config.errors import BadEnvironment
from impala_mm.environments import nests
from impala_mm.environments.actions import ActionSpec, UnsuitableActions


class ReferenceScores(NamedTuple):
    """Published mean returns on a level, by which returns are normalised: 0 is low, 1 is high."""

    low: float  # of uniformly random play, or the least that is possible
    high: float  # of a human, or the most that is possible


class MeasuredScores(ReferenceScores):
    """Scores of which the low one was measured of uniformly random play."""


class EnvironmentSpec(NamedTuple):
    """The properties of an environment that networks and learners need."""

    level_name: str
    # Of one observation: tf.TensorSpec, of which `ChoiceSpec` is one; or a dict or tuple of these,
    # nested.
    observation: Any
    actions: ActionSpec
    action_repeats: int  # environment frames per step
    reward_threshold: float | None  # the mean return at which it counts as solved
    frame_stack: int = 1  # number of newest frames that the network sees at once
    note: str = ""  # a sentence about the options that is printed to the user
    scores: ReferenceScores | None = None  # None: not known
    emulator: str = ""  # name and version, if versions may play a game differently
    # Specs of a mask of the allowed actions, a nest of tf.TensorSpec (see `masks`); () if the
    # environment offers none.
    masks: Any = ()
    # Why its steps cannot be given other goals (see `goals`), as a part of a sentence; empty: they
    # can.
    without_goals: str = "it has no goals"
    agents: int = 1  # that act at the same time: an environment is a column of the batch for each
    seats: int = 1  # of players who take turns; the policy has one of them, opponents the others

    @property
    def num_actions(self) -> int:
        """The number of choices of a level whose actions are Discrete.

        Raises UnsuitableActions for others: what reads this supports no others.
        """
        if self.actions.discrete is None:
            raise UnsuitableActions(
                f"it supports only Discrete actions, and {self.level_name} takes "
                f"{self.actions.describe()}"
            )
        return self.actions.discrete


class Options(NamedTuple):
    """Options of a level: flags for any level, then those for Atari only.

    `impala_mm/config/training_settings.py` explains those that are flags.
    """

    env_kwargs: str = ""  # arguments that environments are made with, a JSON object
    env_wrappers: str = ""  # around each environment, the outermost last
    discretization: str = "none"  # of a Box's numbers: see `levels.places`
    n_actions_per_dim: int = 11
    action_ratio: float = 30.0
    width: int = 0  # pixels to which images are resized; 0: not resized, but 84 for Atari
    height: int = 0
    num_action_repeats: int = 0  # frames per step; 0: the level's own number
    convert_observations: bool = True  # recognise images, and number many choices
    opponents: str = OPPONENTS  # of turn-taking agents; whoever plays sets them: see `turns`
    # For Atari only:
    sticky_actions: float = -1  # probability that the last action is repeated; negative: the id's
    full_action_space: bool = False  # all 18 actions instead of the game's own
    life_loss_ends: bool = True  # a lost life ends the training episode
    fire_after_life_loss: bool = False  # press FIRE after each lost life, as a reset does
    no_reward_steps: int = 0  # steps without a reward before a game is truncated; 0: never
    no_ops: int = 30  # a game begins with at most this number of frames without an action
    grayscale: bool = True  # pictures have one channel; False: red, green and blue
    frame_stack: int = 4  # newest pictures that a network sees at once
    # No flag:
    max_frames: int = 0  # frames before a game is truncated; 0: the id's own limit

    @property
    def is_changed(self) -> bool:
        """Whether environments are made with arguments, or wrapped."""
        return bool(self.env_kwargs or self.env_wrappers) or self.discretization != "none"


# Options that are also flags of an experiment: those for any level, and with them those for Atari.
GENERAL_FLAGS, OPTION_FLAGS = Options._fields[:10], Options._fields[:-1]


class Step(NamedTuple):
    """The results of one step of E environments."""

    reward: np.ndarray  # float32 [E], not clipped
    terminated: np.ndarray  # bool [E]
    truncated: np.ndarray  # bool [E]
    observation: Any  # [E, ...]: an array, or a dict or tuple of arrays, nested
    first: np.ndarray  # bool [E]: this was a reset, which ignored the action
    fault: np.ndarray  # bool [E]: the environment has failed; a later step opens another
    # A nest of bool [E, ...] like `EnvironmentSpec.masks`: the choices that are allowed now. It
    # allows everything after a termination and where the environment is broken.
    mask: Any = ()

    def blank(self, rows: Any) -> None:
        """Write the rows of broken environments: zeros, with `first`, `fault` and the mask set."""
        for array in nests.flatten(self):
            array[rows] = 0
        for array in (self.first, self.fault, *nests.flatten(self.mask)):
            array[rows] = True


class Episode(NamedTuple):
    """A finished episode."""

    environment: int  # its column; of a complete game of several agents the first of them
    whole_game: bool  # a complete game; otherwise a training episode, such as one life in Atari
    episode_return: float  # sum of the raw rewards; of several agents' game the mean of theirs
    length: int  # steps, without resets; of several agents' game those of the longest episode
    # Where agents take turns: the number of the opponent, see `environment_flags`, and the
    # result: 1 for a victory, 0.5 for a draw, 0 for a defeat.
    opponent: int = NO_OPPONENT
    score: float = 0.5


class Fault(NamedTuple):
    """An error of one environment, or of all that share a process with it."""

    text: str  # one line, such as "environment 3 of Maze-v0: ValueError: bad action"
    kind: str  # the exception's type and place: the same for all faults of one bug
    traceback: str  # several lines, from the user's code on
    environment: int | None = None  # its index; None: all environments are broken


class Environments(Protocol):
    """Copies of one environment, which step together, as E columns: each has `spec.agents`."""

    spec: EnvironmentSpec
    faults: list[Fault]  # those that the caller has not removed yet, the newest last
    picture_rate: float  # pictures a second at which a video has the speed of play

    def reset(self) -> Step:
        """Reset all environments; `first` is true everywhere."""

    def step(self, actions: Any) -> Step:
        """Step each environment, or reset it if its previous step ended an episode.

        In place of one that has failed, another one is opened with a new seed, and reset; see
        `faults.Reopening`. `actions` are those of a policy: a nest of [E, ...] (see `actions`).
        """

    def episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""

    def picture(self) -> np.ndarray:
        """Return a picture of environment 0 as it is now, uint8 [height, width, 3].

        The environments must have been made with `renders`. BadLevel is raised if environment 0
        draws no pictures and its observations are no images.
        """

    def close(self) -> None:
        """Close the environments."""


class BadLevel(ValueError, BadEnvironment):
    """A level, or its options, that cannot be played; the message is one sentence that says why."""
