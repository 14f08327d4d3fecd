"""The costs of a step on this host, measured in two short trainings; `plan.py` predicts from them.

Both are runs of experiment.py with the flags of the planned one. In the first, one actor for each
core and the learner share this machine: from it come the CPU seconds of a step, as they are while
all cores are busy, and how long an update takes. In the second, one actor has the cores that the
learner leaves: from it comes an actor's own speed, without the time in which it lacked a core. The
bytes on the wire are measured last.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import components
import real_run
from cluster_model import HostCosts, RunShape
from progress import print_progress
from real_run import RunMeasurement
from worker_client import to_flags

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config

_WIRE_SECONDS = 0.2  # seconds for each part of the wire, of which only the bytes are used
_MAX_OTHERS = 0.2  # cores that other programs may use meanwhile
_COSTLY = {
    *("level_name", "num_envs", "algorithm", "agent_name", "precision", "compression"),
    *("intra_op_threads", "inter_op_threads", "inference", "env_groups", "env_workers"),
    # With replay, an update trains on more steps than the new ones, which are counted.
    *("replay", "replay_ratio"),
}
_COSTLY_GROUPS = {"Data", "Environment", "Algorithm", "Network"}
_SHARED_NAMES = {f.name for f in dataclasses.fields(Config)}  # all others are an algorithm's own


class HostMeasurement(NamedTuple):
    """The costs of a kind of host and what they were measured for; `save` writes it."""

    costs: HostCosts
    shape: RunShape
    settings: dict[str, Any]  # flags that the costs depend on
    host: dict[str, Any]  # processor and versions


def measure(config: Config, seconds: float) -> HostMeasurement:
    """Measure two runs on this machine, each for `seconds` after its start."""
    config = dataclasses.replace(config, env_groups=max(config.env_groups, 1))  # as in a cluster
    cores = len(os.sched_getaffinity(0))
    busy = _measure_run(config, max(cores, 2), seconds)
    single = _measure_run(config, 1, seconds)
    print_progress("measuring the bytes on the wire")
    wire = components.measure_wire(config, _WIRE_SECONDS)
    weights = wire.parameter_bytes / (2 if config.parameter_dtype == "float16" else 4)
    groups = config.env_groups if config.inference == "actor" else max(config.env_groups, 2)
    shape = RunShape(
        steps_per_update=busy.steps_per_update,
        steps_per_turn=config.num_envs * config.unroll_length,
        step_bytes=wire.unroll_bytes / config.unroll_length,
        parameter_bytes=0.0 if config.inference == "learner" else wire.parameter_bytes,
        gradient_bytes=weights * (2 if config.gradient_dtype == "float16" else 4),
        min_pull_secs=auto.pull_secs(config.min_pull_secs, wire.parameter_bytes),
    )
    return HostMeasurement(
        costs_of_runs(cores, max(groups, config.env_workers), busy, single),
        shape,
        costly_settings(config),
        components.describe_host(),
    )


def _measure_run(config: Config, actors: int, seconds: float) -> RunMeasurement:
    own = tuple(f"--{name}=" for name in real_run.SET_HERE)
    argv = [word for word in to_flags(config) if not word.startswith(own)]
    argv += [f"--num_actors={actors}", f"--learner_hosts={real_run.free_address()}"]
    print_progress(f"measuring a run with {actors} actor{'s' * (actors > 1)} on this machine")
    run = real_run.measure_run(argv, seconds, config.inference)
    unreliable = ": the figures are unreliable" if run.others > _MAX_OTHERS else ""
    print_progress(
        f"{run.steps:,.0f} steps/s; other programs used {run.others:.2f} cores{unreliable}"
    )
    return run


def costs_of_runs(
    cores: float, concurrency: int, busy: RunMeasurement, single: RunMeasurement
) -> HostCosts:
    """Return a step's costs from a run that uses all cores and one with a single actor.

    An actor computes on `concurrency` cores at most.
    """
    waiting = single.metrics.get("actor/waiting_share", 0.0)
    waiting += single.metrics.get("actor/policy_wait_share", 0.0)
    # The learner, or another program, took cores from the single actor, too.
    acting_seconds = max(1 - waiting, 0.01) / single.steps - single.by_role["actor's delay"]
    fastest = busy.by_role["actor"] / min(concurrency, cores)
    return HostCosts(
        cores,
        acting_seconds=max(acting_seconds, fastest),
        acting_cores=busy.by_role["actor"],
        learning_seconds=max(1 - busy.metrics["wait_share"], 0.01) / busy.steps,
        learning_cores=busy.by_role["learner"],
    )


def costly_settings(config: Config) -> dict[str, Any]:
    """Return the flags that the costs depend on."""

    def is_costly(f: dataclasses.Field) -> bool:
        info = flags.info(f)
        of_what_is_computed = info.group in _COSTLY_GROUPS or f.name not in _SHARED_NAMES
        return f.name in _COSTLY or (of_what_is_computed and not info.own)

    names = [f.name for f in dataclasses.fields(config) if is_costly(f)]
    return {name: getattr(config, name) for name in names} | {
        "env_groups": max(config.env_groups, 1)  # auto is one with the frontend
    }


def save(measurement: HostMeasurement, path: str) -> None:
    """Write a measurement that `load` can read."""
    parts = {"costs": measurement.costs._asdict(), "shape": measurement.shape._asdict()}
    try:
        Path(path).write_text(json.dumps(measurement._asdict() | parts, indent=1) + "\n")
    except OSError as error:
        flags.refuse(f"--save={path}: {error.strerror}")


def load(path: str, config: Config) -> HostMeasurement:
    """Read what `save` wrote; exit with an error if it was measured with other flags."""
    try:
        record = json.loads(Path(path).read_text())
        costs, shape = HostCosts(**record.pop("costs")), RunShape(**record.pop("shape"))
        measurement = HostMeasurement(costs, shape, **record)
    except OSError as error:
        flags.refuse(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        flags.refuse(
            f"{path} is not a measurement of a host, or another version wrote it; "
            f"plan.py --save={path} writes one"
        )
    current = costly_settings(config)
    for name, measured_value in measurement.settings.items():
        if current.get(name, measured_value) != measured_value:
            flags.refuse(
                f"{path} was measured with --{name}={measured_value}, but this run has "
                f"--{name}={current[name]}: measure that host again, or use the same value"
            )
    return measurement
