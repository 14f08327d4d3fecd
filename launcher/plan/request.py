"""What the user wrote, and what is refused of it, in a sentence that is all that is printed."""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import ANY_LEARNER, Worker, read
from launcher.ssh.ssh_config import Settings

_EXAMPLE = Path(__file__).resolve().parents[2] / "workers.csv.example"
# What the CSV and the frontend itself say to each process.
_LAUNCHER_FLAGS = {
    "job_name": "the column job of the CSV says it",
    "task": "actors are numbered in the order of their rows",
    "learner": "the column learner of the CSV says it",
    "learner_hosts": "the learners' rows of the CSV say it",
    "num_learners": "the CSV has a row for each learner",
    "num_actors": "the CSV has a row for each actor, or its column count",
    "token_file": "each run has a secret of its own",
    "validate": "--check does that",
}


class UserError(Exception):
    """Says what the user is to mend."""


class Request(NamedTuple):
    """The user's flags, and the functions of `impala_mm` that the launcher needs."""

    launcher: LauncherConfig
    given: list[str]  # names of the flags that were written
    flags: dict[str, str]  # those of experiment.py among them, with their values
    logdir: str  # that was given
    log_max_mb: float
    make_logdir: Callable[[], Path]
    check_free: Callable[[str], None]  # raises OSError where an address is taken

    @property
    def settings(self) -> Settings:
        """Of SSH."""
        return Settings(self.launcher.ssh_config, self.launcher.ssh_accept_new_hosts)


def refuse_launcher_flags(request: Request) -> None:
    """Flags that the CSV or the frontend itself says to each process."""
    for name, why in _LAUNCHER_FLAGS.items():
        if name in request.flags:
            raise UserError(f"--{name} is not for the frontend: {why}")
    if request.flags.get("mode", "train") not in ("train", "train_from"):
        raise UserError(
            f"--mode={request.flags['mode']} is one process: give it to experiment.py itself"
        )
    for name, value in request.flags.items():
        if "\n" in value or "\0" in value:
            raise UserError(f"--{name} holds a line's end; no process can be told that")


def read_workers(request: Request) -> list[Worker]:
    """Of the CSV; of the example where none is named, as far as this machine can be it."""
    path = request.launcher.workers_csv_path
    named = "workers_csv_path" in request.given
    if not named and not Path(path).exists():
        path = str(_EXAMPLE)
    workers, notes = read(path)
    for note in notes:
        print(f"note: {path}: {note}")
    learners = [worker for worker in workers if worker.job == "learner"]
    has_horovod = importlib.util.find_spec("horovod") is not None
    if not named and len(learners) > 1 and not has_horovod:
        why = "there is no Horovod here (`make horovod` builds it)"
        print(f"{why}: one learner trains, with all actors")
        workers = [
            dataclasses.replace(worker, learner=ANY_LEARNER)
            for worker in workers
            if worker.job != "learner" or worker is learners[0]
        ]
    return workers
