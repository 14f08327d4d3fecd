"""E environments of gymnasium or classic gym in one process, stepped one after the other.

Episodes end by the step convention of `data/trajectory.py`: the step that ends an episode returns
the episode's last observation; the next call ignores the action and resets the environment.
Callers must copy a step before they ask for the next one: its arrays are allocated once and
overwritten.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from impala_mm.config.messages import describe_error
from impala_mm.environments import nests
from impala_mm.environments.faults import FAILURES, Reopening, make_fault
from impala_mm.environments.gym_adapter import reset_of, step_of
from impala_mm.environments.masks import RawMask, nothing_allowed, refuse_unexpected
from impala_mm.environments.spaces import SpaceConversion, judge_goals
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Episode, Fault, Step

RUNNING, ENDED, BROKEN = range(3)  # states of a row
_LEAST_HEIGHT = 160  # of pictures of observations, in pixels: smaller ones are enlarged
RENDER_FPS = 30.0  # pictures a second, of environments that do not state a rate


class GymVector:
    """An implementation of `Environments` for every environment that has gymnasium's API.

    `reset` and `step` return the same arrays each time; they are valid until the next call of
    either. An environment is broken if it raises, if its reward or observation is not finite or
    has the wrong shape, or if its mask of actions is missing or wrong or allows nothing. The rows
    of a broken environment are zeros with `first`, `fault` and the mask set, until a later step
    opens another one; its running episode is not counted in the statistics.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        conversion: SpaceConversion,
        open_one: Callable[[bool], Any],
        num_envs: int,
        seed: int,
        renders: bool = False,
        first: int = 0,
        now: Step | None = None,
    ):
        """Open `num_envs` environments with `open_one`; number i is seeded with `seed` + i.

        `open_one(True)` makes an environment that draws pictures, if it can. With `renders`, the
        first one is made this way. In a worker process, `first` is the number of the first one in
        the complete vector. Steps are written to the arrays of `now`, or to new ones.
        """
        self.spec = spec
        self.faults: list[Fault] = []
        self._conversion = conversion
        self._open_one = open_one
        self._renders = renders
        self._seed = seed
        self._first = first
        self._finished: list[Episode] = []
        rows = num_envs * conversion.agents
        self._now = now or blank_step(rows, conversion)
        self._observation: list[np.ndarray] = nests.flatten(self._now.observation)
        self._mask: list[np.ndarray] = nests.flatten(self._now.mask)
        self._returns = np.zeros(rows)
        self._lengths = np.zeros(rows, np.int64)
        self._states = [ENDED] * rows
        self._number = 0  # of the newest step or reset
        self._reopenings = [Reopening() for _ in range(rows)]
        self._openings = [0] * rows  # how often another environment was opened
        # Of the reset; some environments take no larger ones.
        self._seeds: list[int | None] = [(seed + first + i) % 2**31 for i in range(rows)]
        self._environments: list[Any] = []  # one for each row
        # What the last steps or resets of the rows returned; None: nobody plays there.
        self._results: list[Any] = [None] * rows
        self._raw_masks: list[RawMask] = []  # one for each environment, if they offer masks
        try:
            for i in range(num_envs):
                one = self._open(i * conversion.agents)
                self._environments += [one] * conversion.agents
        except BaseException:
            self.close()
            raise
        self._steps = [_repeating_step(one, spec.action_repeats) for one in self._environments]
        if conversion.masks:
            self._raw_masks += map(conversion.masks.reader, self._environments)
        metadata = getattr(self._environments[0], "metadata", None) or {}
        rate = metadata.get("render_fps") or RENDER_FPS
        self.picture_rate = rate / spec.action_repeats

    def reset(self) -> Step:
        """Reset all environments and drop their running episodes.

        Only the first reset of each environment is seeded.
        """
        self._states = [state if state == BROKEN else ENDED for state in self._states]
        self._returns.fill(0)
        self._lengths.fill(0)
        return self.step(self.spec.actions.zeros(len(self._states)))

    def step(self, actions: Any) -> Step:
        """Step each environment, or reset it if its previous step ended an episode.

        One that has failed is replaced, once a step has shown the fault.
        """
        reward, terminated, truncated, _, first, fault, _ = self._now
        # The arrays of a new worker process still show that the one before has ended.
        failed = [i for i in np.flatnonzero(fault).tolist() if self._states[i] == BROKEN]
        for array in (reward, terminated, truncated, first, fault):
            array.fill(0)
        self._number += 1
        for i in failed:
            if self._reopenings[i].is_due(self._number):
                self._replace(i)
        # What the environments return is read after all have stepped: a simulator displaces this
        # code and its data from the processor's caches, and it would be loaded again each time.
        self._play(self.spec.actions.to_environments(actions))
        states = self._states
        for i, result in enumerate(self._results):
            try:
                if states[i] == RUNNING:
                    if len(result) == 4:
                        result = step_of(result)  # noqa: PLW2901
                    raw, reward[i], terminated[i], truncated[i], info = result
                    self._put(i, raw, info)
                elif states[i] == ENDED and result is not None:
                    self._put(i, *result)
                    states[i] = RUNNING
                else:
                    self._blank(i)
            except FAILURES as error:
                self._break(i, error)
        self._check_finite()
        if self._mask:
            self._check_masks()
        self._count()
        return self._now

    def episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call.

        Each appears twice: as a training episode and as a complete game.
        """
        finished, self._finished = self._finished, []
        return finished

    def picture(self) -> np.ndarray:
        """Return the picture that environment 0 draws, or else its observation as a picture."""
        return picture_of(self.spec.level_name, self._environments[0], self._observation)

    def judge_goals(
        self, environment: int, achieved: np.ndarray, desired: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what one environment says of achieved goals under other desired ones.

        Arguments and result are those of `spaces.judge_goals`. An environment that cannot say it is
        broken, and BadLevel is raised.
        """
        one = self._environments[environment]
        try:
            return judge_goals(self.spec.level_name, one, achieved, desired)
        except BadLevel:
            self._lose(environment)
            raise

    def close(self) -> None:
        """Close all environments."""
        for environment in self._environments:
            with contextlib.suppress(Exception):
                environment.close()

    def _play(self, actions: Sequence[Any]) -> None:
        """Step or reset each environment that is not broken, and keep what it returns."""
        first, states, steps, results = self._now.first, self._states, self._steps, self._results
        for i, action in enumerate(actions):
            try:
                if states[i] == RUNNING:
                    results[i] = steps[i](action)
                elif states[i] == ENDED:
                    first[i] = True
                    results[i] = self._reset(i)
            except FAILURES as error:
                self._break(i, error)

    def _open(self, i: int) -> Any:
        return self._open_one(self._renders and i == 0)

    def _replace(self, i: int) -> None:
        """Open another environment in place of a broken one; this step resets it."""
        for row in range(i, i + self._conversion.agents):
            self._states[row], self._now.first[row] = ENDED, True
        try:
            self._open_again(i)
        except FAILURES as error:
            self._break(i, error)

    def _open_again(self, i: int) -> None:
        with contextlib.suppress(Exception):
            self._environments[i].close()
        self._openings[i] += 1
        one = self._open(i)
        source = np.random.SeedSequence([self._seed, self._first + i, self._openings[i]])
        self._seeds[i] = int(source.generate_state(1)[0] >> 1)
        for row in range(i, i + self._conversion.agents):
            self._environments[row] = one
            self._steps[row] = _repeating_step(one, self.spec.action_repeats)
            if masks := self._conversion.masks:
                self._raw_masks[row] = masks.reader(one)

    def _reset(self, i: int) -> tuple[Any, Any]:
        """Reset environment i; return its observation and info."""
        seed, self._seeds[i] = self._seeds[i], None
        environment = self._environments[i]
        observation, info = reset_of(environment.reset(seed=seed), environment.observation_space)
        return observation, info

    def _put(self, i: int, raw: Any, info: Any) -> None:
        """Write an observation and its mask to row i; raise ValueError if they are wrong."""
        self._conversion.observation.write(raw, self._observation, i)
        if self._mask:
            self._put_mask(i, raw, info)
        elif info:
            refuse_unexpected(info)

    def _put_mask(self, i: int, observation: Any, info: Any) -> None:
        """Write the mask to row i; at an episode's end it may be missing, which allows everything.

        After a termination no action is chosen, and no value of one is needed.
        """
        masks = self._conversion.masks
        assert masks
        raw = None if self._now.terminated[i] else self._raw_masks[i](observation, info)
        if raw is None and (self._now.terminated[i] or self._now.truncated[i]):
            for array in self._mask:
                array[i] = True
            return
        for array, part in zip(self._mask, masks.read(raw), strict=True):
            array[i] = part

    def _check_masks(self) -> None:
        """Break environments whose mask allows nothing; at an episode's end it is ignored."""
        masks = self._conversion.masks
        assert masks
        for i, number, name in masks.without_choice(self._mask):
            if self._now.truncated[i]:
                self._mask[number][i] = True
            elif not self._now.fault[i]:
                after = f"step {self._lengths[i] + 1} of the episode"
                after = "the reset" if self._now.first[i] else after
                self._break(i, ValueError(nothing_allowed(name, after)))

    def _check_finite(self) -> None:
        reward = self._now.reward
        if not np.isfinite(reward).all():
            for i in np.flatnonzero(~np.isfinite(reward)).tolist():
                self._break(i, ValueError(f"reward {reward[i]}"))
        for array in self._observation:
            if not np.isfinite(array).all():
                for i in range(len(array)):
                    if not np.isfinite(array[i]).all():
                        self._break(i, ValueError(NOT_FINITE))

    def _count(self) -> None:
        """Add this step to the statistics, once the rows of broken environments are zeros."""
        terminated, truncated, first = self._now.terminated, self._now.truncated, self._now.first
        self._returns += self._now.reward
        self._lengths += ~first
        for i in np.flatnonzero(terminated | truncated).tolist():
            self._states[i] = ENDED
            self._end_episode(i, float(self._returns[i]), int(self._lengths[i]))
            self._returns[i] = self._lengths[i] = 0

    def _end_episode(self, i: int, episode_return: float, length: int) -> None:
        """Count an episode that has ended, as a training episode and as a complete game."""
        self._finished += [Episode(i, whole, episode_return, length) for whole in (False, True)]

    def _break(self, i: int, error: BaseException) -> None:
        number, one = self._first + i, self._environments[i]
        where = f"environment {number // self._conversion.agents} of {self.spec.level_name}"
        called = one, "reset" if self._now.first[i] else "step"
        self.faults.append(make_fault(where, error, number, called))
        self._lose(i)
        self._blank(i)

    def _lose(self, i: int) -> None:
        """Take note that an environment is broken, and drop its episode."""
        self._states[i] = BROKEN
        self._returns[i] = self._lengths[i] = 0
        self._reopenings[i].failed(self._number)

    def _blank(self, i: int) -> None:
        """Write a row in which nobody plays; `fault` is set if its environment is broken."""
        self._now.blank(i)
        self._now.fault[i] = self._states[i] == BROKEN


