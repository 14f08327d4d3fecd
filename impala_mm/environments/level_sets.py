"""Sets of levels whose results are compared: procgen16, procgen16-hard, minigrid, metaworld-mt10.

The name of a set stands for all of its levels, in --level_name and --test_levels. level_sets.csv
names levels that others make, and the scores by which their returns are normalised:

    procgen16         the easy and the hard levels of Procgen, by the constants in the appendix of
                      arXiv 1912.01588: play that sees nothing, and the most that is possible
    minigrid          some of MiniGrid's, of rising difficulty: its returns are from 0 to 1
    metaworld-mt10    the ten tasks of MetaWorld's MT10 (arXiv 1910.10897), which observe the number
                      of their task; 10 is the most that a step can bring, in 500 steps
"""

import csv
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_mm.environments import Level, Suite, packages
from impala_mm.environments.types import BadLevel, Options, ReferenceScores

with Path(__file__).with_name("level_sets.csv").open(newline="") as _file:
    _SETS: dict[str, dict[str, ReferenceScores]] = {}
    for _row in csv.DictReader(_file):
        _scores = ReferenceScores(float(_row["low"]), float(_row["high"]))
        _SETS.setdefault(_row["suite"], {})[_row["level"]] = _scores


def published_scores(level_name: str) -> ReferenceScores | None:
    """Return the scores of a level that is in one of the sets."""
    return next((levels[level_name] for levels in _SETS.values() if level_name in levels), None)


class _LevelSet(Suite):
    """Levels of other suites."""

    def find(self, level: str, level_name: str, options: Options) -> Level:
        """Return `minigrid:ID`, whose first part is the name of a module, too."""
        from impala_mm.environments.gym_suites import Gymnasium  # noqa: PLC0415

        if level:
            return Gymnasium().find(level_name, level_name, options)
        raise BadLevel(f"{level_name} is a set of levels: name one of them, {self.levels[0]}")

    def level_names(self, name: str, like: str) -> list[str]:
        """Return the names of all levels."""
        return list(self.levels)


class Procgen16(_LevelSet):
    """Procgen's games, of which envpool has the easy levels."""

    levels: Sequence[str] = tuple(_SETS["procgen16"])


class Procgen16Hard(_LevelSet):
    """The hard levels."""

    levels: Sequence[str] = tuple(_SETS["procgen16-hard"])


class MiniGrid(_LevelSet):
    """MiniGrid's levels."""

    levels: Sequence[str] = tuple(_SETS["minigrid"])


class MetaWorldMT10(Suite):
    """The tasks of MetaWorld's MT10, each with 50 places of its objects."""

    levels = tuple(
        f"{task}-v3"
        for task in "reach push pick-place door-open drawer-open drawer-close "
        "button-press-topdown peg-insert-side window-open window-close".split()
    )
    scores: Mapping[str, ReferenceScores] = dict.fromkeys(levels, ReferenceScores(0, 5000))

    def maker(self, level: str) -> Callable[..., Any] | None:
        """Return what makes a task."""
        if level not in self.levels:
            return None
        packages.require(f"MetaWorld's {level}", "metaworld", "metaworld")
        return functools.partial(_metaworld, level, self.levels.index(level), len(self.levels))


def _metaworld(
    task: str, number: int, tasks: int, seed: int = 0, render_mode: str | None = None, **kwargs: Any
) -> Any:
    """Make a task that observes its number among all; `seed` draws the places of its objects."""
    import metaworld  # noqa: PLC0415

    chosen = {"use_one_hot": True, "env_id": number, "num_tasks": tasks, "render_mode": render_mode}
    return metaworld.make_mt_envs(task, seed=seed, **chosen, **kwargs)
