"""Environments: finding a level by its name, and stepping many copies of it together.

Actors, evaluation and inference step environments; learners read their specs. This package must
import nothing above `runtime`: an environment does not depend on networks, unrolls or learners.

Levels come in suites. A suite is one class, which answers for the levels whose names begin with the
suite's, as in `grid:8`, and is added from outside by one line:

    @register("grid")
    class Grid(Suite):
        levels = ("5", "8")

        def maker(self, level):
            return functools.partial(GridWorld, size=int(level))

--import names the module with that line. The fall-back for all other names is the
suite `gymnasium`. This module imports neither TensorFlow nor gymnasium.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from impala_mm.config.registry import Registry
from impala_mm.environments.types import Environments, EnvironmentSpec, Options, ReferenceScores


class Level:
    """A level as its suite plays it, with the options of its environments."""

    name: str  # as the user wrote it

    def spec(self) -> EnvironmentSpec:
        """Return the properties that networks and learners need."""
        raise NotImplementedError

    def make(
        self, num_envs: int, seed: int, renders: bool = False, workers: int = 0
    ) -> Environments:
        """Return `num_envs` copies; number i is seeded with `seed` + i.

        With `renders`, environment 0 has a `picture`. A vector with threads or processes of its own
        ignores `workers`.
        """
        raise NotImplementedError

    def action_names(self) -> list[str]:
        """Return the names of Discrete actions in order; empty if they have none."""
        return []


class Suite:
    """Levels that are found and made in one way. A suite overrides `maker`, or `find`."""

    # Names without the suite's; --test_levels=SUITE and --level_name=SUITE play all of them.
    levels: Sequence[str] = ()
    scores: Mapping[str, ReferenceScores] = {}  # by level, to normalise returns
    reward_thresholds: Mapping[str, float] = {}  # by level: the mean return that ends a run

    def maker(self, level: str) -> Callable[..., Any] | None:
        """Return a class or function that makes one environment; None if there is no such level.

        `level` is what follows the suite's name and a colon. The maker is called with the arguments
        in --env_kwargs, and with render_mode="rgb_array" for pictures, if it takes a render_mode.
        If it takes num_envs, it makes a vector of so many environments (see `vectors`).
        """
        return None

    def find(self, level: str, level_name: str, options: Options) -> Level | None:
        """Return a level that steps its environments in its own way, such as a vector in C++.

        `level_name` is the complete name. None: `maker` makes its environments one by one.
        """
        return None

    def adopt(self, level_name: str, registered: Any, options: Options) -> Level | None:
        """Return the level if the suite plays this id of gymnasium's registry in its own way."""
        return None

    def level_names(self, name: str, like: str) -> list[str]:
        """Return the complete names of `levels`, where the suite's name is `name`.

        `like` is a level that the run was trained on: ids may be of the same kind.
        """
        return [f"{name}:{level}" for level in self.levels]

    def trained_names(self, name: str) -> list[str]:
        """Return the names of the levels that --level_name=SUITE trains on."""
        return self.level_names(name, "")


# A name that begins with a dot is the end of a file's name, and `level` is then its path.
BUILT_IN: Mapping[str, type[Suite] | str] = {
    "catch": "impala_mm.environments.small_games:CatchSuite",
    "memory": "impala_mm.environments.small_games:MemorySuite",
    "tmaze": "impala_mm.environments.small_games:TMazeSuite",
    "dmlab": "impala_mm.environments.dmlab:DMLab",
    "atari57": "impala_mm.environments.atari:Atari57",
    "envpool": "impala_mm.environments.envpool_suite:Envpool",
    "dmc": "impala_mm.environments.dm_control:DMC",
    "metaworld-mt10": "impala_mm.environments.level_sets:MetaWorldMT10",
    "minigrid": "impala_mm.environments.level_sets:MiniGrid",
    "procgen16": "impala_mm.environments.level_sets:Procgen16",
    "procgen16-hard": "impala_mm.environments.level_sets:Procgen16Hard",
    ".environment": "impala_mm.environments.pickled:Files",
    "gym": "impala_mm.environments.gym_suites:ClassicGym",
    "gymnasium": "impala_mm.environments.gym_suites:Gymnasium",
}
SUITES: Registry[type[Suite]] = Registry("suite", BUILT_IN)
register = SUITES.register
