"""Making environments by the name of their level, and reading what is known of a level.

`options` are fields of `Options`. BadLevel is raised if a level cannot be played with them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from impala_mm.environments import SUITES, Level
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import BadLevel, Environments, EnvironmentSpec, Options

if TYPE_CHECKING:
    from impala_mm.environments.levels import MadeLevel


def level_names(text: str) -> list[str]:
    """Return the levels of a list separated by commas; a suite's name stands for all it has."""
    names: list[str] = []
    for name in map(str.strip, text.split(",")):
        names += (SUITES[name]().trained_names(name) if name in SUITES else []) or [name]
    return names


def find_level(level_name: str, **options: Any) -> Level:
    """Return a level by its name, from the suite whose name it begins with.

    A suite of one level has its name. The file of a level ends in the suite's name. All other names
    are ids of gymnasium or classic gym, or name a module: see `gym_suites`.
    """
    from impala_mm.environments.levels import MadeLevel  # noqa: PLC0415 - it loads gymnasium
    from impala_mm.environments.vectors import level_of  # noqa: PLC0415

    chosen = Options(**options)
    prefix, _, rest = level_name.partition(":")
    named = {prefix if rest else level_name.lower(): rest, Path(level_name).suffix: level_name}
    for name, level in (named | {"gymnasium": level_name}).items():
        if name not in SUITES:
            continue
        suite = SUITES[name]()
        if own := suite.find(level, level_name, chosen):
            break
        if maker := suite.maker(level):
            threshold, scores = suite.reward_thresholds.get(level), suite.scores.get(level)
            own = level_of(level_name, maker, chosen, reward_threshold=threshold, scores=scores)
            break
        if suite.levels:
            some = ", ".join(suite.level_names(name, "")[:5])
            raise BadLevel(f"{level_name} is no level of the suite {name}, which has {some} ...")
    assert own  # the last suite raises BadLevel
    if isinstance(own, MadeLevel):
        own.refuse_others_options()
    return own


def make_environments(
    level_name: str,
    num_envs: int,
    seed: int,
    renders: bool = False,
    workers: int = 0,
    **options: Any,
) -> Environments:
    """Make `num_envs` copies of a level; number i is seeded with `seed` + i.

    They step in `workers` processes, or in this one if that is 0; games of Atari have threads of
    their own. With `renders`, environment 0 has a `picture`, which costs time and does not change
    the game.
    """
    return find_level(level_name, **options).make(num_envs, seed, renders, workers)


def level_spec(level_name: str, **options: Any) -> EnvironmentSpec:
    """Return the spec of a level's environments; unless it is Atari's, one is made and closed."""
    from impala_mm.environments.level_sets import published_scores  # noqa: PLC0415

    spec = find_level(level_name, **options).spec()
    return spec._replace(scores=spec.scores or published_scores(level_name))


def action_names(level_name: str, actions: ActionSpec, **options: Any) -> list[str]:
    """Return the names of Discrete actions in order, or their numbers if they have no names.

    For actions that are not a single choice the list is empty.
    """
    if actions.discrete is None:
        return []
    names = find_level(level_name, **options).action_names()
    return names if len(names) == actions.discrete else list(map(str, range(actions.discrete)))


def made_level(level_name: str, **options: Any) -> "MadeLevel":
    """Return a level whose environments are made one by one; not for Atari's games."""
    from impala_mm.environments.levels import MadeLevel  # noqa: PLC0415

    level = find_level(level_name, **options)
    assert isinstance(level, MadeLevel)
    return level
