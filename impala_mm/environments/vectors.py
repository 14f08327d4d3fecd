"""Environments that are a vector already: gymnasium's `VectorEnv`, or an object with its interface.

A vector steps all of its environments at once. How their episodes begin again is stated in its
metadata["autoreset_mode"] (gymnasium's `AutoresetMode`), and an entry follows from it as below, by
the step convention of `data/trajectory.py`. A step cannot leave an environment out.

    NEXT_STEP   the step after an end is the reset: nothing has to be done
    DISABLED    before the step after an end, those that ended are reset; they are stepped with the
                others by an idle action, and reset again. If all have ended, none is stepped.
    SAME_STEP   the step that ends an episode returns info["final_obs"], which is the entry, and the
                next episode's first observation. The next step is idle for that environment, and
                what it returns is the entry of the reset: nobody learns from the idle step, and its
                reward counts for the scores alone. Vectors of gymnasium's own are reset after it.

Options and infos are gymnasium's: `reset_mask`, and arrays of E with the mask `_key` for each key.
"""

import contextlib
import functools
import math
import multiprocessing.connection
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from impala_mm.config.messages import join_lines
from impala_mm.environments import masks, nests
from impala_mm.environments.faults import describe_end
from impala_mm.environments.gym_adapter import find_method, parameters_of
from impala_mm.environments.gym_vector import NOT_FINITE, RENDER_FPS, blank_step, picture_of
from impala_mm.environments.levels import MadeLevel
from impala_mm.environments.masks import RawMask, nothing_allowed, refuse_unexpected
from impala_mm.environments.one_vector import OneVector
from impala_mm.environments.spaces import SpaceConversion, judge_goals
from impala_mm.environments.types import (
    BadLevel,
    Environments,
    EnvironmentSpec,
    Episode,
    Options,
)

_NEXT, SAME, _DISABLED = (
    AutoresetMode.NEXT_STEP,
    AutoresetMode.SAME_STEP,
    AutoresetMode.DISABLED,
)
_NEEDED = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")
SEEDS = 2**31


def level_of(name: str, maker: Callable[..., Any], options: Options, **known: Any) -> MadeLevel:
    """Return the level of a class or function; the arguments are those of `MadeLevel`.

    It makes vectors if it takes `num_envs`, or is a VectorEnv, and else one environment.
    """
    is_vector = isinstance(maker, type) and issubclass(maker, VectorEnv)
    kind = VectorLevel if is_vector or "num_envs" in parameters_of(maker) else MadeLevel
    return kind(name, maker, options, **known)


class VectorLevel(MadeLevel):
    """A level whose vectors a class or function makes."""

    def __init__(self, name: str, make: Callable[..., Any], options: Options, **known: Any):
        """Make vectors by `make`; the arguments are those of `MadeLevel`.

        `make` is called with num_envs, and with a seed if it takes one: its vector is then reset
        without one.
        """
        super().__init__(name, make, options, **known)
        self._seeds_at_reset = "seed" not in parameters_of(make)
        for flag, value, reason in (
            ("num_action_repeats", max(options.num_action_repeats - 1, 0), "cannot repeat them"),
            ("discretization", options.discretization != "none", "cannot make choices of them"),
        ):
            if value:
                raise BadLevel(
                    f"--{flag}={getattr(options, flag)}: {name} is a vector, which takes the "
                    f"actions of all environments at once, and {flag} {reason}: leave it out, and "
                    f"let the vector do it"
                )
        if taken := {"num_envs", "seed"} & self._kwargs.keys():
            raise BadLevel(f"--env_kwargs: {min(taken)} is not for it: give --{min(taken)}")

    def open(self, renders: bool, num_envs: int = 1, seed: int = 0) -> "OpenVector":
        """Return a new vector; BadLevel is raised if it is none of `num_envs` environments."""
        given = {"num_envs": num_envs, "seed": seed}
        given = {name: given[name] for name in given.keys() & parameters_of(self._make).keys()}
        vector = OpenVector(self._wrapped(self._call(renders, **given)), self._seeds_at_reset)
        if vector.num_envs != num_envs:
            vector.close()
            raise BadLevel(
                f"{self.name} made a vector of {vector.num_envs} environments, and was asked for "
                f"{num_envs}: it must make as many as its parameter num_envs says"
            )
        return vector

    def make(
        self, num_envs: int, seed: int, renders: bool = False, workers: int = 0
    ) -> Environments:
        """Return a vector of `num_envs` copies."""
        conversion = self.conversion()
        opens = functools.partial(self.open, renders, num_envs)
        return VectorEnvironments(self._spec(conversion), conversion, opens, num_envs, seed)

    def _conversion_of(self, environment: Any, has_masks: bool | None) -> SpaceConversion:
        conversion = super()._conversion_of(environment, has_masks)
        with contextlib.suppress(Exception):  # it is reported where it is played
            environment.reset(seed=0)  # by which it is known whether arrays are copied
        return conversion._replace(note=environment.note)

    def _refuse(self, made: Any, maker: str) -> None:
        what = f"{maker} returned {join_lines(repr(made))[:60]} ({type(made).__name__})"
        if missing := [name for name in _NEEDED if getattr(made, name, None) is None]:
            raise BadLevel(
                f"{what}, and its parameter num_envs asks for a vector of environments: it has no "
                f"{' and no '.join(missing)}"
            )
        mode = _stated_mode(made)
        if not isinstance(mode, AutoresetMode):
            modes = ", ".join(f"AutoresetMode.{each.name}" for each in AutoresetMode)
            stated = "does not say" if mode is None else f"says by {mode!r}"
            raise BadLevel(
                f"{what}, which {stated} how its episodes begin again: set "
                f'metadata["autoreset_mode"] to one of gymnasium.vector\'s {modes}'
            )


