"""An algorithm, built for the levels of the flags, with what the processes of a run must agree on.

Learners, actors and policies make one each. An actor's `identity` goes with its hello, and the
learner refuses what differs from its own; learners compare theirs, and their flags, at start.
"""

import dataclasses
import os
import time
from typing import Any, NamedTuple

import tensorflow as tf

import nets
from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Algorithm
from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.trajectory import structure_digest
from impala_mm.environments import from_flags
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import devices


class Agent(NamedTuple):
    """An algorithm as one process has it."""

    algorithm: Algorithm
    layout: ParameterLayout  # of what actors receive
    levels: dict[str, EnvironmentSpec]  # by name; actors play them in turn
    identity: dict[str, Any]  # what is compared, and names for it that people read
    made_of: dict[str, Any]  # what a run cannot change when it goes on, as people read it

    @property
    def spec(self) -> EnvironmentSpec:
        """Of any level: observations, actions and repeats are the same for all."""
        return next(iter(self.levels.values()))

    @property
    def weights(self) -> int:
        """How many numbers are trained."""
        return sum(int(v.shape.num_elements()) for v in self.algorithm.variables.trained)


def make_agent(
    config: Config, number: int, levels: dict[str, EnvironmentSpec] | None = None
) -> Agent:
    """Refuses, in a sentence, flags that nothing can be made of.

    `number`: of this process among those of its role; its random numbers are its own. `levels`:
    those of the flags, where they were looked at before.
    """
    tf.random.set_seed(config.seed + 1000 * number)
    levels = levels or from_flags.level_specs(config)
    spec = next(iter(levels.values()))
    try:
        algorithm = registry.make_algorithm(config, spec)
    except (nets.UnknownNetwork, nets.Unsuitable) as error:
        flags.refuse(f"--agent_name={config.agent_name}: {error}")
    auto = config.agent_name == "auto"
    layout = ParameterLayout(
        algorithm.variables.acting, algorithm.variables.trained, config.parameter_dtype
    )
    identity = stepping_identity(config, levels) | {
        "run_id": f"{os.getpid()}-{time.time_ns()}",
        "length": algorithm.unroll.length,
        "network": nets.auto(spec.observation) if auto else config.agent_name,
        "unroll": structure_digest(algorithm.unroll[2:]) + f" of {config.unroll_length}",
        "acting": layout.digest,
    }
    made_of = {
        "--algorithm": config.algorithm,
        "--agent_name": identity["network"],
        "--level_name": identity["level_name"],
        "--optimizer": config.optimizer,
        "--num_action_repeats": spec.action_repeats,
        **from_flags.describe_spaces(spec),
    }
    return Agent(algorithm, layout, levels, identity, made_of)


def stepping_identity(config: Config, levels: dict[str, EnvironmentSpec]) -> dict[str, Any]:
    """The part of the identity that an actor has, too, whose learner infers: it needs no network.

    `levels` are those of --level_name, by name.
    """
    spec = next(iter(levels.values()))
    return {
        "inference": config.inference,
        "level_name": ",".join(levels),
        "algorithm": config.algorithm,
        "reward_clipping": config.reward_clipping,  # of what the network reads
        "options": ", ".join(
            f"--{n}={v}" for n, v in from_flags.environment_options(config).items()
        ),
        "emulator": spec.emulator,
        "steps": f"{from_flags.describe_spaces(spec)}",
    }


def config_for_acting(config: Config) -> Config:
    """As who acts takes it: V-trace corrects where a learner computes otherwise."""
    if devices.computes_bfloat16():
        return config
    return dataclasses.replace(config, precision="float32")
