"""The choice of levels for a checkpoint: those that were asked for, else the run's own.

The jobs `evaluate` and `evaluator` call this. A suite's name stands for all of its levels.
"""

from collections.abc import Sequence
from typing import Any

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.environments import SUITES, types
from impala_mm.environments.make import level_spec
from impala_mm.policy.core import blaming_settings, config_for_playing, why_unsuitable
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.runtime.log import Say


def changed_flags(config: Config, given: Sequence[str]) -> dict[str, Any]:
    """Return the flags that replace the run's: the seed, and if given those of the environment.

    --eval_epsilon and --import are others, if they are given.
    """
    named = [name for name in (*types.OPTION_FLAGS, "eval_epsilon", "imports") if name in given]
    return {name: getattr(config, name) for name in named} | {"seed": config.seed}


def choose_levels(
    config: Config, given: Sequence[str], about: CheckpointInfo, say: Say
) -> list[str]:
    """Return the levels to play, without those of a suite that the network does not fit.

    A level that was named and does not fit ends the program.
    """
    trained = about.settings["level_name"]
    wanted = config.level_name if "level_name" in given else trained
    named = [part.strip() for part in (config.test_levels or wanted).split(",")]
    like = trained.split(",")[0].strip()
    with blaming_settings(about.settings):
        recorded = config_for_playing(about.settings, **changed_flags(config, given))
    options = {name: getattr(recorded, name) for name in types.OPTION_FLAGS}
    fitting, misfits = [], {}
    for name in named:
        of_suite = SUITES[name]().level_names(name, like) if name in SUITES else []
        if of_suite:
            say(f"checking which levels of {name} the network fits")
        for level in of_suite or [name]:
            misfit = why_unsuitable(about, level_spec(level, **options))
            if misfit and not of_suite:
                flags.refuse(misfit)
            elif misfit:
                misfits[level] = misfit
            else:
                fitting.append(level)
    if misfits:
        first = next(iter(misfits.values()))
        if not fitting:
            flags.refuse(f"none of {config.test_levels} fits: {first}")
        say(
            f"{len(misfits)} levels do not fit the network and are left out ({first}): "
            f"{', '.join(misfits)}"
        )
    return fitting
