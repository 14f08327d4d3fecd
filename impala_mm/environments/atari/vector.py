"""E games of Atari, emulated and preprocessed in C++ by ale_py's `AtariVectorEnv`.

A step presses an action for `repeats` frames. Its observation is one picture, uint8
[height, width, C]: the pixelwise maximum of the last two frames, in grey or in the three colours,
resized by area. A network that has to see motion stacks several (`EnvironmentSpec.frame_stack`).

Episodes and games end as follows, by the step convention of `data/trajectory.py`:

  * A lost life ends the training episode, unless `life_loss_ends` is unset: the step is
    `terminated`, and the game continues with the next action. In games where the ball has to be
    served (Breakout), the agent must press FIRE itself, unless `fire_after_life_loss` is set. The
    entry after a lost life then shows the game after FIRE, held for as long as a step lasts, and is
    `first`, as after a reset: its action is ignored, it is no step, and its frames are not counted.
    Its reward counts for the scores only.
  * The last life ends the game as well: the step is `terminated`, and the next one is a reset.
  * `max_frames` frames, or `no_reward_steps` consecutive steps without a reward, cut the game: the
    step is `truncated`, since nothing in the game ended and the last picture still has a value. The
    next step is a reset.

A reset presses FIRE for one frame, in games that have it, and then nothing for a random number of
frames. None of these frames is part of a step, and none is counted.

What distinguishes the ids (ROM, frame skip, sticky actions) is read from gymnasium's registry, in
which ale_py has them (`read_game`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import ale_py
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from impala_mm.config.environment_flags import EVERY_FRAME, read_kwargs
from impala_mm.config.messages import error_message
from impala_mm.environments import Level
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.one_vector import OneVector
from impala_mm.environments.types import (
    BadLevel,
    Environments,
    EnvironmentSpec,
    Episode,
    Options,
    ReferenceScores,
    Step,
)
from impala_mm.runtime import lifecycle

_SIZE = 84  # height and width in pixels, as in DeepMind's agents
_NO_LIMIT = 2**30  # frames of a game
_REPEATS = 4  # frames per step for ids whose emulator does not repeat actions (NoFrameskip)
# The settings of an id that this module can read. An id with other settings (RAM observations,
# another mode or difficulty) is played through gymnasium.
_KNOWN = {
    "game",
    "repeat_action_probability",
    "full_action_space",
    "frameskip",
    "max_num_frames_per_episode",
    "obs_type",
}
# Those of --env_kwargs, with the types that they must have; with others, gymnasium plays the game.
_ARGUMENTS: dict[str, Any] = {
    "repeat_action_probability": (int, float),
    "full_action_space": bool,
    "frameskip": int,
    "max_num_frames_per_episode": int,
}
_FRAMES_PER_SECOND = 60  # of the emulated console
_SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False}
_LIFE, _GAME = 0, 1  # rows of the statistics: the training episode and the whole game


class Game(NamedTuple):
    """The settings of one game. Frames are those of the emulator, 60 a second."""

    level_name: str
    rom: str  # ale_py's name of the game
    actions: tuple[ale_py.Action, ...]  # the emulator's actions for our actions 0, 1, ...
    repeats: int  # frames per step
    sticky_actions: float  # probability, at each frame, that the previous action is pressed instead
    max_frames: int  # frames before a game is truncated, without no-ops
    no_ops: int  # a game begins with at most this number of frames without an action
    full_action_space: bool
    height: int
    width: int
    grayscale: bool
    frame_stack: int  # pictures that a network sees at once
    life_loss_ends: bool  # a lost life ends a training episode
    fire_after_life_loss: bool
    no_reward_steps: int  # steps without a reward before a game is truncated; 0: never

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a picture."""
        return self.height, self.width, 1 if self.grayscale else 3


def open_vector(game: Game, num_envs: int, **look: Any) -> AtariVectorEnv:
    """Open ale_py's C++ vector with our settings in place of its defaults.

    `look` replaces some of the settings of its pictures and threads.
    """
    settings: dict[str, Any] = {
        # We truncate games ourselves. If the vector did, the last picture would mostly be the one
        # before the last, and the agent would learn from its value. (The same happens at the end
        # of a game, where no value is learnt from.)
        "max_num_frames_per_episode": _NO_LIMIT,
        "repeat_action_probability": game.sticky_actions,
        "full_action_space": game.full_action_space,
        "stack_num": 1,
        "frameskip": game.repeats,
        "noop_max": game.no_ops + 1,  # the vector draws a number below this one
        "life_loss_info": game.life_loss_ends,
        "episodic_life": False,  # True would restart the game at each lost life
        "reward_clipping": False,
        "use_fire_reset": True,
        "img_height": game.height,
        "img_width": game.width,
        "grayscale": game.grayscale,
        "num_threads": 1,  # an actor is one process of many; 0 would take all cores
    }
    with lifecycle.threads_named("environment"):
        return AtariVectorEnv(game.rom, num_envs, **(settings | look))


