"""The suite `envpool`: its environments, by their ids, which step in threads of C++.

    envpool:HalfCheetah-v4, envpool:Pong-v5, envpool:gfootball/academy_3_vs_1_with_keeper-v1

--env_kwargs are envpool's own settings of an environment, with one thread for a vector as the
default: an actor is one process of many. A step is one frame, but for games of Atari and of
ViZDoom, whose frame_skip --num_action_repeats sets. The library is imported where it is needed.
"""

import contextlib
import difflib
import functools
import importlib.metadata
import json
import warnings
import zlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space

from impala_mm.config.environment_flags import read_kwargs
from impala_mm.config.messages import error_message
from impala_mm.environments import Suite
from impala_mm.environments.types import BadLevel, Options
from impala_mm.environments.vectors import VectorLevel
from impala_mm.runtime import lifecycle

_HAS_THRESHOLDS = ("box2d", "classic_control", "mujoco.gym", "toy_text")  # as gymnasium has them
_SKIPS_FRAMES = ("atari", "vizdoom")  # of MuJoCo it is part of the physics
# What the maker or this suite decides, and what would make a vector that steps some environments.
_OURS = {"num_envs", "seed", "env_seed", "batch_size", "gym_reset_return_info", "base_path"}
# The checksum of the first states of two CartPoles, by version: all of them begin at random.
_FIRST_STATES = {"1.2.5": 616829184}
_MISSION = "mission"
_OF_PICTURES = {"from_pixels", "render_width", "render_height", "render_camera_id"}


class Envpool(Suite):
    """The environments of envpool."""

    def find(self, level: str, level_name: str, options: Options) -> "EnvpoolLevel":
        """Return the level of an id; raise BadLevel if envpool has none, or is not installed."""
        try:
            import envpool.entry  # noqa: F401, PLC0415 - it registers the ids
            from envpool.registration import registry  # noqa: PLC0415
        except ImportError as error:
            raise BadLevel(
                f"{level_name} needs envpool: pip install 'impala_mm[envpool]' "
                f"({error_message(error)})"
            ) from None
        if level not in registry.specs:
            spelt = {name.lower(): name for name in registry.specs}
            near = difflib.get_close_matches(level.lower(), spelt, n=3, cutoff=0.6)
            names = " or ".join(f"envpool:{spelt[name]}" for name in near)
            hint = f"; did you mean {names}?" if near else ""
            raise BadLevel(f"envpool has no environment {level}{hint}")
        if wrong := _wrong_values():
            version = importlib.metadata.version("envpool")
            raise BadLevel(
                f"{level_name}: envpool {version} does not fit NumPy {np.__version__}: {wrong}; "
                f"install others: pip install 'impala_mm[envpool]'"
            )
        return EnvpoolLevel(level, level_name, options, registry)


class EnvpoolLevel(VectorLevel):
    """An environment of envpool."""

    def __init__(self, level: str, name: str, options: Options, registry: Any):
        """Find an id of envpool's registry; BadLevel is raised if the flags do not fit it."""
        family = registry.specs[level][0].removeprefix("envpool.")
        given = read_kwargs(options.env_kwargs)
        if family in _SKIPS_FRAMES and options.num_action_repeats:
            given |= {"frame_skip": options.num_action_repeats}
            options = options._replace(num_action_repeats=0, env_kwargs=json.dumps(given))
        try:
            config = registry.make_spec(level).config
        except ImportError as error:  # of a library of the system
            raise BadLevel(f"{name} cannot be made: {error_message(error)}") from None
        if config.max_num_players > 1:
            raise BadLevel(f"{name} is a game of several players, and a policy here plays for one")
        names = config._asdict().keys() - _OURS | _OF_PICTURES
        for wrong in sorted(given.keys() - names):
            near = difflib.get_close_matches(wrong, sorted(names), n=1)
            hint = f"; did you mean {near[0]}?" if near else f": it has {', '.join(sorted(names))}"
            raise BadLevel(f"--env_kwargs: {name} has no setting {wrong}{hint}")
        make = functools.partial(_make, level)
        limit = getattr(config, "reward_threshold", None) if family in _HAS_THRESHOLDS else None
        super().__init__(name, make, options, reward_threshold=limit)
        frames: Any = given.get("frame_skip") or getattr(config, "frame_skip", 1)
        self._frames: int = frames if family in _SKIPS_FRAMES else 1

    @property
    def repeats(self) -> int:
        """The number of frames of a step."""
        return self._frames


