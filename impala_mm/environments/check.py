"""The check of a level before a run: what its environment returns from reset and from random steps.

`check_process.py` runs it in a process of its own. It looks for what gymnasium's and
Stable-Baselines3's checkers look for. An error is what fails in a training, a warning what is
probably a mistake. It does not import TensorFlow, which takes seconds to load.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium import spaces

from impala_mm.config.messages import describe_error, join_lines, users_traceback
from impala_mm.environments import gym_adapter, masks, nests
from impala_mm.environments.faults import FAILURES, format_traceback
from impala_mm.environments.levels import MadeLevel
from impala_mm.environments.make import find_level
from impala_mm.environments.observations import ObservationConversion
from impala_mm.environments.spaces import SpaceConversion, read_spaces
from impala_mm.environments.types import BadLevel, Options

STEPS = 100
_ROUNDING = 1e-6  # by which a number may exceed a bound, relative to it; the bound was rounded, too
SEED = 1
SLOW_RESET = 0.5  # seconds of a reset, from which on it is not repeated
REACH = 2.0  # of the numbers drawn for actions: half of them are at the bounds
_TRUSTED = ("ale_py.", "impala_mm.")  # modules whose environments are not checked
_RESET_RETURNS = "an observation and a dictionary: return observation, {}"
_STEP_RETURNS = "return observation, reward, terminated, truncated, info"
_OLD_STEP = (
    "as in gym before 0.26: its third value counts as terminated, also where a time limit cut the "
    f"episode; {_STEP_RETURNS}, where truncated says that"
)


class Finding(NamedTuple):
    """Something in a level's environment that is wrong, or probably wrong."""

    is_error: bool  # a training cannot use the environment
    sentence: str  # begins with the level's name
    traceback: str = ""  # in the user's code


