"""The user's request, and checks that refuse a wrong one with a single sentence."""

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from impala_mm.config.environment_flags import EVERY_FRAME, is_atari
from impala_mm.config.flags import format_value
from impala_mm.config.messages import escape, program
from impala_mm.config.settings import Config
from launcher.plan import hosts_from, project
from launcher.plan.process_plan import is_secret
from launcher.plan.settings import LauncherConfig, SshSettings
from launcher.plan.workers_csv import ANY_LEARNER, Worker, read
from launcher.supervise.errors import LauncherError

_EXAMPLE = project.path_of("workers.csv.example")


# Flags that say how many processes a launcher of other people is to start, without a CSV.
NUMBERS = ("num_learners", "num_actors")


class UserError(LauncherError):
    """An error that the user has to fix; its message says how."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The user's flags."""

    launcher: LauncherConfig
    experiment: Config = dataclasses.field(default_factory=Config)
    given: Sequence[str] = ()  # names of the user's flags
    command: Sequence[str] = ()  # by which this program was started

    @functools.cached_property
    def flags(self) -> dict[str, str]:
        """The flags of experiment.py that the user has given, with their values."""
        return {
            name: format_value(getattr(self.experiment, name))
            for name in self.given
            if hasattr(self.experiment, name)
        }

    @property
    def logdir(self) -> Path:
        """The run's folder on this machine, as far as it is known: a new one has no name yet."""
        return Path(self.experiment.logdir or "runs/NEW").absolute()

    @property
    def ssh_settings(self) -> SshSettings:
        """The settings of SSH. Raises UserError if a flag is no fingerprint."""
        config = self.launcher
        for text in config.ssh_accept_key:
            if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", text):
                raise UserError(
                    f"--ssh_accept_key={text}: write the fingerprint of a host's key as "
                    f"`ssh-keygen -lf` prints it: SHA256: and 43 letters"
                )
        return SshSettings(config.ssh_config, config.ssh_accept_new_hosts, config.ssh_accept_key)


def check_flags(request: Request) -> None:
    """Refuse flags that the frontend sets for each process, and values that cannot be passed on.

    Print what --num_action_repeats=1 means, which the README of impala_horovod_gym has with Atari.
    """
    for name, why in LauncherConfig.NOT_TAKEN.items():
        if name in request.flags and not (request.launcher.emit and name in NUMBERS):
            raise UserError(f"--{name} is not for the frontend: {why}")
    if request.flags.get("mode", "train") not in ("train", "train_from", "reincarnate"):
        raise UserError(f"--mode={request.flags['mode']} is one process: give it to `{program()}`")
    for name, value in request.flags.items():
        if "\n" in value or "\0" in value:
            raise UserError(f"--{name} contains a line break, which no process can get")
    for name, value in {**request.flags, "setup": request.launcher.setup}.items():
        if request.launcher.emit and is_secret("", value):
            raise UserError(
                f"--{name} has a password in a URL, which --emit={request.launcher.emit} would "
                f"print: leave it out, and pass on a variable that has it, such as "
                f"--env=AWS_SECRET_ACCESS_KEY"
            )
    experiment = request.experiment
    if experiment.num_action_repeats == 1 and is_atari(experiment.level_name):
        print(f"note: {EVERY_FRAME}")


def count_workers(request: Request) -> list[Worker]:
    """Return rows for --num_learners and --num_actors, which stand for a CSV with --emit."""
    if "workers_csv_path" in request.given:
        raise UserError("the CSV has the processes: leave out --num_learners and --num_actors")
    learners, actors = request.experiment.num_learners, request.experiment.num_actors
    if actors < 0:
        raise UserError("--num_actors=auto: write how many, since nobody knows the hosts yet")
    rows = [Worker(i, "learner", "") for i in range(1, learners + 1)]
    return [*rows, *[Worker(learners + 1, "actor", "", count=actors)] * (actors > 0)]


def read_workers(request: Request) -> list[Worker]:
    """Read the workers from the CSV, by default from the example, or make them for --hosts_from.

    Without Horovod the example's second learner is left out.
    """
    path = request.launcher.workers_csv_path
    named = "workers_csv_path" in request.given
    if request.launcher.hosts_from:
        if named:
            raise UserError("--hosts_from and --workers_csv_path both name the hosts: give one")
        if request.launcher.detach:
            raise UserError("--detach: who started this command takes the run to end with it")
        found = hosts_from.rows()
        print(f"rows of --hosts_from:\n{hosts_from.describe(found)}")
        return found
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
    levels = request.experiment.level_name.count(",") + 1
    actors = sum(worker.count for worker in workers if worker.job == "actor")
    if 0 < actors < levels:
        print(
            f"note: an actor plays one level, so that {actors} actors play {actors} of the "
            f"{levels} levels"
        )
    return workers


def refuse_passwords(workers: Sequence[Worker], config: LauncherConfig) -> None:
    """Refuse rows with passwords for --emit, which writes what others may read."""
    if any(row.ssh_password for row in workers):
        raise UserError(
            f"{config.workers_csv_path} has passwords, which --emit={config.emit} has no use "
            f"for: give it a CSV without the column ssh_password"
        )
