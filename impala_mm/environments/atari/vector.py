"""E games of Atari, emulated and preprocessed in C++ by ale_py's `AtariVectorEnv`.

A step presses an action for `repeats` frames. Its observation is one picture, uint8
[height, width, 1]: the greater of the last two frames, pixel by pixel, in grey, shrunk by area. A
network that is to see motion stacks them (`EnvironmentSpec.frame_stack`).

What ends what, by the step convention of `trajectory`:

  * A lost life ends the training episode: terminated, and the game goes on with the next action.
    Where the ball has to be served (Breakout), the agent must press FIRE itself, unless
    `fire_after_life_loss` does: then the emulator is given FIRE in the step after, *and the entry
    still holds the action the agent chose*: it learns from a step that it did not choose.
  * The last life ends the game as well: terminated once, then a reset row.
  * `max_frames`, or `no_reward_steps` steps in a row without a reward, cut the game: truncated,
    since nothing in the game ended and the value of the last picture still stands; then a reset.

A reset presses FIRE for one frame where the game has it, then nothing for a random number of
frames. None of these is a step, and none counts as a frame.
"""

from collections.abc import Callable
from typing import Any

import ale_py
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from impala_mm.environments.atari.games import Game
from impala_mm.environments.types import EnvironmentSpec, Episode, Step
from impala_mm.runtime import thread_names

_FRAMES_PER_SECOND = 60  # of the emulated console
_LIFE, _GAME = 0, 1  # rows of the statistics: a training episode, and the whole game


def open_vector(game: Game, num_envs: int, **look: Any) -> AtariVectorEnv:
    """The C++ vector, with the settings that are ours and not its own defaults.

    `look`: what of its pictures or its threads is to be otherwise.
    """
    settings: dict[str, Any] = {
        "img_height": game.height,
        "img_width": game.width,
        "num_threads": 1,  # an actor is one process of many; 0 would take all cores
    } | look
    with thread_names.threads_named("environment"):
        return _open(game, num_envs, settings)


def _open(game: Game, num_envs: int, settings: dict[str, Any]) -> AtariVectorEnv:
    return AtariVectorEnv(
        game.rom,
        num_envs,
        # We cut ourselves: cut by it, a game's last picture is not its last, but mostly the one
        # before, and its value is learnt from. (So it is when a game is over; nothing reads that.)
        max_num_frames_per_episode=2**30,
        repeat_action_probability=game.sticky_actions,
        full_action_space=game.full_action_space,
        stack_num=1,
        frameskip=game.repeats,
        noop_max=game.no_ops + 1,  # it draws below this
        life_loss_info=game.life_loss_ends,
        episodic_life=False,  # True would restart the game at each lost life
        reward_clipping=False,
        use_fire_reset=True,
        **settings,
    )