class _Pool(VectorWrapper):
    """A pool, with the spaces of a VectorEnv; missions are texts, of which it returns the bytes."""

    def __init__(self, pool: Any):
        super().__init__(pool)
        with warnings.catch_warnings(action="ignore"):  # that float64 bounds become float32
            self.single_observation_space = _without_false_bounds(pool.observation_space)
            self.single_action_space = _without_false_bounds(pool.action_space)
        self._decode = getattr(pool, "decode_mission", None)  # of MiniGrid's pools
        if self._decode:
            text = Text(pool.observation_space[_MISSION].shape[0])
            parts: Any = self.single_observation_space
            self.single_observation_space = gymnasium.spaces.Dict({**parts, _MISSION: text})
        self.observation_space = batch_space(self.single_observation_space, pool.num_envs)
        self.action_space = batch_space(self.single_action_space, pool.num_envs)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""
        seen, info = self.env.reset(**given)
        return self._read(seen), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; some of MuJoCo return a reward with their reset, which is none."""
        seen, reward, terminated, truncated, info = self.env.step(actions)
        reward = np.where(info["elapsed_step"] > 0, reward, 0)
        return self._read(seen), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return pictures; None of games that envpool cannot draw, such as Football."""
        with contextlib.suppress(RuntimeError):
            return self.env.render()
        return None

    def _read(self, seen: Any) -> Any:
        if not self._decode:
            return seen
        return {**seen, _MISSION: self._decode(seen[_MISSION]).astype(str)}


def _make(id_: str, num_envs: int, seed: int, render_mode: Any = None, **settings: Any) -> _Pool:
    """Return a pool of one of envpool's ids."""
    import envpool  # noqa: PLC0415

    settings = {"num_threads": 1} | settings
    if render_mode:
        settings["render_mode"] = render_mode
    settings |= {"num_envs": num_envs, "seed": seed}
    with lifecycle.threads_named("environment"):
        return _Pool(envpool.make(id_, env_type="gymnasium", **settings))


def _without_false_bounds(space: gymnasium.Space) -> gymnasium.Space:
    """Return a space in which a number's bounds are infinite where envpool has no bounds.

    It writes C++'s least positive and greatest number of the type.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({k: _without_false_bounds(v) for k, v in space.items()})
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return gymnasium.spaces.Box(low, high, space.shape, space.dtype.type)


@functools.cache
def _wrong_values() -> str:
    """Return what is wrong with the arrays of a well-known environment; empty if nothing is.

    Built for another NumPy, envpool before 1.0 returned one number in place of all of an array.
    """
    pool = _make("CartPole-v1", num_envs=2, seed=0)
    begin = pool.reset()[0].copy()
    after, rewards, *ends = pool.step(np.array([0, 1]))[:4]
    pushed = np.sign(after - begin)[:, 1].tolist()
    types = [array.dtype.name for array in (begin, after, rewards, *ends)]
    if types != ["float32"] * 3 + ["bool"] * 2 or begin.shape != (2, 4):
        return f"the states of two CartPoles are {list(begin.shape)}, of the types {types}"
    known = _FIRST_STATES.get(importlib.metadata.version("envpool"))
    is_other = known is not None and zlib.crc32(begin.tobytes()) != known
    if len(np.unique(begin)) < 8 or (np.abs(begin) > 0.05).any() or is_other:
        return f"two CartPoles began with the states {begin.tolist()}"
    if rewards.tolist() != [1, 1] or pushed != [-1, 1]:
        return f"two CartPoles went from {begin.tolist()} to {after.tolist()}"
    return ""