class AtariLevel(Level):
    """A level that the C++ vector plays."""

    def __init__(self, game: Game, scores: ReferenceScores | None):
        self.name, self.game, self._scores = game.level_name, game, scores

    def spec(self) -> EnvironmentSpec:
        """Return the spec, for which nothing is emulated."""
        # Not needed to find a level, which a run's first process does without it.
        import tensorflow as tf  # noqa: PLC0415

        game = self.game
        return EnvironmentSpec(
            self.name,
            tf.TensorSpec(game.shape, tf.uint8),
            ActionSpec(Discrete(len(game.actions))),
            action_repeats=game.repeats,
            reward_threshold=None,
            frame_stack=game.frame_stack,
            note=EVERY_FRAME if game.repeats == 1 else "",
            scores=self._scores,
            emulator=f"ale-py {ale_py.__version__}",
        )

    def make(
        self, num_envs: int, seed: int, renders: bool = False, workers: int = 0
    ) -> Environments:
        """Return a vector, which has a thread of its own."""
        opens = ColourScreenVector if renders else open_vector
        return AtariVector(self.spec(), self.game, num_envs, seed, opens)

    def action_names(self) -> list[str]:
        """Return ALE's names."""
        return [action.name for action in self.game.actions]


class AtariVector(OneVector):
    """An implementation of `Environments` for Atari; environment i is seeded with `seed` + i."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        game: Game,
        num_envs: int,
        seed: int,
        open_vector: Callable[[Game, int], Any] = open_vector,
    ):
        self.picture_rate = _FRAMES_PER_SECOND / game.repeats
        self._game, self._seed = game, seed
        rewards, pictures = np.zeros(num_envs), np.zeros((num_envs, *game.shape), np.uint8)
        no = np.zeros(num_envs, bool)
        blank = self._make_step(rewards, no, no, pictures, no.copy())
        super().__init__(spec, num_envs, lambda _: open_vector(game, num_envs), blank)
        self._fire = game.actions.index(ale_py.Action.FIRE) if _has_fire(game) else 0
        emulators = list(dict.fromkeys(game.actions))  # several of our actions may press the same
        self._index = np.array([emulators.index(action) for action in game.actions])
        self._fires = game.fire_after_life_loss and _has_fire(game)
        # For each environment:
        self._returns = np.zeros((2, num_envs))
        self._lengths = np.zeros((2, num_envs), np.int64)
        self._lives = np.zeros(num_envs, np.int64)
        self._origin = np.zeros(num_envs, np.int64)  # frames emulated before the game began
        self._idle = np.zeros(num_envs, np.int64)  # steps since the last reward
        self._lost = np.zeros(num_envs, bool)  # the last step lost a life, but not the game
        self._cut = np.zeros(num_envs, bool)  # truncated: to be reset after the next step

    def step(self, actions: np.ndarray) -> Step:
        """Step each game, or reset it if its previous step ended it."""
        actions = np.asarray(actions, np.int64)
        if ((actions < 0) | (actions >= len(self._game.actions))).any():
            # Such an action ends a thread of the C++ vector, which would then wait for it for ever.
            most = len(self._game.actions) - 1
            raise ValueError(f"actions {actions} are not all from 0 to {most}")
        return super().step(actions)

    def picture(self) -> np.ndarray:
        """Return the screen of environment 0 in colour; needs a `ColourScreenVector`."""
        return np.zeros((210, 160, 3), np.uint8) if self._vector is None else self._vector.picture

    def _seed_of(self, opening: int) -> np.ndarray:
        if opening == 0:
            return (self._seed + np.arange(self._size)) % 2**31
        words = np.random.SeedSequence([self._seed, opening]).generate_state(self._size)
        return (words >> 1).astype(np.int64)

    def _reset(self, vector: Any, seed: np.ndarray | None) -> None:
        pictures, info = vector.reset(seed=seed)
        everywhere, nowhere = np.ones(self._size, bool), np.zeros(self._size, bool)
        self._reset_statistics(everywhere, info)
        self._now = self._make_step(np.zeros(self._size), nowhere, nowhere, pictures, everywhere)

    def _step(self, vector: Any, actions: np.ndarray) -> None:
        if self._fires:
            actions = np.where(self._lost, self._fire, actions)
        pictures, rewards, terminated, _, info = vector.step(self._index[actions])
        if self._cut.any():  # they were stepped too, since a step cannot leave some out
            pictures, info = vector.reset(options={"reset_mask": self._cut})
        # The frame number within the game started over, which happens only at a reset.
        reset = info["frame_number"] - info["episode_frame_number"] != self._origin
        served = self._lost & ~reset if self._fires else np.zeros(self._size, bool)
        first = reset | served
        going = ~first
        lost = (info["lives"] < self._lives) & (info["lives"] > 0) & ~reset
        # A step that is terminated and `lost` does not end the game. (If a game ends with lives
        # left, the reset shows it, and the game is recorded then.)
        terminated = terminated & going
        over = terminated & ~lost
        self._returns += np.where(reset, 0, rewards)
        rewards = np.where(first, 0, rewards)
        self._lengths += going
        self._cut = self._overdue(rewards, going) & ~over
        truncated = self._cut & ~terminated
        self._record_episodes(_LIFE, terminated | truncated)
        self._record_episodes(_GAME, over | self._cut | reset & (self._lengths[_GAME] > 0))
        self._reset_statistics(reset, info)
        self._lives, self._lost = info["lives"], lost
        self._now = self._make_step(rewards, terminated, truncated, pictures, first)

    def _overdue(self, rewards: np.ndarray, going: np.ndarray) -> np.ndarray:
        """Return, bool [E], which games reached the limit of frames or of idle steps.

        `going` says which ones made a step.
        """
        game = self._game
        overdue = self._lengths[_GAME] * game.repeats >= game.max_frames
        if game.no_reward_steps:
            self._idle = np.where(rewards == 0, self._idle + going, 0)
            overdue |= self._idle >= game.no_reward_steps
        return overdue & going

    def _record_episodes(self, kind: int, ended: np.ndarray) -> None:
        """Record the episodes that ended: training episodes or whole games, by `kind`."""
        for i in np.flatnonzero(ended).tolist():
            result, length = float(self._returns[kind, i]), int(self._lengths[kind, i])
            self._finished.append(Episode(i, kind == _GAME, result, length))
            self._returns[kind, i] = self._lengths[kind, i] = 0

    def _reset_statistics(self, which: np.ndarray, info: dict[str, np.ndarray]) -> None:
        """Reset the statistics of the environments that begin a new game."""
        if which.any():
            self._returns[:, which] = self._lengths[:, which] = self._idle[which] = 0
            self._lost[which] = self._cut[which] = False
            self._lives[which] = info["lives"][which]
            self._origin[which] = (info["frame_number"] - info["episode_frame_number"])[which]

    def _make_step(
        self,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        pictures: np.ndarray,
        first: np.ndarray,
    ) -> Step:
        """Return the step in new arrays."""
        # [E, 1, height, width], or with colours [E, 1, height, width, 3], are the same memory.
        observation = pictures.reshape(-1, *self._game.shape)
        fault = np.zeros(len(rewards), bool)
        return Step(rewards.astype(np.float32), terminated, truncated, observation, first, fault)


class ColourScreenVector:
    """A vector like `AtariVectorEnv`, with the `picture` of environment 0 in colour.

    The C++ vector returns preprocessed pictures only and gives no access to the emulator's screen.
    So a second vector plays the game of environment 0 again: the same seed and the same actions
    give the same game, sticky actions and no-ops included, and its pictures are the whole screen.
    """

    def __init__(self, game: Game, num_envs: int):
        self._vector = open_vector(game, num_envs)
        self._again = open_vector(game, 1, **_SCREEN)
        self.picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all games, or those that `options["reset_mask"]` selects."""
        answer = self._vector.reset(seed=seed, options=options)
        mask = options["reset_mask"][:1] if options else None
        if mask is None or mask[0]:
            again = None if options is None else {"reset_mask": mask}
            pictures, info = self._again.reset(
                seed=None if seed is None else seed[:1], options=again
            )
            self._look(pictures, info, answer[1])
        return answer

    def step(self, actions: np.ndarray) -> Any:
        """Step all games."""
        answer = self._vector.step(actions)
        pictures, *_, info = self._again.step(actions[:1])
        self._look(pictures, info, answer[-1])
        return answer

    def _look(self, pictures: np.ndarray, info: dict[str, Any], theirs: dict[str, Any]) -> None:
        for name in ("frame_number", "episode_frame_number", "lives"):
            if info[name][0] != theirs[name][0]:
                raise RuntimeError(f"the game played again for its colours differs in its {name}")
        self.picture = pictures.reshape(210, 160, 3).copy()


