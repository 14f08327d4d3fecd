"""What the processes of a run make of the same flags, and must agree on: algorithm, levels, wire.

`learner_parts` and `actor_process` make it; the actor's `identity` goes with its hello, and
the learner refuses what differs from its own. Learners compare theirs, and their flags, at start.
"""

import dataclasses
import os
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import tensorflow as tf

import nets
from impala_mm import algorithms, devices, environments, flags, transport
from impala_mm.algorithms import Algorithm
from impala_mm.config import Config
from impala_mm.environments import EnvironmentSpec
from impala_mm.group import Group
from impala_mm.parameters import Layout
from impala_mm.trajectory import digest


class Agreement(NamedTuple):
    """Of one process."""

    algorithm: Algorithm
    layout: Layout  # of what actors receive
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


def make(
    config: Config, number: int, levels: dict[str, EnvironmentSpec] | None = None
) -> Agreement:
    """Refuses, in a sentence, flags that nothing can be made of.

    `number`: of this process among those of its role; its random numbers are its own. `levels`:
    those of the flags, where they were looked at before.
    """
    tf.random.set_seed(config.seed + 1000 * number)
    levels = levels or levels_of(config)
    spec = next(iter(levels.values()))
    try:
        algorithm = algorithms.make(config, spec)
    except (nets.UnknownNetwork, nets.Unsuitable) as error:
        flags.refuse(f"--agent_name={config.agent_name}: {error}")
    auto = config.agent_name == "auto"
    layout = Layout(algorithm.variables.acting, algorithm.variables.trained, config.parameter_dtype)
    identity = steps(config, levels) | {
        "run_id": f"{os.getpid()}-{time.time_ns()}",
        "length": algorithm.unroll.length,
        "network": nets.auto(spec.observation) if auto else config.agent_name,
        "unroll": digest(algorithm.unroll[2:]) + f" of {config.unroll_length}",
        "acting": layout.digest,
    }
    made_of = {
        "--algorithm": config.algorithm,
        "--agent_name": identity["network"],
        "--level_name": identity["level_name"],
        "--optimizer": config.optimizer,
        "--num_action_repeats": spec.action_repeats,
        **spaces(spec),
    }
    return Agreement(algorithm, layout, levels, identity, made_of)


def steps(config: Config, levels: dict[str, EnvironmentSpec]) -> dict[str, Any]:
    """The part of the identity that an actor has, too, whose learner infers: it needs no network.

    `levels` are those of --level_name, by name.
    """
    spec = next(iter(levels.values()))
    return {
        "protocol": transport.PROTOCOL,
        "inference": config.inference,
        "level_name": ",".join(levels),
        "algorithm": config.algorithm,
        "reward_clipping": config.reward_clipping,  # of what the network reads
        "options": ", ".join(f"--{n}={v}" for n, v in options(config).items()),
        "emulator": spec.emulator,
        "steps": f"{spaces(spec)}",
    }


def spaces(spec: EnvironmentSpec) -> dict[str, Any]:
    """What a network must fit, as people read it."""
    observation = spec.observation
    return {
        "actions": spec.num_actions,
        "observations": f"{observation.dtype.name} {observation.shape.as_list()}",
    }


def acting(config: Config) -> Config:
    """As who acts takes it: V-trace corrects where a learner computes otherwise."""
    if devices.computes_bfloat16():
        return config
    return dataclasses.replace(config, precision="float32")


class Differ(Exception):
    """Learners of one run are not of one mind; says in what."""


def compare(group: Group, config: Config, identity: dict[str, Any]) -> None:
    """Raises Differ, on all learners alike, where flags or what was made of them differ."""
    mine: dict[str, Hashable] = {
        f"--{f.name}": getattr(config, f.name)
        for f in dataclasses.fields(config)
        if not f.metadata["own"]
    }
    mine |= {name: value for name, value in identity.items() if name != "run_id"}
    everybodys = group.gather(mine, "agreement")
    for name in mine:
        ranks: dict[Hashable, list[str]] = {}
        for rank, theirs in enumerate(everybodys):
            ranks.setdefault(theirs.get(name), []).append(str(rank))
        if len(ranks) > 1:
            said = ", ".join(f"{value} on {' and '.join(on)}" for value, on in ranks.items())
            raise Differ(f"the learners' {name} differ: {said}; give all of them the same")


def addresses(group: Group, mine: str) -> list[str]:
    """Of all learners, in the order of ranks; Differ where two have the same."""
    everybodys = group.gather(mine, "addresses")
    for rank, address in enumerate(everybodys):
        if address in everybodys[:rank]:
            raise Differ(
                f"learners {everybodys.index(address)} and {rank} were both given {address}: each "
                f"needs an entry of its own in --learner_hosts"
            )
    return everybodys


def options(config: Config) -> dict[str, Any]:
    """What environments are made with, besides the level."""
    return {name: getattr(config, name) for name in environments.FLAGS}


def levels_of(config: Config) -> dict[str, EnvironmentSpec]:
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