NOT_FINITE = "observation with NaN or infinity"


def blank_step(num_envs: int, conversion: SpaceConversion) -> Step:
    """Return a step of zeros, with new arrays."""
    return Step(
        np.zeros(num_envs, np.float32),
        np.zeros(num_envs, bool),
        np.zeros(num_envs, bool),
        conversion.observation.zeros(num_envs),
        np.zeros(num_envs, bool),
        np.zeros(num_envs, bool),
        conversion.masks.ones(num_envs) if conversion.masks else (),
    )


def _repeating_step(environment: Any, repeats: int) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that makes steps of `repeats` frames and sums the rewards.

    It stops early at the end of an episode. For one repeat it is `environment.step` itself, as for
    an environment that repeats actions by itself: its attribute `frames_per_step` says so.
    """
    step = environment.step
    if hasattr(getattr(environment, "unwrapped", environment), "frames_per_step"):
        return step
    if repeats == 1:
        return step

    def several(action: Any) -> tuple[Any, ...]:
        total = 0.0
        for _ in range(repeats):
            observation, reward, terminated, truncated, info = step_of(step(action))
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info

    return several


def picture_of(level_name: str, environment: Any, observation: list[np.ndarray]) -> np.ndarray:
    """Return the picture that an environment draws, or else its observation as a picture.

    `observation` has arrays [E, ...], of which the first row is the environment's.
    """
    if getattr(environment, "render_mode", None) == "rgb_array":
        try:
            frame = environment.render()
        except FAILURES as error:
            raise BadLevel(
                f"{level_name} cannot draw a picture: {describe_error(error)}"
            ) from error
        # Classic gym returns a list of pictures.
        frame = frame[-1] if isinstance(frame, list) and frame else frame
        if isinstance(frame, np.ndarray):
            return picture_in_colours(level_name, frame)
    images = [array for array in observation if array.ndim in {3, 4}]
    return picture_of_observation(level_name, (images or observation)[0][0])


def picture_in_colours(level_name: str, drawn: np.ndarray) -> np.ndarray:
    """Return a picture that an environment drew as uint8 [height, width, 3].

    It may be grey, and have an alpha channel, which is left out; raise BadLevel for other shapes.
    """
    picture = drawn[..., None] if drawn.ndim == 2 else drawn
    if picture.ndim != 3 or picture.shape[2] not in {1, 2, 3, 4}:
        raise BadLevel(
            f"{level_name} draws pictures of shape {list(drawn.shape)}: its render method must "
            f"return [height, width, 3]"
        )
    channels = [0, 0, 0] if picture.shape[2] < 3 else [0, 1, 2]
    return picture[..., channels].astype(np.uint8)


def picture_of_observation(level_name: str, observation: np.ndarray) -> np.ndarray:
    """Return an image observation as uint8 [height, width, 3]; raise BadLevel if it is no image.

    Values of other types than uint8 are scaled so that the smallest is black and the largest white.
    Of an image whose channels are not three colours, the last channel is shown.
    """
    image = observation[..., None] if observation.ndim == 2 else observation
    if image.ndim != 3:
        raise BadLevel(
            f"{level_name} draws no pictures, and its observations {list(observation.shape)} are "
            f"no images: give it a render method and the render mode rgb_array"
        )
    if image.shape[2] != 3:
        image = np.repeat(image[..., -1:], 3, axis=2)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
    times = -(-_LEAST_HEIGHT // image.shape[0])
    return image.repeat(times, axis=0).repeat(times, axis=1)