class LevelCheck:
    """The check of one level."""

    def __init__(
        self,
        level_name: str,
        options: Options,
        starts: Callable[[str, int], None],
        finds: Callable[[Finding], None],
    ):
        """Check `level_name` with these options.

        `starts` is called before each call of the user's code, with a description of the call and
        the number of completed steps; `finds` is called with each finding. What is wrong in every
        step is reported only for the first one.
        """
        self._steps = 0  # completed
        self._level_name, self._options = level_name, options
        self._starts, self._finds = starts, finds
        self._reported: set[str] = set()  # the kinds of findings
        self._environment: Any = None
        self._observation_space: spaces.Space
        self._spaces: SpaceConversion
        self._raw_mask: masks.RawMask | None = None  # finds the mask; None: none is offered
        self._mask: list[np.ndarray] | None = None  # of the next action; None: all are allowed
        self._random = np.random.default_rng(SEED)

    def run(self, until: float) -> bool:
        """Check the level; return False if `until`, in time.monotonic(), came before the end."""
        try:
            return self._check(until)
        except _Ended:
            return True
        finally:
            if hasattr(self._environment, "close"):
                self._starts("close", self._steps)
                try:
                    self._environment.close()
                except Exception as error:
                    self._find("close", False, f"close raised {describe_error(error)}", error)

    def _check(self, until: float) -> bool:
        level = self._call("the import", find_level, self._level_name, **self._options._asdict())
        is_made = isinstance(level, MadeLevel)
        if not is_made or (not self._options.is_changed and level.module.startswith(_TRUSTED)):
            return True
        return self._play(level, until)

    def _play(self, level: MadeLevel, until: float) -> bool:
        """Check an environment of a level; return False if `until` came before the end."""
        self._environment = self._call("making it", level.open, False)
        actions = self._check_spaces()
        begin = time.monotonic()
        first = self._reset("reset", SEED, is_first=True)
        reset_seconds = time.monotonic() - begin
        actions.seed(SEED)
        ended = False
        while self._steps < STEPS:
            if time.monotonic() > until:
                return False
            if ended:
                self._reset(f"reset after step {self._steps}", None)
            ended = self._step(f"step {self._steps + 1}", self._sample(actions))
            self._steps += 1
        if reset_seconds < SLOW_RESET and not are_equal(
            first, self._reset("a second reset with the same seed", SEED)
        ):
            self._find(
                "seed",
                False,
                f"two resets with seed={SEED} returned different observations, so that runs "
                f"cannot be repeated: call super().reset(seed=seed) in reset and draw all random "
                f"numbers from self.np_random",
            )
        return True

    def _check_spaces(self) -> spaces.Space:
        """Check both spaces; return the action space."""
        read: dict[str, Any] = {}
        for name, example in (
            ("observation_space", "Box(low, high, shape)"),
            ("action_space", "Discrete(n)"),
        ):
            space = self._call(name, getattr, self._environment, name, None)
            if not isinstance(space, spaces.Space):
                what = "it has no" if space is None else f"{_kind(space)} is its"
                self._fail(
                    f"{what} {name}: set self.{name} in __init__ to a space of gymnasium, such as "
                    f"gymnasium.spaces.{example}"
                )
            read[name] = space
        try:
            chosen = self._options
            how = chosen.width, chosen.height, chosen.convert_observations
            self._spaces = read_spaces(self._level_name, self._environment, *how)
        except BadLevel as error:
            self._finds(Finding(True, str(error)))
            raise _Ended from None
        self._observation_space = read["observation_space"]
        return read["action_space"]

    def _sample(self, actions: spaces.Space) -> Any:
        """Return a random action, among those that the mask allows."""
        if self._mask is None:
            return actions.sample()
        ours = self._spaces.actions
        drawn = ours.sample(1, tuple(mask[None] for mask in self._mask), self._random, REACH)
        return ours.to_environments(drawn)[0]

    def _reset(self, when: str, seed: int | None, is_first: bool = False) -> Any:
        """Reset the environment, check what it returns and return its observation."""
        returned = self._call(when, lambda: self._environment.reset(seed=seed))
        pair = gym_adapter.reset_of(returned, self._observation_space)
        if len(pair) != 2:
            self._fail(f"reset returned {_kind(returned)} and must return {_RESET_RETURNS}")
        if pair is not returned:
            self._find(
                "old reset",
                False,
                f"reset returned {_kind(returned)}, as in gym before 0.26, and must return "
                f"{_RESET_RETURNS}",
            )
        returned = pair
        observation, info = returned
        self._check_info(when, info)
        self._check_observation(when, observation)
        if is_first:
            self._find_masks(info)
        self._check_mask(when, observation, info, ended=False)
        return observation

    def _step(self, when: str, action: Any) -> bool:
        """Make a step and check what it returns; return whether the episode ended."""
        returned = self._call(when, self._environment.step, action)
        if isinstance(returned, tuple) and len(returned) == 4:
            self._find("old step", False, f"step returned {_kind(returned)}, {_OLD_STEP}")
            returned = gym_adapter.step_of(returned)
        if not isinstance(returned, tuple) or len(returned) != 5:
            self._fail(f"step returned {_kind(returned)}, and must return five: {_STEP_RETURNS}")
        observation, reward, terminated, truncated, info = returned
        self._check_info(when, info)
        self._check_observation(when, observation)
        self._check_reward(when, reward)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                converts = _number(value) is not None
                advice = f"return bool({name})" if converts else _STEP_RETURNS
                self._find(
                    name,
                    not converts,
                    f"{when} returned {_kind(value)} as {name}, which must be True or False: "
                    f"{advice}",
                )
        if not terminated:
            self._check_mask(when, observation, info, ended=bool(truncated))
        return bool(terminated or truncated)

    def _find_masks(self, info: Any) -> None:
        """See whether masks are offered, from the spaces and from the info of the first reset."""
        actions, conversion = self._spaces.actions, self._spaces.masks
        if not conversion and masks.is_in_info(info):
            conversion = masks.MaskConversion(actions, "info")
        if not conversion:
            return
        try:
            masks.refuse_unsuitable(self._level_name, actions, self._options.num_action_repeats)
        except BadLevel as error:
            self._finds(Finding(True, str(error)))
            raise _Ended from None
        self._spaces = self._spaces._replace(masks=conversion)
        self._raw_mask = conversion.reader(self._environment)

    def _check_mask(self, when: str, observation: Any, info: Any, ended: bool) -> None:
        """Check the mask after a call and keep it for the next action; after the end it is free."""
        conversion = self._spaces.masks
        raw = self._raw_mask and self._call(
            f"action_masks after {when}", self._raw_mask, observation, info
        )
        try:
            if not conversion:
                masks.refuse_unexpected(info)
            elif not ended:
                self._mask = conversion.read_one(raw, when)
        except ValueError as error:
            self._fail(f"{when} returned {error}")

    def _check_info(self, when: str, info: Any) -> None:
        if not isinstance(info, Mapping):
            self._find(
                "info", False, f"{when} returned {_kind(info)} as info, which must be a dictionary"
            )

    def _check_observation(self, when: str, observation: Any) -> None:
        problems = find_problems(observation, self._observation_space, self._spaces.observation)
        for kind, is_error, sentence in problems:
            self._find(kind, is_error, f"{when} returned {sentence}")

    def _check_reward(self, when: str, reward: Any) -> None:
        number = _number(reward)
        if number is None:
            advice = ": return float(reward)" if _length(reward) == 1 else ""
            self._find(
                "reward",
                True,
                f"{when} returned {_kind(reward)} as reward, which must be a number{advice}",
            )
        elif not math.isfinite(number):
            self._find("reward", True, f"{when} returned the reward {reward}, which must be finite")

    def _call(self, what: str, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Call the user's code; report an exception that it raises, and end the check."""
        self._starts(what, self._steps)
        try:
            return function(*arguments, **options)
        except BadLevel as error:
            cause = error.__cause__
            self._finds(Finding(True, str(error), users_traceback(cause) if cause else ""))
        except FAILURES as error:
            self._find("raised", True, f"{what} raised {describe_error(error)}", error)
        raise _Ended

    def _fail(self, sentence: str) -> NoReturn:
        self._find("failed", True, sentence)
        raise _Ended

    def _find(
        self, kind: str, is_error: bool, sentence: str, error: BaseException | None = None
    ) -> None:
        """Report a finding, unless one of its kind was reported."""
        if kind not in self._reported:
            self._reported.add(kind)
            where = format_traceback(error) if error else ""
            self._finds(Finding(is_error, f"{self._level_name}: {sentence}", where))


def find_problems(
    observation: Any, space: spaces.Space, conversion: ObservationConversion
) -> Iterator[tuple[str, bool, str]]:
    """Yield (kind, is_error, sentence) of what is wrong with an observation.

    An error is what a training cannot read; a mistake is what it converts. Problems of one kind are
    reported once.
    """
    try:
        parts = (np.asarray(part, np.float64) for part in conversion.read(observation))
        if not all(np.isfinite(part).all() for part in parts):
            raise ValueError("observation with NaN or infinity")
    except ValueError as error:
        yield "observation", True, str(error)
    except FAILURES as error:  # such as None in place of a dictionary
        shown = f"{_kind(observation)} and its space is {join_lines(space)[:120]}"
        yield "observation", True, f"{shown} ({describe_error(error)[:120]})"
    else:
        yield from _find_mistakes(observation, space, "")


def _find_mistakes(
    observation: Any, space: spaces.Space, part: str
) -> Iterator[tuple[str, bool, str]]:
    """Yield what is probably a mistake in a part, such as "['map'][0]", of an observation."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            if key in observation:  # of a mask this is not certain
                yield from _find_mistakes(observation[key], inner, f"{part}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _find_mistakes(observation[i], inner, f"{part}[{i}]")
        return
    array, named = np.asarray(observation), f"observation{part}"
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        if array.dtype.kind not in "iu":
            advice = "astype(np.int64)" if array.shape else "int(observation)"
            shown = join_lines(observation)[:80]
            yield "dtype", False, f"{named} {shown}, which is no integer: return {advice}"
    elif isinstance(space, spaces.MultiBinary):
        yield from _beyond(array, np.zeros(array.shape), np.ones(array.shape), named)
    elif isinstance(space, spaces.Box):
        if space.shape and not isinstance(observation, np.ndarray):
            what = f"{named} that is a {type(observation).__name__}: return an array"
            yield "array", False, f"{what}, np.array(observation, dtype=np.{space.dtype})"
        elif space.shape and array.dtype != space.dtype:
            loses = array.dtype.kind == "f" and space.dtype.kind in "biu"
            what = f"{named} of {array.dtype}, and its space is of {space.dtype}"
            what += ", in which fractions are lost" if loses else ""
            yield "dtype", False, f"{what}: return observation.astype(np.{space.dtype})"
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        yield from _beyond(array, low, high, named)


def _beyond(
    array: np.ndarray, low: np.ndarray, high: np.ndarray, named: str
) -> Iterator[tuple[str, bool, str]]:
    """Yield the number that exceeds its bound the most; a training uses it as it is."""
    numbers = array.astype(np.float64)
    excess = np.maximum(low - numbers, numbers - high)
    bound = np.where(numbers < low, low, high)
    if (excess > _ROUNDING * np.maximum(np.abs(bound), 1)).any():
        where = np.unravel_index(excess.argmax(), excess.shape)
        side = "below" if numbers[where] < low[where] else "above"
        at = f" at {[int(index) for index in where]}" if where else ""
        what = f"{named} with {numbers[where]:g}{at}, which is {excess[where]:g} {side} its"
        advice = "correct the space or the observation"
        yield "bounds", False, f"{what} space's bound of {bound[where]:g}: {advice}"


class _Ended(Exception):
    """Raised to end the check after an error that leaves nothing more to check."""


def are_equal(observation: Any, other: Any) -> bool:
    """Return whether all parts of two observations are equal."""
    return all(map(np.array_equal, nests.flatten(observation), nests.flatten(other)))


def _number(value: Any) -> float | None:
    """Return the number for which a training takes a value; None if it can take it for none."""
    try:
        return None if _length(value) >= 0 else float(value)
    except (TypeError, ValueError):
        return None


def _length(value: Any) -> int:
    """Return the number of parts of a value; -1 for a number, which has none."""
    try:
        return len(value)
    except TypeError:  # an array without axes has the method, but no length
        return -1


def _kind(value: Any) -> str:
    """Return what a value is, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    text = join_lines(repr(value))
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({name})"
