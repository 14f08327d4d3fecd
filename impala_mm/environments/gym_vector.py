"""E environments in one process, stepped one after the other in a tight loop.

Episodes end as `trajectory` says: the step that ends one is an entry with its last observation; the
next call ignores the action and resets. Who is given a step has copied it before the next begins:
the arrays are allocated once and written over.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from impala_mm.environments import render
from impala_mm.environments.spaces import SpaceConversion
from impala_mm.environments.types import EnvironmentSpec, Episode, Step

_RUNNING, _ENDED, _BROKEN = range(3)
_RENDER_FPS = 30.0  # a second, of what does not say


class GymVector:
    """Implements `Environments`.

    `reset` and `step` return the same arrays each time: they hold until the next call of either.
    An environment that raises, or whose reward or observation is not finite or of the wrong shape,
    is broken: its rows are zeros with first and fault set until `rebuild`, and its running episode
    is no statistic.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        conversion: SpaceConversion,
        open_one: Callable[[bool], Any],
        num_envs: int,
        seed: int,
        renders: bool = False,
    ):
        """`open_one` makes an environment, where it is given True one that draws, if it can.

        `renders`: whether environment 0 is to be looked at.
        """
        self.spec = spec
        self.faults: list[str] = []
        self._conversion = conversion
        self._open_one = open_one
        self._renders = renders
        self._seed = seed
        self._rebuilds = 0
        self._finished: list[Episode] = []
        self._now = _blank_step(num_envs, conversion)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._states = [_ENDED] * num_envs
        self._seeds: list[int | None] = [seed + i for i in range(num_envs)]  # of the next reset
        self._environments: list[Any] = []
        try:
            self._environments.extend(self._open(i) for i in range(num_envs))
        except BaseException:
            self.close()
            raise
        self._steps = [_repeating_step(each, spec.action_repeats) for each in self._environments]
        rate = getattr(self._environments[0], "metadata", {}).get("render_fps") or _RENDER_FPS
        self.picture_rate = rate / spec.action_repeats

    def reset(self) -> Step:
        """Resets all; running episodes are dropped. Only the first reset of each is seeded."""
        self._states = [state if state == _BROKEN else _ENDED for state in self._states]
        self._returns.fill(0)
        self._lengths.fill(0)
        return self.step(np.zeros(len(self._states), np.int64))

    def step(self, actions: np.ndarray) -> Step:
        """One step of each; an environment whose episode ended with the step before resets."""
        reward, terminated, truncated, observation, first, fault = self._now
        for array in (reward, terminated, truncated, first, fault):
            array.fill(0)
        states, steps, read = self._states, self._steps, self._read
        # NumPy's integers, as sample() of a space gives: every environment knows these.
        for i, action in enumerate(np.add(actions, self._conversion.first_action, dtype=np.int64)):
            try:
                if states[i] == _RUNNING:
                    raw, reward[i], terminated[i], truncated[i], _ = steps[i](action)
                    observation[i] = read(raw)
                elif states[i] == _ENDED:
                    first[i] = True
                    observation[i] = read(self._reset(i))
                    states[i] = _RUNNING
                else:
                    self._blank(i)
            except Exception as error:
                self._break(i, error)
        self._check_finite()
        self._count()
        return self._now

    def rebuild(self, environment: int) -> Step:
        """Makes one anew, with a seed of its own, and resets it: [1] of everything, fresh arrays.

        Raises what the environment raises; it is broken still, then.
        """
        i = environment
        self._states[i] = _BROKEN
        self._returns[i] = self._lengths[i] = 0
        with contextlib.suppress(Exception):
            self._environments[i].close()
        self._rebuilds += 1
        self._environments[i] = self._open(i)
        self._steps[i] = _repeating_step(self._environments[i], self.spec.action_repeats)
        words = np.random.SeedSequence([self._seed, i, self._rebuilds]).generate_state(1)
        self._seeds[i] = int(words[0] >> 1)
        row = _blank_step(1, self._conversion)
        row.first[0] = True
        row.observation[0] = self._read(self._reset(i))
        if not np.isfinite(row.observation).all():
            raise ValueError(_NOT_FINITE)
        self._states[i] = _RUNNING
        return row

    def episodes(self) -> list[Episode]:
        """Those that ended since the last call: each as a training episode and as a whole game."""
        finished, self._finished = self._finished, []
        return finished

    def picture(self) -> np.ndarray:
        """What environment 0 draws, or its observation as a picture."""
        if getattr(self._environments[0], "render_mode", None) == "rgb_array":
            frame = self._environments[0].render()
            frame = frame[-1] if isinstance(frame, list) and frame else frame  # classic gym's
            if isinstance(frame, np.ndarray):
                return frame.astype(np.uint8)
        return render.picture_of_observation(self.spec.level_name, self._now.observation[0])

    def close(self) -> None:
        """Closes all."""
        for each in self._environments:
            with contextlib.suppress(Exception):
                each.close()

    def _open(self, i: int) -> Any:
        return self._open_one(self._renders and i == 0)

    def _reset(self, i: int) -> Any:
        seed, self._seeds[i] = self._seeds[i], None
        observation, _ = self._environments[i].reset(seed=seed)
        return observation

    def _read(self, raw: Any) -> np.ndarray:
        """An observation as `SpaceConversion` says."""
        conversion = self._conversion
        if raw.__class__ is not np.ndarray:
            raw = np.asarray(raw)
        if raw.shape != conversion.raw_shape:
            raise ValueError(
                f"observation of shape {list(raw.shape)} where {list(conversion.raw_shape)} is due"
            )
        return raw if conversion.convert is None else conversion.convert(raw)

    def _check_finite(self) -> None:
        reward, observation = self._now.reward, self._now.observation
        if not np.isfinite(reward).all():
            for i in np.flatnonzero(~np.isfinite(reward)).tolist():
                self._break(i, ValueError(f"reward {reward[i]}"))
        if not np.isfinite(observation).all():
            for i in range(len(observation)):
                if not np.isfinite(observation[i]).all():
                    self._break(i, ValueError(_NOT_FINITE))

    def _count(self) -> None:
        """Statistics of this step, after those that broke have left it."""
        _, terminated, truncated, _, first, _ = self._now
        self._returns += self._now.reward
        self._lengths += ~first
        for i in np.flatnonzero(terminated | truncated).tolist():
            self._states[i] = _ENDED
            for whole_game in (False, True):
                self._finished.append(
                    Episode(i, whole_game, float(self._returns[i]), int(self._lengths[i]))
                )
            self._returns[i] = self._lengths[i] = 0

    def _break(self, i: int, error: Exception) -> None:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        self.faults.append(f"environment {i} of {self.spec.level_name}: {what}")
        self._states[i] = _BROKEN
        self._returns[i] = self._lengths[i] = 0
        self._blank(i)

    def _blank(self, i: int) -> None:
        """A broken one's row."""
        reward, terminated, truncated, observation, first, fault = self._now
        for array in (reward, terminated, truncated, observation):
            array[i] = 0
        first[i] = fault[i] = True


_NOT_FINITE = "observation with NaN or infinity"


def _blank_step(num_envs: int, conversion: SpaceConversion) -> Step:
    """Arrays of zeros."""
    return Step(
        np.zeros(num_envs, np.float32),
        np.zeros(num_envs, bool),
        np.zeros(num_envs, bool),
        np.zeros((num_envs, *conversion.shape), conversion.dtype),
        np.zeros(num_envs, bool),
        np.zeros(num_envs, bool),
    )


def _repeating_step(environment: Any, repeats: int) -> Callable[[np.int64], tuple[Any, ...]]:
    """`environment.step`, or what repeats it up to the episode's end and sums the rewards."""
    step = environment.step
    if repeats == 1:
        return step

    def several(action: np.int64) -> tuple[Any, ...]:
        total = 0.0
        for _ in range(repeats):
            observation, reward, terminated, truncated, info = step(action)
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info

    return several
