"""The values that `auto` stands for, chosen from the cores, the GPU, the network and the level.

Actors, learners and evaluators call these functions; the process that starts logs the choice. The
choices that concern GPUs are expectations: they were not measured on a GPU.
"""

import dataclasses
import os
from typing import Any, NamedTuple

from impala_mm.config import flags, replay_mix
from impala_mm.config.flags import AUTO
from impala_mm.config.settings import Config

_LARGE_OBSERVATION = 1000  # numbers in an observation, from which on it counts as large
_GBIT = 125e6  # bytes/s of a link of 1 Gbit/s
_LARGE_NETWORK = 100_000  # weights, from which on inference is worth a learner's GPU


class AutoChoice(NamedTuple):
    """A choice and the reason for it."""

    value: str
    why: str = ""  # empty if the user chose the value


def num_actors(config: Config) -> int:
    """Return the number of actors that a process without --job_name starts on this machine."""
    if config.num_actors != AUTO:
        return config.num_actors
    # One for each core. A learner on the same cores still gets its share of them: actors wait while
    # its queue is full. In rounds each learner needs an actor of its own.
    return max(len(os.sched_getaffinity(0)), config.num_learners if config.rounds else 0)


def num_columns(config: Config, environment: Any) -> int:
    """Return the columns of an actor: its environments, times the agents of each.

    A large batch saves time where the network takes long to read an observation. `environment` is
    the EnvironmentSpec. In rounds, the actors of a run on one machine share a round's columns.
    """
    agents = environment.agents
    if config.num_envs != AUTO:
        return config.num_envs * agents
    most = 32 if is_large(environment.observation) else 16
    if not config.rounds:
        return max(most - most % agents, agents)
    columns = config.batch_size
    share = columns * max(config.num_learners, 1) // max(num_actors(config), 1)
    most = min(most, max(share, 1))
    return max((n for n in range(agents, most + 1, agents) if columns % n == 0), default=agents)


def is_large(observation: Any) -> bool:
    """Return whether reading an observation of this TensorSpec takes longer than the call itself.

    The call is that of the network, which has a cost of its own whatever the network reads.
    """
    return sum(part.shape.num_elements() for part in parts(observation)) >= _LARGE_OBSERVATION


def parts(observation: Any) -> list[Any]:
    """Return the TensorSpecs in an observation's spec, which may be a dict or tuple of these."""
    if hasattr(observation, "shape"):
        return [observation]
    values = observation.values() if isinstance(observation, dict) else observation
    return [part for value in values for part in parts(value)]


def group_sizes(
    config: Config, count: int, environment: Any, own_actors: bool, rounds: bool
) -> list[int]:
    """Return the sizes of the groups into which an actor divides its `count` columns.

    `environment` is the EnvironmentSpec. The columns of an environment's agents stay together.

    With two groups an actor steps one while its network reads the other, at the price of batches
    half as large. This pays off only where cores are idle, which is known only for `own_actors`:
    those that experiment.py itself started. `rounds`: whether the algorithm plays in rounds. More
    groups than rounds allow, or than there are environments, are refused.
    """
    wanted, agents = config.env_groups, environment.agents
    count //= agents
    check_groups(config, count)
    # While one group waited for the next policy, the other groups would act by the previous one.
    if rounds or config.deterministic_run:
        if wanted > 1:
            cause = f"--algorithm={config.algorithm}" if rounds else "--deterministic_run"
            flags.refuse(
                f"--env_groups={wanted}: {cause} makes actors wait for the next policy, which "
                f"several groups of environments cannot do; use --env_groups=1"
            )
        wanted = 1
    if wanted == AUTO:
        spare = own_actors and num_actors(config) < len(os.sched_getaffinity(0))
        wanted = 2 if spare and is_large(environment.observation) else 1
    return [n * agents for n in split_evenly(count, min(wanted, count))]


def check_groups(config: Config, count: int) -> None:
    """Refuse more groups in --env_groups than there are environments."""
    if config.env_groups > count:
        flags.refuse(
            f"--env_groups={config.env_groups}: an actor cannot divide {count} environments into "
            f"more than {count} groups; raise --num_envs or lower --env_groups"
        )


def uneven_groups(config: Config) -> str:
    """Return a sentence about groups whose sizes differ because of the flags; usually empty."""
    count, groups = config.num_envs, config.env_groups
    if AUTO in {count, groups} or count % groups == 0:
        return ""
    sizes = split_evenly(count, groups)
    equal = min(
        (n for n in range(1, count + 1) if count % n == 0), key=lambda n: (abs(n - groups), n)
    )
    return (
        f"--env_groups={groups} does not divide --num_envs={count}: the groups get {sizes[0]} or "
        f"{sizes[-1]} environments; --env_groups={equal} makes them equal"
    )


def needs_one_thread(config: Config, observation: Any, gpu: bool, is_built_in: bool) -> bool:
    """Return whether a learner, with a GPU or without, is fastest with one TensorFlow thread.

    An update of a small network is a hundred operations of some microseconds each; passing them
    from thread to thread costs more time than it saves. One thread is not enough where --xla
    compiles, since nothing else runs in that thread until it is done, or where the algorithm is not
    built in, since its Python code may wait in that thread for another operation.
    (`Config.update_threads` says which updates need a second one nevertheless.) `observation` is
    the TensorSpec of one.
    """
    threads = config.intra_op_threads or config.inter_op_threads
    return is_built_in and not (gpu or threads or config.xla or is_large(observation))