def _has_fire(game: Game) -> bool:
    return ale_py.Action.FIRE in game.actions


def read_game(level_name: str, registered: Any, options: Options) -> Game | None:
    """Return the game of an id in gymnasium's registry; None if the C++ vector cannot play it."""
    arguments = read_kwargs(options.env_kwargs)
    kwargs = registered.kwargs | arguments
    if (
        options.env_wrappers
        or options.discretization != "none"
        or not all(isinstance(value, _ARGUMENTS.get(key, ())) for key, value in arguments.items())
        or not kwargs.keys() <= _KNOWN
        or kwargs.get("obs_type", "rgb") == "ram"
        or registered.max_episode_steps
    ):
        return None
    repeats = kwargs.get("frameskip", 1)
    if not isinstance(repeats, int):
        _refuse_random(level_name, registered, repeats)
    if repeats < 1:
        raise BadLevel(f"frameskip is {repeats}, and must be at least 1")
    if repeats == 1 and "frameskip" not in arguments:  # an id of single frames
        repeats = _REPEATS
    limit = kwargs.get("max_num_frames_per_episode", 108_000)
    full = options.full_action_space or kwargs.get("full_action_space", False)
    sticky = options.sticky_actions
    if not sticky <= 1:  # NaN, too
        raise BadLevel(f"sticky_actions is a probability, and {sticky} is not between 0 and 1")
    rom = kwargs["game"]
    return Game(
        level_name=level_name,
        rom=rom,
        actions=_actions(level_name, rom, full),
        repeats=options.num_action_repeats or repeats,
        sticky_actions=sticky if sticky >= 0 else kwargs.get("repeat_action_probability", 0.0),
        max_frames=options.max_frames or (limit if limit > 0 else _NO_LIMIT),  # as for ALE
        no_ops=options.no_ops,
        full_action_space=full,
        height=options.height or _SIZE,
        width=options.width or _SIZE,
        grayscale=options.grayscale,
        frame_stack=options.frame_stack,
        life_loss_ends=options.life_loss_ends,
        fire_after_life_loss=options.fire_after_life_loss,
        no_reward_steps=options.no_reward_steps,
    )


