"""The levels that the flags name: their specs, and the options they are made with."""

from typing import Any

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import OPTION_FLAGS, BadLevel, EnvironmentSpec


def describe_spaces(spec: EnvironmentSpec) -> dict[str, Any]:
    """What a network must fit, as people read it."""
    observation = spec.observation
    return {
        "actions": spec.num_actions,
        "observations": f"{observation.dtype.name} {observation.shape.as_list()}",
    }


def environment_options(config: Config) -> dict[str, Any]:
    """What environments are made with, besides the level."""
    return {name: getattr(config, name) for name in OPTION_FLAGS}


def level_specs(config: Config) -> dict[str, EnvironmentSpec]:
    """Those of --level_name; one network must fit all."""
    specs: dict[str, EnvironmentSpec] = {}
    for name in (part.strip() for part in config.level_name.split(",")):
        try:
            specs[name] = level_spec(name, **environment_options(config))
        except BadLevel as error:
            flags.refuse(f"--level_name={config.level_name}: {error}")
    (first, one), *others = specs.items()
    for name, other in others:
        for what, mine, theirs in (
            ("actions", one.num_actions, other.num_actions),
            ("observation", one.observation, other.observation),
            ("frames per step", one.action_repeats, other.action_repeats),
        ):
            if mine != theirs:
                hint = "; --full_action_space makes one network fit all games of Atari"
                flags.refuse(
                    f"--level_name: {first} and {name} differ in their {what} ({mine} and "
                    f"{theirs}){hint if what == 'actions' and other.scores else ''}"
                )
    return specs