def split_evenly(count: int, groups: int) -> list[int]:
    """Return the sizes of `groups` parts of `count`, which differ by at most 1."""
    return [count // groups + (i < count % groups) for i in range(groups)]


def compression(config: Config, observation: Any) -> str:
    """Return the compression of what an actor sends: lz4 for images, however fast the network.

    `observation` is the TensorSpec of one.
    """
    if config.compression != "auto":
        return config.compression
    return "lz4" if _has_image(observation) else "none"


def is_image(part: Any) -> bool:
    """Return whether a part of an observation, a TensorSpec, is an image of bytes [H, W, C]."""
    return bool(part.shape.rank == 3 and part.dtype.name == "uint8")


def _has_image(observation: Any) -> bool:
    return any(map(is_image, parts(observation)))


def num_test_envs(config: Config) -> int:
    """Return the number of games that a test plays at the same time."""
    # Not chosen by speed: the results depend on it, and record it.
    return 16 if config.num_envs == AUTO else config.num_envs


def inference(
    config: Config, weights: int, device: str, rounds: bool, needs_actors: str = ""
) -> AutoChoice:
    """Return where actions are chosen if the learner trains `weights` numbers on `device`.

    `rounds`: whether the algorithm plays in rounds; `needs_actors`: that of its features.
    """
    if config.inference != "auto":
        return AutoChoice(config.inference)
    needed = {
        needs_actors: needs_actors,
        "the algorithm makes actors wait for the next policy": rounds,
        "--deterministic_run needs it": config.deterministic_run,
    }
    if reason := next((reason for reason, is_given in needed.items() if is_given), ""):
        return AutoChoice("actor", reason)
    if device == "/CPU:0":
        return AutoChoice("actor", "the learner has no GPU to run the network for all actors")
    if weights < _LARGE_NETWORK:
        return AutoChoice(
            "actor", f"{weights:,} weights take less time than a request to the learner"
        )
    return AutoChoice(
        "learner", f"it has a GPU, and {weights:,} weights are slow to compute on actors' cores"
    )


def for_task(config: Config, environment: Any, recorded: dict[str, Any] | None = None) -> Config:
    """Return the config with what `auto` stands for in the flags that follow the environment.

    `environment` is the EnvironmentSpec. `recorded` are the flags of the run that is resumed, or
    whose weights a new run starts with: it keeps its values, and those of earlier versions where it
    lacks a flag.
    """
    former = former_defaults(type(config))
    chosen = former | {
        "reward_clipping": "abs_one" if environment.emulator else "none",
        "subtract_mean_image": _suits_mean_image(config, environment),
    }
    if environment.actions.has_box:
        # With the values that suit choices, IMPALA does not learn such tasks.
        details = flags.infos(config)
        chosen |= {n: details[n].with_box for n in former if details[n].with_box is not None}
        # Two networks for large observations would double what most of the time goes to.
        chosen["separate_networks"] = not is_large(environment.observation)
    if recorded is not None:
        kept = {name: recorded.get(name, value) for name, value in former.items()}
        chosen |= {name: value for name, value in kept.items() if not _is_auto(value)}
        # Without images `Normaliser` would refuse it before `resume` says that the game differs.
        chosen["subtract_mean_image"] &= _has_image(environment.observation)
    is_new = recorded is None or config.mode == "train_from"
    if is_new and config.guides and "kl_mu_pi_cost" in chosen:
        # Where the teacher acts, it would pull the student to the teacher's policy.
        chosen["kl_mu_pi_cost"] = 0.0
    return adopt(config, chosen)


def _suits_mean_image(config: Config, environment: Any) -> bool:
    """Return whether a run that begins with random weights is to subtract the mean image.

    New unrolls alone count for the mean. A replay without a queue has none, and after updates from
    recorded games the first new unrolls would change all that the network reads.
    """
    if not (environment.emulator and _has_image(environment.observation)):
        return False
    if config.planned_offline_updates:
        return False
    return not config.replay or bool(replay_mix.parse(config.replay).queue.share)


def adopt(config: Config, chosen: dict[str, Any]) -> Config:
    """Return the config with these values in place of `auto`."""
    changes = {
        name: chosen.get(name, value)
        for name, value in task_flags(config).items()
        if _is_auto(value)
    }
    return dataclasses.replace(config, **changes)


def task_flags(config: Config) -> dict[str, Any]:
    """Return the values of the flags whose `auto` depends on the environment, by name.

    Runs record what it stands for, and keep it.
    """
    return {name: getattr(config, name) for name in _following(type(config))}


def _following(kind: type[Config]) -> list[str]:
    """Return the flags whose `auto` depends on the environment."""
    return [name for name, details in flags.infos(kind).items() if details.follows_environment]


def former_defaults(kind: type[Config]) -> dict[str, Any]:
    """Return the defaults of such flags before they were `auto`, by name.

    They are those of the classes that a type of settings extends.
    """
    former = {}
    for name in _following(kind):
        defaults = [vars(ancestor)[name] for ancestor in kind.__mro__ if name in vars(ancestor)]
        former[name] = next((value for value in defaults if not _is_auto(value)), defaults[0])
    return former


def _is_auto(value: Any) -> bool:
    return value in {AUTO, "auto"}


def pull_secs(asked: float, parameter_bytes: float) -> float:
    """Return the least seconds between two downloads of parameters to one host.

    `asked` is --min_pull_secs; if it is negative, downloads may use a tenth of 1 Gbit/s.
    """
    return parameter_bytes / (0.1 * _GBIT) if asked < 0 else asked
