"""DeepMind Control (arXiv 1801.00690): simulated robots, as the suite `dmc`: `dmc:cheetah-run`.

Every task brings a reward from 0 to 1 a step, so that returns are from 0 to 1,000.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments import Suite, packages
from impala_mm.environments.types import ReferenceScores

# The tasks that papers compare; the package has more, which have names, too.
_TASKS = (
    "acrobot-swingup acrobot-swingup_sparse ball_in_cup-catch cartpole-balance "
    "cartpole-balance_sparse cartpole-swingup cartpole-swingup_sparse cheetah-run finger-spin "
    "finger-turn_easy finger-turn_hard fish-upright fish-swim hopper-stand hopper-hop "
    "humanoid-stand humanoid-walk humanoid-run manipulator-bring_ball pendulum-swingup "
    "point_mass-easy reacher-easy reacher-hard swimmer-swimmer6 swimmer-swimmer15 walker-stand "
    "walker-walk walker-run"
)


class DMControl(gymnasium.Env):
    """A task that is seen by its state: the parts of its observation, joined, float32 [N]."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        domain: str,
        task: str,
        render_mode: str | None = None,
        camera: int = 0,
        **task_kwargs: Any,
    ):
        """Load a task with the arguments of its function; pictures are those of a camera."""
        from dm_control import suite  # noqa: PLC0415

        self._simulation = suite.load(domain, task, task_kwargs or None)
        self.render_mode, self._camera = render_mode, camera
        self.metadata = {**self.metadata, "render_fps": 1 / self._simulation.control_timestep()}
        seen = self._simulation.observation_spec().values()
        size = sum(int(np.prod(part.shape)) for part in seen)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        taken = self._simulation.action_spec()
        low, high = (bound.astype(np.float32) for bound in (taken.minimum, taken.maximum))
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start an episode from a pose that the task draws."""
        if seed is not None:
            self._simulation.task.random.seed(seed)
        return _join(self._simulation.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Make one step; the time of an episode truncates it."""
        now = self._simulation.step(action)
        failed = now.last() and now.discount == 0
        return _join(now.observation), now.reward, failed, now.last() and not failed, {}

    def render(self) -> np.ndarray:
        """Return a picture, uint8 [240, 320, 3]."""
        return self._simulation.physics.render(240, 320, camera_id=self._camera)

    def close(self) -> None:
        """Free the simulator."""
        self._simulation.close()


def _join(parts: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts.values()]).astype(np.float32)


class DMC(Suite):
    """The tasks of dm_control.suite; those of `levels` are the ones that are compared."""

    levels: Sequence[str] = tuple(_TASKS.split())
    scores: Mapping[str, ReferenceScores] = dict.fromkeys(levels, ReferenceScores(0, 1000))

    def maker(self, level: str) -> Callable[..., Any] | None:
        """Return what makes a task; raise BadLevel if dm_control is not installed."""
        packages.require(f"dmc:{level}", "dm_control", "dm-control")
        from dm_control import suite  # noqa: PLC0415

        domain, _, task = level.partition("-")
        return partial(DMControl, domain, task) if (domain, task) in suite.ALL_TASKS else None
