"""A run on this machine: which processes `experiment.py` starts when no --job_name is given.

Nothing is started here. `experiment.py` passes the result to the supervisors, which this package
does not know. The process that calls this stays light: TensorFlow is not loaded.
"""

import dataclasses
import importlib.util
import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.distributed import mpi
from impala_mm.environments.make import level_names
from impala_mm.jobs import before_start, learner
from impala_mm.learner import flag_conflicts
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import log, ports, run_token, starter

_FREE_PORT = "localhost:0"  # --learner_hosts of a run on this machine, if it was not given


class LocalProcesses(NamedTuple):
    """The processes of a run on this machine."""

    learner: list[str]  # the command of each learner
    # The commands of the others, by name; the learners' addresses in them are not known before.
    others: dict[str, list[str]]
    environment: dict[str, str]  # all variables of every process
    folder: Path  # the run's folder, which exists


def prepare(
    config: Config, argv: Sequence[str], given: Sequence[str], has_mpirun: bool
) -> LocalProcesses:
    """Check what can be checked before anything starts; return the commands of all processes.

    `given` names the flags on the command line `argv`. What is wrong with the flags, an address or
    the run's folder ends the program with exit code 2 and one sentence.
    """
    several = config.num_learners > 1
    if several and not (has_mpirun and importlib.util.find_spec("horovod")):
        flags.refuse(
            f"--num_learners={config.num_learners} needs mpirun and Horovod: "
            f"`{mpi.BUILD_HOROVOD}` installs them; one learner needs neither"
        )
    if "learner_hosts" not in given:
        config = dataclasses.replace(config, learner_hosts=_FREE_PORT)
    addresses = local_learner_addresses(config) if several else ports.parse_learner_hosts(config)
    flag_conflicts.refuse_before_loading(config, config.num_learners)
    learner.refuse_missing(config)
    _refuse_taken(config, addresses[: config.num_learners])
    num_actors = auto.num_actors(config)
    if 0 < num_actors < config.num_learners:
        _note_few_actors(config, num_actors)
    levels = level_names(config.level_name)
    if 0 < num_actors < len(levels):
        flags.warn(
            f"an actor plays one level, so that {num_actors} actors play {num_actors} of the "
            f"{len(levels)} levels: --num_actors={len(levels)} plays all"
        )
    run_token.read_token(config)
    before_start.warn_of_slow(config, config.num_learners)
    before_start.before_training(config)
    folder = RunFolder(config)
    folder.leave_to_others()
    # A later flag replaces an earlier one.
    common = [sys.executable, argv[0], *flags.arguments(config, given)]
    common += [f"--learner_hosts={','.join(addresses)}", f"--logdir={folder.path}"]
    others = {
        f"actor-{task}": [*common, "--job_name=actor", f"--task={task}"]
        for task in range(num_actors)
    }
    if num_actors == 0 and config.planned_offline_updates:
        others["evaluator"] = [*common, "--job_name=evaluator"]
    return LocalProcesses(
        [*common, "--job_name=learner", "--num_learners=1"],  # each is one
        others,
        os.environ
        | {
            starter.COMMAND_VARIABLE: shlex.join(["python", *argv]),
            starter.START_VARIABLE: secrets.token_hex(4),
            starter.ACTORS_VARIABLE: str(num_actors),
        },
        folder.path,
    )


def _refuse_taken(config: Config, addresses: Sequence[str]) -> None:
    """End the program with one sentence if a learner cannot listen at the port given to it."""
    flag = "bind_address" if config.bind_address else "learner_hosts"
    try:
        for address in [config.bind_address] if config.bind_address else addresses:
            if ports.split_address(address)[1]:
                learner.hold(address, flag).release()
    except OSError as error:
        flags.refuse(str(error))


def _note_few_actors(config: Config, num_actors: int) -> None:
    """Print what follows from fewer actors than learners."""
    log.ProcessLogger("supervisor")(
        f"{config.num_learners} learners and {num_actors} actors: a learner without an actor "
        f"waits until one moves to it, every 5 s; --num_actors={config.num_learners} gives each "
        f"learner its own"
    )


def local_learner_addresses(config: Config) -> list[str]:
    """Return one address for each learner: those given, or successive ports from the one given.

    If that one has port 0, so have all of them.
    """
    if config.bind_address:
        flags.refuse("--bind_address is for one learner, but --num_learners starts several")
    given = ports.parse_learner_hosts(config)
    if len(given) == 1:
        host, port = ports.split_address(given[0])
        given = [f"{host}:{port and port + rank}" for rank in range(config.num_learners)]
    if len(given) != config.num_learners:
        flags.refuse(
            f"--num_learners={config.num_learners}, but --learner_hosts names {len(given)}: give "
            f"only the first address, or all of them"
        )
    return given