def _refuse_random(level_name: str, registered: Any, repeats: Any) -> None:
    """Raise BadLevel for an id that repeats actions at random; name the similar ids."""
    prefix = level_name.removesuffix(registered.id)
    name = prefix + registered.name
    raise BadLevel(
        f"{level_name} repeats each action {repeats[0]} to {repeats[1] - 1} times, at random, and "
        f"only a fixed number is supported: did you mean {name}NoFrameskip-v{registered.version} "
        f"or {prefix}ALE/{registered.name}-v5?"
    )


@functools.cache  # loading a ROM takes a tenth of a second
def _actions(level_name: str, rom: str, full: bool) -> tuple[ale_py.Action, ...]:
    """Return the actions that have an effect in the game, or all 18 if `full`."""
    try:
        path = roms.get_rom_path(rom)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadLevel(
            f"{level_name} needs the ROM {rom}.bin, which was not found ({error}): reinstall "
            "ale-py, or set ALE_ROMS_DIR to a folder that has it"
        ) from error
    except OSError as error:
        raise BadLevel(f"{level_name}: {error_message(error)}") from error
    if path is None:
        raise BadLevel(f"{level_name}: ale-py knows no ROM {rom}")
    # Without this it prints a greeting at every start.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(path)
    if not full:
        return tuple(emulator.getMinimalActionSet())
    # The network has 18 actions even where the emulator leaves some out, such as FIRE in Skiing;
    # these then press the same without FIRE.
    legal = {action.name: action for action in emulator.getLegalActionSet()}
    return tuple(
        legal[name if name in legal else name.removesuffix("FIRE") or "NOOP"]
        for name in ale_py.Action.__members__
    )
