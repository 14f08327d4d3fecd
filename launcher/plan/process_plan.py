"""From the rows of a CSV to the processes of a run: their names, commands and environments.

Nothing is started here, so `--dry_run` prints what would be. All learners are one process, their
mpirun; where there is one learner it needs none.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.node.task import HEARTBEAT, LEARNERS, OF_LEARNERS, RANKS
from launcher.plan.host_environment import Ground, Grounds
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Our names for Open MPI's: more ranks than cores are fine, none is bound to one, none spins.
MPIRUN = ("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")

# Seconds, so that ranks whose mpirun's host lost its power end within a minute.
_KEEPALIVE = {"time": "30", "intvl": "10", "probes": "3"}


class Unfit(Exception):
    """What cannot be started as it is asked; says why."""


@dataclasses.dataclass(frozen=True)
class Process:
    """One, as it would be typed on its host."""

    name: str
    job: str
    worker: Worker  # its row; of the learners the first's
    ground: Ground  # of that row
    command: list[str]
    environment: dict[str, str]  # besides the user's own
    workdir: str
    logdir: str  # of the run, on its machine
    others: tuple[Ground, ...] = ()  # of learners: those on other machines than the first

    def line(self) -> str:
        """Its command and environment, as a shell reads them; secrets are masked."""
        told = [f"{name}={_masked(name, value)}" for name, value in self.environment.items()]
        return " ".join([*told, shlex.join(self.command)])


def kind(row: Worker) -> dict[str, str | int]:
    """What is the same in two rows whose processes could stand for each other."""
    names = ("ip", "cuda_visible_devices", "num_envs", "workdir", "python", "setup", "learner")
    return {name: getattr(row, name) for name in ("job", *names)}


def make(
    workers: Sequence[Worker], config: LauncherConfig, flags: dict[str, str], grounds: Grounds
) -> list[Process]:
    """The learners first, then actors and evaluators in the order of their rows.

    `flags`: that were given, by name.
    """
    environment = environment_of_all(config)
    learners = [worker for worker in workers if worker.job == "learner"]
    common = of_all(workers, flags, grounds)
    processes = [_learners(learners, config, common, environment, grounds)]
    actors = [w for w in workers if w.job == "actor" for _ in range(w.count)]
    processes += [
        actor(worker, task, config, common, grounds, environment)
        for task, worker in enumerate(actors)
    ]
    evaluators = [worker for worker in workers if worker.job == "evaluator"]
    for number, worker in enumerate(evaluators):
        name = "evaluator" if len(evaluators) == 1 else f"evaluator-{number}"
        processes.append(again(name, worker, config, common, grounds))
    return processes


def again(
    name: str, worker: Worker, config: LauncherConfig, common: dict[str, str], grounds: Grounds
) -> Process:
    """An actor or evaluator of that name."""
    if worker.job == "actor":
        return actor(worker, int(name.rpartition("-")[2]), config, common, grounds)
    own = common | {"job_name": worker.job}
    return _one(name, worker, config, own, environment_of_all(config), grounds(worker))


def of_all(workers: Sequence[Worker], flags: dict[str, str], grounds: Grounds) -> dict[str, str]:
    """The flags of every process: those that were given, and where the learners are."""
    learners = [worker for worker in workers if worker.job == "learner"]
    places = {grounds(worker).place for worker in workers}
    addresses = []
    for worker in learners:
        address = grounds(worker).address
        if len(places) > 1 and (address == "localhost" or address.startswith("127.")):
            raise Unfit(
                f"row {worker.line}: hosts of other rows cannot reach a learner at {address}: "
                f"write the name or address by which they reach this machine"
            )
        addresses.append(f"{address}:{worker.tf_port}")
    return flags | {"learner_hosts": ",".join(addresses)}


def actor(
    worker: Worker,
    task: int,
    config: LauncherConfig,
    common: dict[str, str],
    grounds: Grounds,
    environment: dict[str, str] | None = None,
) -> Process:
    """Number `task`; `common`: as `of_all` has them."""
    own = {"job_name": "actor", "task": str(task)} | of_row(worker)
    told = environment_of_all(config) if environment is None else environment
    return _one(f"actor-{task}", worker, config, common | own, told, grounds(worker))


def of_row(worker: Worker) -> dict[str, str]:
    """The flags that an actor's row says."""
    own = {}
    if worker.num_envs:
        own["num_envs"] = str(worker.num_envs)
    if worker.learner >= 0:
        own["learner"] = str(worker.learner)
    return own


def _learners(
    learners: list[Worker],
    config: LauncherConfig,
    common: dict[str, str],
    environment: dict[str, str],
    grounds: Grounds,
) -> Process:
    flags = common | {"job_name": "learner"}
    first, ground = learners[0], grounds(learners[0])
    if len(learners) == 1:
        return _one(LEARNERS, first, config, flags, environment, ground)
    others = elsewhere(learners, grounds)
    told = list(environment)
    command = ranks(
        learners,
        config,
        grounds,
        told,
        _agent(ground) if others else "",
        lambda own: _command(own, flags),
    )
    all_told = of_mpirun(environment, ground)
    whole, logdir = set_up(first, config, command), flags["logdir"]
    return Process(
        LEARNERS, "learner", first, ground, whole, all_told, ground.workdir, logdir, others
    )