class AtariVector:
    """Implements `Environments`; environment i is seeded with `seed` + i.

    An emulator that raises takes all of the vector with it: every row is a fault then, and the
    first `rebuild` makes a new vector, of which each further one hands out its environment's reset.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        game: Game,
        num_envs: int,
        seed: int,
        open_vector: Callable[[Game, int], Any] = open_vector,
    ):
        self.spec = spec
        self.picture_rate = _FRAMES_PER_SECOND / game.repeats
        self.faults: list[str] = []
        self._game, self._num_envs, self._seed = game, num_envs, seed
        self._fire = game.actions.index(ale_py.Action.FIRE) if _has_fire(game) else 0
        emulators = list(dict.fromkeys(game.actions))  # some of ours may press the same
        self._index = np.array([emulators.index(action) for action in game.actions])
        self._fires = game.fire_after_life_loss and _has_fire(game)
        self._open_vector = open_vector
        self._vector: Any = open_vector(game, num_envs)
        self._seeds: np.ndarray | None = (seed + np.arange(num_envs)) % 2**31  # of the next reset
        self._rebuilds = 0
        self._finished: list[Episode] = []
        # Of each environment:
        self._returns = np.zeros((2, num_envs))
        self._lengths = np.zeros((2, num_envs), np.int64)
        self._lives = np.zeros(num_envs, np.int64)
        self._origin = np.zeros(num_envs, np.int64)  # frames emulated before the game began
        self._idle = np.zeros(num_envs, np.int64)  # steps since the last reward
        self._lost = np.zeros(num_envs, bool)  # the last step cost a life, and the game goes on
        self._cut = np.zeros(num_envs, bool)  # cut by us: reset it for real after the next step
        self._broken = np.zeros(num_envs, bool)
        # What rebuilt environments see first, while `rebuild` has not yet handed it out.
        self._rebuilt: dict[int, np.ndarray] = {}

    def reset(self) -> Step:
        """Resets all; running episodes are dropped. Only the first reset is seeded."""
        if self._vector is None:
            return self._blank()
        try:
            pictures, info = self._vector.reset(seed=self._seeds)
        except Exception as error:
            return self._break(error)
        self._seeds = None
        everywhere = np.ones(self._num_envs, bool)
        self._reset_statistics(everywhere, info)
        nothing = np.zeros(self._num_envs, bool)
        return self._make_step(np.zeros(self._num_envs), nothing, nothing, pictures, everywhere)

    def step(self, actions: np.ndarray) -> Step:
        """One step of each; an environment whose game ended with the step before resets."""
        actions = np.asarray(actions, np.int64)
        if ((actions < 0) | (actions >= len(self._game.actions))).any():
            # The C++ vector would wait for ever for the thread that such an action ends.
            raise ValueError(f"actions {actions} where 0 to {len(self._game.actions) - 1} are due")
        if self._vector is None:
            return self._blank()
        if self._fires:
            actions = np.where(self._lost, self._fire, actions)
        try:
            pictures, rewards, terminated, _, info = self._vector.step(self._index[actions])
            if self._cut.any():  # there is no step that leaves some out: theirs is thrown away
                pictures, info = self._vector.reset(options={"reset_mask": self._cut})
        except Exception as error:
            return self._break(error)
        # The frame number within the game started again: only a real reset does that.
        first = info["frame_number"] - info["episode_frame_number"] != self._origin
        going = ~first
        lost = (info["lives"] < self._lives) & (info["lives"] > 0) & going
        # Where `lost` is terminated, too, the game goes on. (Should one end with lives left, its
        # reset tells, and it is reported then.)
        terminated = terminated & going
        over = terminated & ~lost
        rewards = np.where(first, 0, rewards)
        self._returns += rewards
        self._lengths += going
        self._cut = self._overdue(rewards) & going & ~over
        truncated = self._cut & ~terminated
        self._record_episodes(_LIFE, terminated | truncated)
        self._record_episodes(_GAME, over | self._cut | first & (self._lengths[_GAME] > 0))
        self._reset_statistics(first, info)
        self._lives, self._lost = info["lives"], lost
        return self._make_step(rewards, terminated, truncated, pictures, first)

    def rebuild(self, environment: int) -> Step:
        """Resets a broken one: [1] of everything. The first after a fault makes a new vector."""
        i = environment
        self._broken[i] = True
        if self._vector is None:
            self._reopen()
        if i not in self._rebuilt:  # it is whole, or has been stepped since
            mask = np.arange(self._num_envs) == i
            try:
                pictures, info = self._vector.reset(options={"reset_mask": mask})
            except Exception as error:
                self._break(error)
                raise
            self._reset_statistics(mask, info)
            self._rebuilt[i] = pictures[i]
        self._broken[i] = False
        picture = self._rebuilt.pop(i)
        no, yes = np.zeros(1, bool), np.ones(1, bool)
        shape = (1, self._game.height, self._game.width, 1)
        return Step(np.zeros(1, np.float32), no, no, picture.reshape(shape), yes, no)

    def episodes(self) -> list[Episode]:
        """Those that ended since the last call: lives, and whole games; raw returns."""
        finished, self._finished = self._finished, []
        return finished

    def picture(self) -> np.ndarray:
        """The screen of environment 0, where the vector has it; see `colour_screen`."""
        return np.zeros((210, 160, 3), np.uint8) if self._vector is None else self._vector.picture

    def close(self) -> None:
        """Ends the vector's thread."""
        self._vector = None

    def _overdue(self, rewards: np.ndarray) -> np.ndarray:
        """bool [E]: which have played, or gone without reward, for as long as they may."""
        game = self._game
        overdue = self._lengths[_GAME] * game.repeats >= game.max_frames
        if game.no_reward_steps:
            self._idle = np.where(rewards == 0, self._idle + 1, 0)
            overdue |= self._idle >= game.no_reward_steps
        return overdue

    def _record_episodes(self, kind: int, ended: np.ndarray) -> None:
        """Statistics of what ended: training episodes or games."""
        for i in np.flatnonzero(ended).tolist():
            result, length = float(self._returns[kind, i]), int(self._lengths[kind, i])
            self._finished.append(Episode(i, kind == _GAME, result, length))
            self._returns[kind, i] = self._lengths[kind, i] = 0

    def _reset_statistics(self, which: np.ndarray, info: dict[str, np.ndarray]) -> None:
        """New games, with nothing done in them yet."""
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
        """The step, in arrays of its own; rows not yet rebuilt stay faults."""
        # [E, 1, height, width] of one channel is [E, height, width, 1] in the same memory.
        observation = pictures.reshape(-1, self._game.height, self._game.width, 1)
        fault = self._broken.copy()
        step = Step(rewards.astype(np.float32), terminated, truncated, observation, first, fault)
        self._rebuilt.clear()
        if fault.any():
            for array in (step.reward, terminated, truncated, observation):
                array[fault] = 0
            first[fault] = True
        return step

    def _break(self, error: Exception) -> Step:
        """All are broken, by one fault."""
        what = " ".join(f"{type(error).__name__}: {error}".split())
        self.faults.append(f"all {self._num_envs} environments of {self.spec.level_name}: {what}")
        self._vector = None
        self._broken[:] = True
        self._rebuilt.clear()
        return self._blank()

    def _blank(self) -> Step:
        """While there is no vector: zeros, first and fault."""
        shape = (self._num_envs, self._game.height, self._game.width, 1)
        no, yes = np.zeros(self._num_envs, bool), np.ones(self._num_envs, bool)
        return Step(
            np.zeros(self._num_envs, np.float32), no, no, np.zeros(shape, np.uint8), yes, yes
        )

    def _reopen(self) -> None:
        """A new vector, with seeds of its own; raises what stands in its way."""
        self._rebuilds += 1
        vector = self._open_vector(self._game, self._num_envs)
        words = np.random.SeedSequence([self._seed, self._rebuilds]).generate_state(self._num_envs)
        pictures, info = vector.reset(seed=(words >> 1).astype(np.int64))
        self._vector, self._seeds = vector, None
        self._reset_statistics(np.ones(self._num_envs, bool), info)
        self._rebuilt = dict(enumerate(pictures))


def _has_fire(game: Game) -> bool:
    return ale_py.Action.FIRE in game.actions
