"""What `auto` stands for: numbers and places, from cores, GPU and network, with the reason.

Those about GPUs are what we expect: no table was measured on one. What was chosen is said.
"""

import os
from typing import Any, NamedTuple

from impala_mm.config.flags import AUTO
from impala_mm.config.settings import Config

_LARGE_OBSERVATION = 1000  # numbers of an observation that is large
_GBIT = 125e6  # bytes/s
_LARGE_NETWORK = 100_000  # weights of a network that is worth a GPU's time


class AutoChoice(NamedTuple):
    """What was chosen, and why; why is empty where the user had chosen."""

    value: str
    why: str = ""


def num_actors(config: Config) -> int:
    """How many a learner starts on this machine, where it does."""
    # One for each core: a learner that shares them takes its part, and holds actors back.
    return len(os.sched_getaffinity(0)) if config.num_actors == AUTO else config.num_actors


def num_envs(config: Config, observation: Any) -> int:
    """How many an actor steps: larger batches pay off where observations are large.

    `observation` is the TensorSpec of one.
    """
    if config.num_envs != AUTO:
        return config.num_envs
    return 32 if is_large(observation) else 16


def is_large(observation: Any) -> bool:
    """Whether to read one, of this TensorSpec, costs more than to call the network."""
    return observation.shape.num_elements() >= _LARGE_OBSERVATION


def group_sizes(
    config: Config, count: int, observation: Any, own_actors: bool, max_lag: int | None
) -> list[int]:
    """Sizes of those that `count` environments of an actor with a network step in.

    Two let it step and act at once, for the price of batches half as large: where cores are left,
    as is known of `own_actors`, which experiment.py itself started. `max_lag` is the algorithm's;
    raises ValueError where it forbids what was asked for.
    """
    wanted = config.env_groups
    if max_lag is not None:  # while one waits for the next policy the others would act by the last
        if wanted > 1:
            raise ValueError(
                f"--env_groups={wanted}: --algorithm={config.algorithm} has its actors wait for "
                f"the next policy, which groups that take turns cannot: --env_groups=1"
            )
        wanted = 1
    if wanted == AUTO:
        spare = own_actors and num_actors(config) < len(os.sched_getaffinity(0))
        wanted = 2 if spare and is_large(observation) else 1
    return split_evenly(count, min(wanted, count))


def needs_one_thread(config: Config, observation: Any, gpu: bool, is_built_in: bool) -> bool:
    """Whether a learner, with a GPU or without, does best by one thread of TensorFlow's.

    An update of a small network is a hundred operations of some microseconds each: to hand them
    from thread to thread costs more than it saves. But the thread in which XLA compiles answers
    nobody meanwhile, and Python of an algorithm that is not built in may wait in it for another.
    `observation` is the TensorSpec of one.
    """
    given = config.intra_op_threads or config.inter_op_threads
    return is_built_in and not (gpu or given or config.xla or is_large(observation))


def split_evenly(count: int, groups: int) -> list[int]:
    """`count` in so many parts, as equal as can be."""
    return [count // groups + (i < count % groups) for i in range(groups)]


def compression(config: Config, observation: Any) -> str:
    """Of what an actor sends: it pays off for images, whatever the wire.

    `observation` is the TensorSpec of one.
    """
    if config.compression != "auto":
        return config.compression
    image = observation.shape.rank == 3 and observation.dtype.name == "uint8"
    return "lz4" if image else "none"


def num_test_envs(config: Config) -> int:
    """How many are tested at a time: no matter of speed alone, since results name it."""
    return 16 if config.num_envs == AUTO else config.num_envs


def inference(config: Config, weights: int, device: str, max_lag: int | None) -> AutoChoice:
    """Where actions are chosen, by a learner that trains so many weights on `device`.

    `max_lag` is the algorithm's.
    """
    if config.inference != "auto":
        return AutoChoice(config.inference)
    if max_lag is not None:
        return AutoChoice("actor", "the algorithm has its actors wait for the next policy")
    if device == "/CPU:0":
        return AutoChoice("actor", "the learner has no GPU that could do it for all")
    if weights < _LARGE_NETWORK:
        return AutoChoice("actor", f"{weights:,} weights are read sooner than a call is answered")
    return AutoChoice(
        "learner", f"it has a GPU, and {weights:,} weights are many for actors' cores"
    )


def pull_secs(asked: float, parameter_bytes: float) -> float:
    """Between pulls of one host: as --min_pull_secs says; negative: a tenth of 1 Gbit/s."""
    return parameter_bytes / (0.1 * _GBIT) if asked < 0 else asked