def alone(learners: Sequence[Worker], config: LauncherConfig, grounds: Grounds) -> list[Process]:
    """Each as if it were the only one."""
    told = environment_of_all(config)
    return [_one(LEARNERS, w, config, {"logdir": ""}, told, grounds(w)) for w in learners]


def elsewhere(learners: Sequence[Worker], grounds: Grounds) -> tuple[Ground, ...]:
    """Of learners that are on other machines than the first."""
    first = grounds(learners[0]).place
    return tuple(ground for w in learners if (ground := grounds(w)).place != first)


def ranks(
    learners: Sequence[Worker],
    config: LauncherConfig,
    grounds: Grounds,
    told: Sequence[str],
    agent: str,
    command: Callable[[Ground], list[str]],
) -> list[str]:
    """mpirun with one rank for each learner; `told`: names of the environment that they get.

    `agent`: by which it reaches other hosts; empty: there are none.
    """
    ground = grounds(learners[0])
    parts = [ground.mpirun, *MPIRUN]
    if agent:
        parts += ["--prtemca", "plm_ssh_agent", agent]
        parts += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]  # only here are credentials known
        for name, value in _KEEPALIVE.items():
            parts += ["--prtemca", f"oob_tcp_keepalive_{name}", value]
        parts += ["--prefix", prefix(ground)] if prefix(ground) else []
    parts += split(config.mpirun_args)
    for i, worker in enumerate(learners):
        own = grounds(worker)
        # By name alone: a value may be secret, and `ps` shows commands.
        names = [*told, *([OF_LEARNERS] if agent else [])]
        if own.place != ground.place:  # where nobody supervises it
            names.append(f"{HEARTBEAT}={own.folder}/{RANKS}/beat")
        if worker.cuda_visible_devices:
            names.append(f"CUDA_VISIBLE_DEVICES={worker.cuda_visible_devices}")
        parts += [":"] * (i > 0) + ["-np", "1"]
        parts += [part for each in names for part in ("-x", each)]
        if agent:
            parts += ["--host", own.address, "--wdir", own.workdir]
        parts += set_up(worker, config, command(own))
    return parts


def of_mpirun(told: dict[str, str], ground: Ground) -> dict[str, str]:
    """Its environment."""
    return told | (dict.fromkeys(_AS_ROOT, "1") if ground.as_root else {})


def _agent(ground: Ground) -> str:
    """By which mpirun reaches other hosts; the learners' supervisor makes it."""
    path = f"{ground.folder}/{LEARNERS}/agent"
    if re.search(r"[\s:]", path):
        raise Unfit(f"mpirun cannot start {path}: its name holds a space or a colon")
    return path


def prefix(ground: Ground) -> str:
    """Where Open MPI lies, if it is not the system's."""
    return str(Path(ground.mpirun).parent.parent) if "/" in ground.mpirun else ""


def _one(
    name: str,
    worker: Worker,
    config: LauncherConfig,
    flags: dict[str, str],
    environment: dict[str, str],
    ground: Ground,
) -> Process:
    told = dict(environment)
    if worker.cuda_visible_devices:
        told["CUDA_VISIBLE_DEVICES"] = worker.cuda_visible_devices
    command = set_up(worker, config, _command(ground, flags))
    return Process(name, worker.job, worker, ground, command, told, ground.workdir, flags["logdir"])


def _command(ground: Ground, flags: dict[str, str]) -> list[str]:
    own = {"token_file": f"{ground.folder}/token"}
    return [ground.python, ground.experiment, *written(flags | own)]


def _masked(name: str, value: str) -> str:
    return "***" if is_secret(name, value) else shlex.quote(value)


def is_secret(name: str, value: str) -> bool:
    """Where the name says so, or an address holds a password."""
    by_name = re.search(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", name, re.IGNORECASE)
    return bool(by_name or re.search(r"://[^/]*:[^/]*@", value))


def written(flags: dict[str, str]) -> list[str]:
    """As a command line has them."""
    return [f"--{name}={value}" for name, value in flags.items()]


def set_up(worker: Worker, config: LauncherConfig, command: list[str]) -> list[str]:
    """After shell commands; the shell makes room, for signals are the process's own."""
    setup = worker.setup or config.setup
    if not setup:
        return command
    then = 'status=$?; [ $status = 0 ] || exit $status; exec "$@"'
    return ["bash", "-c", f"{setup}\n{then}", "set-up", *command]


def environment_of_all(config: LauncherConfig) -> dict[str, str]:
    """What --env says. Raises Unfit."""
    told = {}
    for pair in config.env:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Unfit(f"--env={name if equals else '...'}: write NAME=value")
        if "\n" in value:
            raise Unfit(f"--env={name}: its value holds a line's end; no process can be told that")
        told[name] = value
    return told


def split(arguments: str) -> list[str]:
    """--mpirun_args as a shell would. Raises Unfit."""
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise Unfit(f"--mpirun_args={arguments}: {error}") from None