class OpenVector:
    """A vector of environments; its spaces are those of a single one."""

    def __init__(self, vector: Any, takes_seeds: bool = True):
        """Adapt a vector; without `takes_seeds` it is seeded already."""
        self.vector, self.takes_seeds = vector, takes_seeds
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.num_envs: int = vector.num_envs
        self.unwrapped: Any = getattr(vector, "unwrapped", vector)
        self.metadata = getattr(vector, "metadata", None) or {}
        self.render_mode = getattr(vector, "render_mode", None)
        self.mode = _stated_mode(vector)
        self._processes: list[Any] = []
        if isinstance(self.unwrapped, AsyncVectorEnv):
            self._processes = self.unwrapped.processes
        # Whether those that ended may be reset alone, before or after a step.
        self.resets_some = self.mode is _DISABLED or (
            self.mode is SAME and isinstance(self.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        )
        self.copied = ""  # the type of the observations that are no NumPy arrays
        self._methods: dict[str, Any] = {}  # by name, see `get_wrapper_attr`
        self._copy: Any = None  # of an environment of other processes

    @property
    def note(self) -> str:
        """What the user has to know of how the vector is played."""
        notes = []
        if self.mode is SAME and not self.resets_some:
            notes += [
                "resets in the same step: the first step of each later episode is made with an "
                "idle action, from which nobody learns (a vector that resets in the next step, "
                "AutoresetMode.NEXT_STEP, has none)"
            ]
        if self.copied:
            notes += [f"returns {self.copied}, which is copied to NumPy arrays in each step"]
        return "; it ".join(notes)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return a method of the vector, or of its first environment, as masks and goals are.

        Masks of its environments come from all of them.
        """
        if name not in self._methods:
            self._methods[name] = self._find(name)
        if self._methods[name] is None:
            raise AttributeError(name)
        return self._methods[name]

    def _find(self, name: str) -> Any:
        for each in (self.vector, self.unwrapped):
            if hasattr(each, name):
                return getattr(each, name)
        one = next(iter(getattr(self.unwrapped, "envs", ())), None)
        if isinstance(self.unwrapped, AsyncVectorEnv):
            # A process that is asked for a method that it lacks ends.
            if not all(self.unwrapped.call("has_wrapper_attr", name)):
                return None
            if name != masks.METHOD:  # goals are judged one by one, in this process
                one = self._copy = self._copy or self.unwrapped.env_fns[0]()
        elif not find_method(one, name):
            return None
        if name == masks.METHOD:
            return lambda: list(self.unwrapped.call(name))
        return find_method(one, name)

    def reset(
        self, *, seed: int | None = None, only: np.ndarray | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or `only` some, bool [E]; number i is seeded with `seed` + i."""
        seed = seed if self.takes_seeds else None
        options = None if only is None else {"reset_mask": only.copy()}
        observation, info = self.vector.reset(seed=seed, options=options)
        return self._in_numpy(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments by a nest of [E, ...]."""
        observation, reward, terminated, truncated, info = self.vector.step(actions)
        return self._in_numpy(observation), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return the picture of environment 0, if it draws one."""
        pictures = self.vector.render()
        return None if pictures is None or not len(pictures) else pictures[0]

    def reason_of(self, error: BaseException) -> BaseException:
        """Return an error of the vector, or one that says which of its processes was killed."""
        if not isinstance(error, EOFError | OSError):
            return error
        ended = multiprocessing.connection.wait([each.sentinel for each in self._processes], 1)
        for i, process in enumerate(self._processes):
            if process.sentinel in ended:
                process.join()
                return RuntimeError(f"process {i} of the vector {describe_end(process.exitcode)}")
        return error

    def close(self) -> None:
        """Close the vector."""
        if any(process.exitcode for process in self._processes):
            # gymnasium would wait for ever for an answer of the others that it has had already.
            for process in self._processes:
                process.kill()
            self.unwrapped._state = AsyncState.DEFAULT
            self.vector.close(terminate=True)
        else:
            self.vector.close()
        if self._copy:
            self._copy.close()

    def _in_numpy(self, observation: Any) -> Any:
        if observation.__class__ is np.ndarray:
            return observation
        observation = _join_texts(observation)
        leaves = nests.flatten(observation)
        if other := [leaf for leaf in leaves if not isinstance(leaf, np.ndarray)]:
            kind, device = type(other[0]), getattr(other[0], "device", "")
            self.copied = f"{kind.__module__}.{kind.__name__}{device and f' on {device}'}"
        return nests.pack(observation, map(as_numpy, leaves))


class VectorEnvironments(OneVector):
    """An implementation of `Environments` by a vector, as its level opened it.

    `reset` and `step` return the same arrays each time; they are valid until the next call of
    either.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        conversion: SpaceConversion,
        opens: Callable[[int], OpenVector],
        num_envs: int,
        seed: int,
    ):
        """Open a vector of `num_envs` by `opens`; number i is seeded with `seed` + i."""
        self._conversion, self._seed = conversion, seed % (SEEDS - num_envs)
        super().__init__(spec, num_envs, opens, blank_step(num_envs, conversion))
        rate = self._vector.metadata.get("render_fps") or RENDER_FPS
        self.picture_rate = rate / spec.action_repeats
        self._observation: list[np.ndarray] = nests.flatten(self._now.observation)
        floats = [array for array in self._observation if array.dtype.kind == "f"]
        self._numbers = [self._now.reward, *floats]  # which may not be finite
        self._mask: list[np.ndarray] = nests.flatten(self._now.mask)
        self._raw_mask: RawMask | None = None  # finds the masks of this vector
        self._first_mask = [array.copy() for array in self._mask]  # of the episodes that begin
        self._returns, self._lengths = np.zeros(self._size), np.zeros(self._size, np.int64)
        self._ended = np.zeros(self._size, bool)  # by the newest step
        self._some_ended = False

    def picture(self) -> np.ndarray:
        """Return the picture that environment 0 draws, or else its observation as a picture."""
        return picture_of(self.spec.level_name, self._vector, self._observation)

    def judge_goals(
        self, environment: int, achieved: np.ndarray, desired: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what the vector, or one of its environments, says of goals: see `spaces`."""
        if self._vector is None:
            raise BadLevel(f"{self.spec.level_name} is broken")
        try:
            return judge_goals(self.spec.level_name, self._vector, achieved, desired)
        except BadLevel:
            self.close()  # all are broken
            raise

    def _seed_of(self, opening: int) -> int:
        if opening == 0:
            return self._seed
        words = np.random.SeedSequence([self._seed, opening]).generate_state(1)
        return int(words[0]) % (SEEDS - self._size)

    def _reason_of(self, error: BaseException) -> BaseException:
        return self._vector.reason_of(error)

    def _reset(self, vector: OpenVector, seed: int | None) -> None:
        if masks := self._conversion.masks:
            self._raw_mask = masks.reader(vector)
        raw, info = vector.reset(seed=seed)
        self._returns.fill(0)
        self._lengths.fill(0)
        self._begin(np.ones(self._size, bool), raw, info)
        self._end(vector, info)

    def _step(self, vector: OpenVector, actions: Any) -> None:
        """Step all environments; those that ended begin their next episode."""
        begins = self._ended.copy() if self._some_ended else None
        if begins is not None:
            if vector.mode is _DISABLED or (vector.resets_some and begins.all()):
                self._begin(begins, *vector.reset(only=begins))
                self._first_mask = self._mask
            if vector.resets_some and begins.all():
                self._end(vector, {})
                return
            if vector.mode is not _NEXT:  # which ignores their actions
                actions = self._with_idle(actions, begins)
        info = self._put(vector, *vector.step(self.spec.actions.as_batch(actions)))
        if begins is not None:
            self._begin_after(vector, begins)
        self._end(vector, info)

    def _put(
        self, vector: OpenVector, raw: Any, rewards: Any, terminated: Any, truncated: Any, info: Any
    ) -> Any:
        """Write what a step returned to the rows of all environments; return the info."""
        now = self._now
        now.reward[:] = self._column("rewards", rewards)
        now.terminated[:] = self._column("terminated", terminated)
        now.truncated[:] = self._column("truncated", truncated)
        now.first.fill(False)
        parts = self._conversion.observation.read_all(raw, self._size)
        for array, part in zip(self._observation, parts, strict=True):
            array[...] = part
        if masks := self._conversion.masks:
            which = np.ones(self._size, bool)
            if vector.mode is not SAME:  # else the next episode has begun, which needs a mask
                which &= ~now.terminated
                which &= ~now.truncated | masks.offered(info, self._size)
            self._read_masks(raw, info, which)
            for array in self._mask:
                array[~which] = True
        elif info:
            refuse_unexpected(info)
        return info

    def _begin(self, which: np.ndarray, raw: Any, info: Any) -> None:
        """Write a reset to the rows of those environments that `which`, bool [E], selects."""
        now = self._now
        for array in (now.reward, now.terminated, now.truncated):
            array[which] = 0
        now.first[which] = True
        rows = nests.row(raw, which)
        parts = self._conversion.observation.read_all(rows, int(which.sum()))
        for array, part in zip(self._observation, parts, strict=True):
            array[which] = part
        self._read_masks(raw, info, which)

    def _begin_after(self, vector: OpenVector, begins: np.ndarray) -> None:
        """Make entries of resets of those rows of a step whose environments had ended before it."""
        now = self._now
        over = (now.terminated | now.truncated) & begins
        if vector.mode is _NEXT and over.any():
            raise ValueError(
                f"environment {over.argmax()} ended an episode, and again in the step after it, "
                f"which is its reset by AutoresetMode.NEXT_STEP"
            )
        if vector.resets_some:
            self._begin(begins, *vector.reset(only=begins))
        elif vector.mode is SAME:
            # An episode that an idle step ended was nobody's: the row shows the one after it.
            self._returns[begins & ~over] = now.reward[begins & ~over]
        for array in (now.reward, now.terminated, now.truncated):
            array[begins] = 0
        now.first[begins] = True

    def _end(self, vector: OpenVector, info: Any) -> None:
        """Add the newest step to the statistics, and complete the rows of episodes that ended."""
        now, ended = self._now, self._ended
        np.logical_or(now.terminated, now.truncated, out=ended)
        self._some_ended = bool(ended.any())
        if self._some_ended and vector.mode is SAME:
            self._first_mask = [array.copy() for array in self._mask]
            self._put_last(info)
        self._check_finite()
        self._returns += now.reward
        self._lengths += ~now.first
        if self._some_ended:
            for i in np.flatnonzero(ended).tolist():
                result = float(self._returns[i]), int(self._lengths[i])
                self._finished += [Episode(i, whole_game, *result) for whole_game in (False, True)]
                self._returns[i] = self._lengths[i] = 0
        if masks := self._conversion.masks:
            for array in self._mask:
                array[now.terminated] = True
            for i, number, name in masks.without_choice(self._mask):
                if now.truncated[i]:
                    self._mask[number][i] = True
                    continue
                when = "its reset" if now.first[i] else f"step {self._lengths[i]} of its episode"
                raise ValueError(f"environment {i}: {nothing_allowed(name, when)}")

    def _put_last(self, info: Any) -> None:
        """Write the last observations of episodes whose next ones have begun in the same step."""
        last = info.get("final_obs", info.get("final_observation"))
        for i in np.flatnonzero(self._ended).tolist():
            one = None if last is None else nests.row(last, i)
            if one is not None:
                one = nests.pack(one, map(as_numpy, nests.flatten(one)))
                self._conversion.observation.write(one, self._observation, i)
                masks = self._conversion.masks
                mask = masks.read_last(one, info.get("final_info"), i) if masks else None
                for k, array in enumerate(self._mask):
                    array[i] = mask[k] if mask else True
            elif not self._now.terminated[i]:  # else nobody learns from it
                raise ValueError(
                    f'environment {i} was truncated, and info["final_obs"] has no last observation '
                    f"of it, whose value counts: a vector of AutoresetMode.SAME_STEP must return it"
                )

    def _with_idle(self, actions: Any, which: np.ndarray) -> Any:
        """Return actions with an idle one for some environments: zeros, or the first allowed."""
        specs, masks = self.spec.actions, iter(self._first_mask)
        leaves = [np.array(leaf) for leaf in nests.flatten(specs.as_arrays(actions))]
        for part, leaf in zip(specs.leaves, leaves, strict=True):
            leaf[which] = 0
            if self._first_mask and part.choices:
                each = np.split(next(masks)[which], np.cumsum(part.choices)[:-1], axis=1)
                allowed = np.stack([mask.argmax(1) for mask in each], axis=1)  # [N, K]
                leaf[which] = allowed.reshape(-1, *part.shape)
        return specs.pack(leaves)

    def _column(self, name: str, returned: Any) -> np.ndarray:
        """Return one of the results that have a number for each environment."""
        column = as_numpy(returned)
        if column.shape != (self._size,):
            raise ValueError(f"{name} of shape {list(column.shape)}, which must be [{self._size}]")
        return column

    def _read_masks(self, raw: Any, info: Any, which: np.ndarray) -> None:
        """Write the masks of `which` environments, bool [E]."""
        masks = self._conversion.masks
        if not masks or not self._raw_mask:
            refuse_unexpected(info)
        elif which.any():
            offered = masks.offered(info, self._size)
            parts = masks.read_all(self._raw_mask(raw, info), which, offered)
            for array, part in zip(self._mask, parts, strict=True):
                array[which] = part

    def _check_finite(self) -> None:
        for array in self._numbers:
            flat = array.reshape(-1)
            # For a few numbers, ten times as fast as to look at each; a square may be infinite.
            if not math.isfinite(flat.dot(flat)) and not np.isfinite(array).all():
                i = int((~np.isfinite(array)).reshape(self._size, -1).any(1).argmax())
                what = f"the reward {array[i]}" if array is self._now.reward else NOT_FINITE
                raise ValueError(f"environment {i} returned {what}")


def _join_texts(nest: Any) -> Any:
    """Return a nest with arrays [E] of texts where gymnasium's vectors have tuples of E texts."""
    if isinstance(nest, dict):
        return {key: _join_texts(part) for key, part in nest.items()}
    if not isinstance(nest, tuple):
        return nest
    if all(isinstance(part, str) for part in nest):
        return np.array(nest)
    return tuple(map(_join_texts, nest))


def as_numpy(array: Any) -> np.ndarray:
    """Return an array of any library and device as NumPy's; it is copied from a device."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "cpu"):  # a tensor of torch
        array = array.cpu()
    try:
        return np.asarray(array)
    except TypeError:  # a GPU's, which must be told where to
        return np.from_dlpack(array, device="cpu")


def _stated_mode(vector: Any) -> Any:
    """Return how a vector says that its episodes begin again; None if it does not."""
    return (getattr(vector, "metadata", None) or {}).get("autoreset_mode")
