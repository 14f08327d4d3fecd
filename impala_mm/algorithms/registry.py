"""Algorithms by name: those of this package, and modules that users write."""

import dataclasses
import importlib

from impala_mm.algorithms.interface import Algorithm
from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import devices

BUILT_IN = ("impala",)


def make_algorithm(config: Config, environment: EnvironmentSpec) -> Algorithm:
    """Return the algorithm that --algorithm names, built for this environment."""
    config = dataclasses.replace(
        config, precision=devices.resolve_precision(config.precision, environment.observation)
    )
    name = config.algorithm
    module = f"{__package__}.{name}" if name in BUILT_IN else name
    try:
        made = importlib.import_module(module).make(config, environment)
    except ModuleNotFoundError as error:
        if error.name not in {module, module.split(".")[0]}:
            raise
        flags.refuse(
            f"--algorithm={name}: there is no such algorithm; write {', '.join(BUILT_IN)} or the "
            f"name of a module of yours (package.module)"
        )
    if getattr(made, "max_lag", None) is not None:
        flags.refuse(
            f"--algorithm={name}: its max_lag={made.max_lag} has no effect any more; with "
            f"`rounds = True` every batch is played by the newest policy"
        )
    return made
