"""An adapter that gives environments of other APIs that of gymnasium.

These are environments of classic gym, those with the API of before gym 0.26 (a reset that takes no
seed and returns the observation alone, a step that returns a single `done`), and objects that only
have the methods. What an environment does decides, not the library that it comes from. No other
module imports gym.
"""

import contextlib
import inspect
import io
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

_RESET = inspect.signature(gymnasium.Env.reset).parameters
_RESET_ARGUMENTS = frozenset({"seed", "options"})


def adapt(environment: Any) -> Any:
    """Return an environment with gymnasium's API: the same object if it has that."""
    if not all(callable(getattr(environment, name, None)) for name in ("reset", "step")):
        return environment  # `MadeLevel` refuses it
    spaces = (getattr(environment, f"{of}_space", None) for of in ("observation", "action"))
    is_modern = isinstance(environment, gymnasium.Env) and not any(map(_is_of_gym, spaces))
    if is_modern and _arguments_of_reset(environment) == _RESET_ARGUMENTS:
        return environment
    return AdaptedEnv(environment)


class AdaptedEnv(gymnasium.Env):
    """An environment of another API, with that of gymnasium."""

    def __init__(self, adapted: Any):
        """Adapt an object with the methods reset and step."""
        self.adapted = adapted
        self._arguments = _arguments_of_reset(adapted)
        self.observation_space = _as_gymnasium_space(getattr(adapted, "observation_space", None))
        self.action_space = _as_gymnasium_space(getattr(adapted, "action_space", None))
        self.metadata = dict(getattr(adapted, "metadata", None) or {})
        mode = getattr(adapted, "render_mode", None)
        # Before gym 0.26 each call of render named its mode.
        modes = self.metadata.get("render.modes") or self.metadata.get("render_modes") or ()
        self._draws_by_mode = (
            mode is None
            and "rgb_array" in modes
            and "mode" in parameters_of(getattr(adapted, "render", None))
        )
        self.render_mode = "rgb_array" if self._draws_by_mode else mode

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment, also one below its wrappers."""
        if name.startswith("_") or name == "adapted":  # they are asked for before there is one
            raise AttributeError(name)
        find = getattr(self.adapted, "get_wrapper_attr", None)
        return find(name) if find else getattr(self.adapted, name)

    @property
    def unwrapped(self) -> gymnasium.Env:
        """The innermost environment if it is gymnasium's; otherwise this one."""
        innermost = getattr(self.adapted, "unwrapped", None)
        return innermost if isinstance(innermost, gymnasium.Env) else self

    @property
    def spec(self) -> EnvSpec | None:
        """The spec of the environment, which it may read itself."""
        return getattr(self.adapted, "spec", None)

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        getattr(self.adapted, "unwrapped", self.adapted).spec = spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; an environment whose reset takes no seed is seeded by its method."""
        if seed is not None and "seed" not in self._arguments:
            seeds = getattr(self.adapted, "seed", None)
            if callable(seeds):
                seeds(seed)
        arguments = {"seed": seed, "options": options}
        returned = self.adapted.reset(**{name: arguments[name] for name in self._arguments})
        return reset_of(returned, self.observation_space)

    def step(self, action: Any) -> Any:
        """Make one step."""
        return step_of(self.adapted.step(action))

    def render(self) -> Any:
        """Return the picture that the environment draws."""
        return self.adapted.render(**{"mode": "rgb_array"} if self._draws_by_mode else {})

    def close(self) -> None:
        """Close the environment, if it has a method for that."""
        if hasattr(self.adapted, "close"):
            self.adapted.close()


def reset_of(returned: Any, space: gymnasium.Space) -> Any:
    """Return (observation, info) of what a reset returned: of an observation alone, and no info."""
    if not isinstance(returned, tuple):
        return returned, {}
    if isinstance(space, gymnasium.spaces.Tuple) and space.contains(returned):
        return returned, {}
    return returned


def step_of(returned: Any) -> Any:
    """Return the five values of what a step returned.

    The `done` of four values counts as terminated, unless the info says that a time limit cut the
    episode.
    """
    if len(returned) != 4:
        return returned
    observation, reward, done, info = returned
    cut = bool(done and isinstance(info, Mapping) and info.get("TimeLimit.truncated"))
    return observation, reward, bool(done) and not cut, cut, info


def find_method(environment: Any, name: str) -> Callable[..., Any] | None:
    """Return the environment's method of this name, also one below wrappers, or None."""
    find = getattr(environment, "get_wrapper_attr", None)
    try:
        method = find(name) if find else getattr(environment, name, None)
    except AttributeError:
        return None
    return method if callable(method) else None


def parameters_of(
    function: Any, unknown: Mapping[str, inspect.Parameter] = types.MappingProxyType({})
) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; `unknown` of compiled code without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return unknown


def classic_registry() -> Mapping[str, Any]:
    """Return classic gym's registry; an empty one if gym is not installed."""
    with contextlib.redirect_stderr(io.StringIO()):  # each import prints a request to migrate
        try:
            import gym  # noqa: PLC0415
        except ImportError:
            return {}
    return gym.envs.registry


def gymnasiums_spec(name: str) -> EnvSpec:
    """Return gymnasium's spec for the environment `name` of classic gym's registry."""
    theirs = classic_registry()[name]
    return EnvSpec(
        name,
        theirs.entry_point,
        reward_threshold=theirs.reward_threshold,
        nondeterministic=theirs.nondeterministic,
        max_episode_steps=theirs.max_episode_steps,
        kwargs=theirs.kwargs,
    )


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors by which gymnasium, classic gym and imports say what is missing."""
    ours = gymnasium.error.Error
    return ImportError, ours, getattr(sys.modules.get("gym.error"), "Error", ours)


def _arguments_of_reset(environment: Any) -> frozenset[str]:
    """Return which of gymnasium's arguments the reset takes; some wrappers pass on any."""
    while any(p.kind is p.VAR_KEYWORD for p in parameters_of(environment.reset, _RESET).values()):
        if not hasattr(environment, "env"):
            return _RESET_ARGUMENTS
        environment = environment.env
    return _RESET_ARGUMENTS & parameters_of(environment.reset, _RESET).keys()


def _is_of_gym(space: Any) -> bool:
    """Return whether a space is classic gym's, which is loaded then."""
    return isinstance(space, getattr(sys.modules.get("gym.spaces"), "Space", ()))


def _as_gymnasium_space(space: Any) -> Any:
    """Convert a space of gym to gymnasium's; return one that has no counterpart unchanged."""
    if not _is_of_gym(space):
        return space
    theirs, ours = sys.modules["gym.spaces"], gymnasium.spaces
    convert = {
        theirs.Box: lambda: ours.Box(
            space.low, space.high, space.shape, np.dtype(space.dtype).type
        ),
        theirs.Discrete: lambda: ours.Discrete(int(space.n), start=int(space.start)),
        theirs.MultiDiscrete: lambda: ours.MultiDiscrete(space.nvec, np.dtype(space.dtype).type),
        theirs.MultiBinary: lambda: ours.MultiBinary(space.n),
        theirs.Dict: lambda: ours.Dict(
            {key: _as_gymnasium_space(part) for key, part in space.spaces.items()}
        ),
        theirs.Tuple: lambda: ours.Tuple([_as_gymnasium_space(part) for part in space.spaces]),
    }
    their_kind = next((kind for kind in convert if isinstance(space, kind)), None)
    return convert[their_kind]() if their_kind else space
