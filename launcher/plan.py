"""From the rows of a CSV to the processes of a run: their names, commands and environments.

Nothing is started here, so `--dry_run` prints what would be. All learners are one process, their
mpirun; where there is one learner it needs none.
"""

import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.config import LauncherConfig
from launcher.workers import Worker

LEARNERS = "learners"
_ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = str(_ROOT / "experiment.py")
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Our names for Open MPI's: more ranks than cores are fine, none is bound to one, none spins.
MPIRUN = ("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


class Unfit(Exception):
    """What cannot be started as it is asked; says why."""


@dataclasses.dataclass(frozen=True)
class Process:
    """One, as it would be typed on its host."""

    name: str
    job: str
    worker: Worker  # its row; of the learners the first's
    command: list[str]
    environment: dict[str, str]  # besides the user's own
    workdir: str

    @property
    def kind(self) -> dict[str, str | int]:
        """What is the same in two actors that could stand for each other."""
        row = self.worker
        names = ("ip", "cuda_visible_devices", "num_envs", "workdir", "python", "setup", "learner")
        return {name: getattr(row, name) for name in names}

    def line(self) -> str:
        """Its command and environment, as a shell reads them; secrets are masked."""
        told = [f"{name}={_masked(name, value)}" for name, value in self.environment.items()]
        return " ".join([*told, shlex.join(self.command)])


def make(workers: Sequence[Worker], config: LauncherConfig, flags: dict[str, str]) -> list[Process]:
    """The learners first, then actors and evaluators in the order of their rows.

    `flags`: that were given, by name.
    """
    environment = environment_of_all(config)
    learners = [worker for worker in workers if worker.job == "learner"]
    common = of_all(workers, flags)
    processes = [_learners(learners, config, common, environment)]
    actors = [w for w in workers if w.job == "actor" for _ in range(w.count)]
    processes += [
        actor(worker, task, config, common, environment) for task, worker in enumerate(actors)
    ]
    evaluators = [worker for worker in workers if worker.job == "evaluator"]
    for number, worker in enumerate(evaluators):
        name = "evaluator" if len(evaluators) == 1 else f"evaluator-{number}"
        processes.append(
            _one(name, worker, config, common | {"job_name": "evaluator"}, environment)
        )
    return processes


def of_all(workers: Sequence[Worker], flags: dict[str, str]) -> dict[str, str]:
    """The flags of every process: those that were given, and where the learners are."""
    learners = [worker for worker in workers if worker.job == "learner"]
    return flags | {"learner_hosts": ",".join(f"{each.ip}:{each.tf_port}" for each in learners)}


def actor(
    worker: Worker,
    task: int,
    config: LauncherConfig,
    common: dict[str, str],
    environment: dict[str, str] | None = None,
) -> Process:
    """Number `task`; `common`: as `of_all` has them."""
    own = {"job_name": "actor", "task": str(task)} | of_row(worker)
    told = environment_of_all(config) if environment is None else environment
    return _one(f"actor-{task}", worker, config, common | own, told)


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
) -> Process:
    flags = common | {"job_name": "learner"}
    first = learners[0]
    if len(learners) == 1:
        return _one(LEARNERS, first, config, flags, environment)
    command = [mpirun(first), *MPIRUN, *split(config.mpirun_args)]
    for i, worker in enumerate(learners):
        told = list(environment)  # by name alone: a value may be secret, and `ps` shows commands
        if worker.cuda_visible_devices:
            told.append(f"CUDA_VISIBLE_DEVICES={worker.cuda_visible_devices}")
        named = [part for each in told for part in ("-x", each)]
        command += [":"] * (i > 0) + ["-np", "1", *named]
        command += set_up(worker, config, [python(worker), EXPERIMENT, *written(flags)])
    all_told = environment | (dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {})
    workdir = first.workdir or str(Path.cwd())
    return Process(LEARNERS, "learner", first, set_up(first, config, command), all_told, workdir)


def _one(
    name: str,
    worker: Worker,
    config: LauncherConfig,
    flags: dict[str, str],
    environment: dict[str, str],
) -> Process:
    command = set_up(worker, config, [python(worker), EXPERIMENT, *written(flags)])
    told = dict(environment)
    if worker.cuda_visible_devices:
        told["CUDA_VISIBLE_DEVICES"] = worker.cuda_visible_devices
    workdir = worker.workdir or str(Path.cwd())
    return Process(name, worker.job, worker, command, told, workdir)


def _masked(name: str, value: str) -> str:
    return "***" if is_secret(name, value) else shlex.quote(value)


def is_secret(name: str, value: str) -> bool:
    """Where the name says so, or an address holds a password."""
    by_name = re.search(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", name, re.IGNORECASE)
    return bool(by_name or re.search(r"://[^/]*:[^/]*@", value))


def written(flags: dict[str, str]) -> list[str]:
    """As a command line has them."""
    return [f"--{name}={value}" for name, value in flags.items()]


def python(worker: Worker) -> str:
    """That runs its process."""
    return worker.python or sys.executable


def mpirun(worker: Worker) -> str:
    """That of the process's own Python, or the system's."""
    beside = f"{Path(python(worker)).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("mpirun", path=beside) or "mpirun"


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
