"""The user's request, and checks that refuse a wrong one with a single sentence."""

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.messages import escape, program
from launcher.hosts.ssh_config import Settings
from launcher.plan import project
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import ANY_LEARNER, Worker, read

_EXAMPLE = project.path_of("workers.csv.example")


class UserError(Exception):
    """An error that the user has to fix; its message says how."""


class Request(NamedTuple):
    """The user's flags, and the functions of `impala_mm` that the launcher needs."""

    launcher: LauncherConfig
    given: list[str]  # names of the user's flags
    flags: dict[str, str]  # the flags of experiment.py among them, with their values
    logdir: str  # --logdir; empty if it was not given
    log_max_mb: float
    make_logdir: Callable[[], Path]
    check_free: Callable[[str], None]  # raises OSError if an address is taken
    find_sources: Callable[[], dict[str, Path]] = dict  # files of the user's modules, by name
    make_token: Callable[[], str] = str  # returns the content of a new token file
    # Returns the certificates of a new authority, and those of a server's and a client's role.
    make_certificates: Callable[[Sequence[str]], str] = lambda roles: ""
    policies: Sequence[str] = ()  # names that --checkpoint takes besides paths
    command: Sequence[str] = ()  # by which this program was started
    round_columns: int = 0  # unrolls of a learner's round; 0: the algorithm plays in none

    @property
    def settings(self) -> Settings:
        """The settings of SSH. Raises UserError if a flag is no fingerprint."""
        config = self.launcher
        for text in config.ssh_accept_key:
            if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", text):
                raise UserError(
                    f"--ssh_accept_key={text}: write the fingerprint of a host's key as "
                    f"`ssh-keygen -lf` prints it: SHA256: and 43 letters"
                )
        return Settings(config.ssh_config, config.ssh_accept_new_hosts, config.ssh_accept_key)


def refuse_launcher_flags(request: Request) -> None:
    """Refuse flags that the frontend sets for each process, and values that cannot be passed on."""
    for name, why in LauncherConfig.NOT_TAKEN.items():
        if name in request.flags:
            raise UserError(f"--{name} is not for the frontend: {why}")
    if request.flags.get("mode", "train") not in ("train", "train_from", "reincarnate"):
        raise UserError(f"--mode={request.flags['mode']} is one process: give it to `{program()}`")
    for name, value in request.flags.items():
        if "\n" in value or "\0" in value:
            raise UserError(f"--{name} contains a line break, which no process can get")


def read_workers(request: Request) -> list[Worker]:
    """Read the workers from the CSV, by default from the example.

    Without Horovod the example's second learner is left out.
    """
    path = request.launcher.workers_csv_path
    named = "workers_csv_path" in request.given
    if not named and not Path(path).exists():
        path = str(_EXAMPLE)
    workers, notes = read(path)
    for note in notes:
        print(f"note: {escape(path)}: {note}")
    learners = [worker for worker in workers if worker.job == "learner"]
    has_horovod = importlib.util.find_spec("horovod") is not None
    if not named and len(learners) > 1 and not has_horovod:
        why = f"Horovod is not installed (`{project.BUILD_HOROVOD}` builds it)"
        print(f"{why}: one learner trains, with all actors")
        workers = [
            dataclasses.replace(worker, learner=ANY_LEARNER)
            for worker in workers
            if worker.job != "learner" or worker is learners[0]
        ]
    return workers
