"""What the processes of a run make of the same flags, and must agree on: algorithm, levels, wire.

`processes` makes it in a learner and in each actor; the actor's `identity` goes with its hello, and
the learner refuses what differs from its own.
"""

import os
import time
from typing import Any, NamedTuple

import tensorflow as tf

import nets
from impala_mm import algorithms, environments, flags, transport
from impala_mm.algorithms import Algorithm
from impala_mm.config import Config
from impala_mm.environments import EnvironmentSpec
from impala_mm.parameters import Layout
from impala_mm.trajectory import digest


class Agreement(NamedTuple):
    """Of one process."""

    algorithm: Algorithm
    layout: Layout  # of what actors receive
    levels: dict[str, EnvironmentSpec]  # by name; actors play them in turn
    identity: dict[str, Any]  # what is compared, and names for it that people read

    @property
    def spec(self) -> EnvironmentSpec:
        """Of any level: observations, actions and repeats are the same for all."""
        return next(iter(self.levels.values()))


def make(config: Config) -> Agreement:
    """Refuses, in a sentence, flags that nothing can be made of."""
    tf.random.set_seed(config.seed + 1000 * config.task)
    levels = _levels(config)
    spec = next(iter(levels.values()))
    try:
        algorithm = algorithms.make(config, spec)
    except (nets.UnknownNetwork, nets.Unsuitable) as error:
        flags.refuse(f"--agent_name={config.agent_name}: {error}")
    auto = config.agent_name == "auto"
    layout = Layout(algorithm.variables.acting, algorithm.variables.trained, config.parameter_dtype)
    identity = {
        "protocol": transport.PROTOCOL,
        "run_id": f"{os.getpid()}-{time.time_ns()}",
        "level_name": ",".join(levels),
        "algorithm": config.algorithm,
        "reward_clipping": config.reward_clipping,  # of what the network reads
        "options": ", ".join(f"--{n}={v}" for n, v in options(config).items()),
        "emulator": spec.emulator,
        "network": nets.auto(spec.observation) if auto else config.agent_name,
        "unroll": digest(algorithm.unroll[2:]) + f" of {config.unroll_length}",
        "acting": layout.digest,
    }
    return Agreement(algorithm, layout, levels, identity)


def options(config: Config) -> dict[str, Any]:
    """What environments are made with, besides the level."""
    return {name: getattr(config, name) for name in environments.FLAGS}


def _levels(config: Config) -> dict[str, EnvironmentSpec]:
    """Those of --level_name; one network must fit all."""
    specs: dict[str, EnvironmentSpec] = {}
    for name in (part.strip() for part in config.level_name.split(",")):
        try:
            specs[name] = environments.spec(name, **options(config))
        except environments.BadLevel as error:
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
