"""An algorithm built for the levels in the flags, with what the processes of a run must agree on.

Every learner, actor and policy makes one `Agent`. An actor sends its `identity` when it connects,
and the learner refuses an actor if what they must share differs. Learners compare their identities
and their flags with each other at the start.
"""

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

import nets
from impala_mm.algorithms.interface import Algorithm, PolicyLoader, Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.algorithms.parts import networks
from impala_mm.config import auto, flags, setting_files
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import structure_digest
from impala_mm.data.variables import BadVariables, ParameterLayout
from impala_mm.environments import from_flags
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import devices


class Agent(NamedTuple):
    """The algorithm of one process and what it was built from."""

    algorithm: Algorithm
    layout: ParameterLayout  # of the variables that actors receive
    levels: dict[str, EnvironmentSpec]  # by name; the actors take them in turn
    # What an actor and its learner tell each other, by name. "shared" are the texts that must be
    # equal, by the words in which a refusal names them.
    identity: dict[str, Any]
    made_of: dict[str, Any]  # the values that a resumed run must not change, by name
    # Names of the flags that a built-in algorithm reads, or that another one has read until now.
    flags_read: set[str]

    @property
    def spec(self) -> EnvironmentSpec:
        """The spec of the first level; all have the same observations, actions and repeats."""
        return next(iter(self.levels.values()))

    @property
    def weights(self) -> int:
        """The number of trained weights."""
        return sum(int(v.shape.num_elements()) for v in self.algorithm.variables.trained)


def make_agent(
    config: Config,
    number: int | None,
    levels: dict[str, EnvironmentSpec] | None = None,
    role: Role = Role.LEARNER,
    load_policy: PolicyLoader | None = None,
    trained_on: Sequence[str] = (),
) -> Agent:
    """Build the algorithm that the flags name; refuse flags that do not fit together.

    `number` is that of this process among the processes of its role; it makes the process's random
    numbers differ from those of the others. None leaves TensorFlow's seed as it is, which must not
    be set while another thread computes. `levels` are the specs of --level_name, if the caller has
    them already. `role` says what the algorithm is used for. A learner passes `load_policy`, for
    the policies of other runs that the algorithm's flags name. `trained_on` are the levels of the
    run whose policy plays these levels, if they are others.
    """
    if number is not None:
        tf.random.set_seed(config.seed + 1000 * number)
    levels = levels or from_flags.level_specs(config)
    spec = next(iter(levels.values()))
    # With --discretization the spec has choices in place of numbers.
    if config.discretization == "none" and (why := setting_files.why_unsuited(config.preset, spec)):
        flags.refuse(why)
    config = auto.for_task(config, spec)
    flags_read = set[str]()
    try:
        is_built_in = config.algorithm in BUILT_IN
        read = None if is_built_in else flags_read
        names = list(trained_on or levels)
        # Actors take the levels in turn.
        level = (number or 0) % len(names) if role is Role.ACTOR else 0
        if role is Role.EVALUATOR and len(levels) == 1 and spec.level_name in names:
            level = names.index(spec.level_name)
        setup = Setup(role, levels=len(names), level=level)
        algorithm = make_algorithm(config, spec, setup, read)
        if is_built_in:
            kind = Config.of_algorithm(config.algorithm)
            flags_read |= flags.infos(kind).keys() - kind.ignored
        algorithm.variables.check()
        if load_policy:
            algorithm.features.load_policies(load_policy)
            algorithm.load_policies(load_policy)
        if load_policy and number is not None:
            tf.random.set_seed(config.seed + 1000 * number)  # a loaded policy has set its own
    except nets.Unsuitable as error:
        flags.refuse(f"--agent_name={config.agent_name}: {error}")
    except (UnsuitableActions, BadVariables, UserMistake) as error:
        flags.refuse(f"--algorithm={config.algorithm}: {error}")
    layout = ParameterLayout(
        algorithm.variables.acting, algorithm.variables.trained, config.parameter_dtype
    )
    network = algorithm.network_name or config.agent_name
    box = f"{config.box_policy}, {config.box_deviation} deviation"
    identity = stepping_identity(config, levels) | {
        "run_id": f"{os.getpid()}-{time.time_ns()}",
        "length": algorithm.unroll.length,
        # What `auto` stands for, which actors adopt.
        "follows_task": tuple(auto.task_flags(config).items()),
    }
    identity["shared"] |= {
        "network (--agent_name and the flags of networks)": networks.describe(config, network),
        "unroll layout (--unroll_length, observations, actions)": (
            f"{structure_digest(algorithm.unroll[2:])} of {config.unroll_length}"
        ),
        "normalisation (--normalize_observations, --subtract_mean_image, --normalize_rewards, "
        "--value_normalization)": _normalised(config),
        "size of rewards (--reward_scaling, --max_abs_reward)": (
            f"scaled by {config.reward_scaling:g}, at most {config.max_abs_reward:g}"
        ),
        "--reward_clipping": config.reward_clipping,  # of the rewards that the network reads
        "policy of Box actions (--box_policy, --box_deviation)": box,
        "layout of parameters": layout.digest,
        **_shared_flags(config),
    }
    made_of = {
        **flags.kept(Config.of_algorithm(config.algorithm).of(config), "run", "weights"),
        "--agent_name": network,
        **networks.recorded(config),
        "--level_name": identity["level_name"],
        "--num_action_repeats": spec.action_repeats,
        **from_flags.describe_spaces(spec),
        **({"--box_policy": box} if spec.actions.has_box else {}),
        **{f"--{name}": getattr(config, name) for name in from_flags.choice_flags(config)},
        **algorithm.made_of,
    }
    return Agent(algorithm, layout, levels, identity, made_of, flags_read)


def _normalised(config: Config) -> str:
    """Return what is normalised, in words."""
    kinds = {
        "observations": config.normalize_observations,
        "rewards": config.normalize_rewards,
        "images": config.subtract_mean_image,
        "values": config.value_normalization == "popart",
    }
    return " and ".join(kind for kind, normalises in kinds.items() if normalises) or "nothing"


def _shared_flags(config: Config) -> dict[str, str]:
    """Return the algorithm's own flags that actors and learners must share, by their words."""
    shared = {f.name for f in dataclasses.fields(Config)}
    return {
        f"--{f.name}, a flag of the algorithm,": flags.format_value(getattr(config, f.name))
        for f in dataclasses.fields(config)
        if f.name not in shared and not (flags.info(f).own or flags.info(f).learner_only)
    }


def stepping_identity(config: Config, levels: dict[str, EnvironmentSpec]) -> dict[str, Any]:
    """Return the part of the identity that needs no network.

    With --inference=learner it is all that an actor has. `levels` are those of --level_name.
    """
    spec = next(iter(levels.values()))
    return {
        "inference": config.inference,
        "level_name": ",".join(levels),
        "shared": {
            "environment's options": ", ".join(
                f"--{n}={flags.format_value(v)}"
                for n, v in from_flags.environment_options(config).items()
            ),
            "emulator": spec.emulator,
            "algorithm (--algorithm)": config.algorithm,
            "--deterministic_run": str(config.deterministic_run),
            "observations and actions": (
                f"{from_flags.describe_spaces(spec)}{' with masks' if spec.masks else ''}"
            ),
        },
    }


def config_for_acting(config: Config) -> Config:
    """Return the config used for acting: float32 where bfloat16 is unsupported.

    The learner may compute in another precision; V-trace corrects for the difference.
    """
    if devices.computes_bfloat16():
        return config
    return dataclasses.replace(config, precision="float32")
