"""An adapter that gives environments of classic gym 0.26 the API of gymnasium.

No other module imports gym. Its environment checker fails with NumPy 2 and is switched off.
Environments written for gym before 0.26 (reset without a seed, a single `done`) are wrapped by
gym's own compatibility layer.
"""

import contextlib
import inspect
import io
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments import render

with contextlib.redirect_stderr(io.StringIO()):  # each import prints a request to migrate
    import gym


class ClassicGymEnv(gymnasium.Env):
    """One environment of gym's registry."""

    def __init__(self, name: str, **kwargs: Any):
        """Make the environment `name` with these arguments."""
        made = gym.make(name, disable_env_checker=True, **kwargs)
        # gym seeds an environment of before 0.26 by its method.
        self._takes_seed = not _is_old(made.unwrapped) or hasattr(made.unwrapped, "seed")
        if _is_old(made.unwrapped):
            made.close()
            made = gym.make(name, disable_env_checker=True, apply_api_compatibility=True, **kwargs)
        self._made = made
        self.observation_space = _as_gymnasium_space(made.observation_space)
        self.action_space = _as_gymnasium_space(made.action_space)
        self.render_mode = made.render_mode
        self.metadata = dict(made.metadata)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        return self._made.reset(seed=seed if self._takes_seed else None, options=options)

    def step(self, action: Any) -> Any:
        """Make one step."""
        return self._made.step(action)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment, which gym's wrappers pass on."""
        return getattr(self._made, name)

    def render(self) -> Any:
        """Return the picture that the environment draws."""
        return self._made.render()

    def close(self) -> None:
        """Close the environment."""
        self._made.close()


def can_render(name: str) -> bool:
    """Return whether the environment `name` declares that it draws pictures."""
    return render.can_render(gym.envs.registry[name].entry_point)


def _is_old(environment: Any) -> bool:
    """Return whether the environment's reset takes no seed, as before gym 0.26."""
    parameters = inspect.signature(environment.reset).parameters.values()
    return not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def _as_gymnasium_space(space: Any) -> Any:
    """Convert a space of gym to gymnasium's; return one that has no counterpart unchanged."""
    theirs, ours = gym.spaces, gymnasium.spaces
    convert = {
        theirs.Box: lambda: ours.Box(
            space.low, space.high, space.shape, np.dtype(space.dtype).type
        ),
        theirs.Discrete: lambda: ours.Discrete(int(space.n), start=int(space.start)),
        theirs.MultiDiscrete: lambda: ours.MultiDiscrete(space.nvec, np.dtype(space.dtype).type),
        theirs.MultiBinary: lambda: ours.MultiBinary(space.n),
        theirs.Dict: lambda: ours.Dict(
            {key: _as_gymnasium_space(each) for key, each in space.spaces.items()}
        ),
        theirs.Tuple: lambda: ours.Tuple([_as_gymnasium_space(each) for each in space.spaces]),
    }
    known = next((kind for kind in convert if isinstance(space, kind)), None)
    return convert[known]() if known else space
