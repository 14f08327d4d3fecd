"""One trial: an ordinary run, with the command by which its user could start it, too.

    python run_experiment_mm_raw.py --config=runs/sweep/trials/007/trial.toml
        --workers_csv_path=runs/sweep/trials/007/workers.csv --logdir=runs/sweep/trials/007 ...

So the run's frontend follows it and restarts what fails, --status and the dashboard show it, and
this command resumes it. The frontend stays when the experiment's own process is killed.
"""

import dataclasses
import functools
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.config import setting_files
from impala_mm.config.settings import Config
from impala_mm.records.run_contents import drop_replaced, is_number, read_records
from launcher.experiments.file import Experiment, Values
from launcher.experiments.pool import write_csv
from launcher.follow import status
from launcher.plan.workers_csv import Worker
from launcher.supervise import procfs
from launcher.supervise.run_registry import Record, Run, is_same_folder

SETTINGS, ROWS, OUTPUT = "trial.toml", "workers.csv", "frontend.log"  # in the trial's folder
METRIC = "episode_return"  # what is best where it is highest
_TRIALS = "trials"  # the folder of all trials' folders
_NAME_LENGTH = 56  # characters of an experiment's name in those of its runs


def is_trial(logdir: Path) -> bool:
    """Return whether a run's folder is that of a trial."""
    return logdir.parent.name == _TRIALS and logdir.name.isdecimal()


@dataclasses.dataclass(eq=False)
class Trial:
    """One trial and what is known of it."""

    experiment: Experiment
    number: int
    values: Values
    # "queued", "starting", "running", "stopping", or how it ended: "ended", "pruned", "failed"
    state: str = "queued"
    rows: Sequence[Worker] = ()  # its places; none while it is not running
    host: str = ""  # of its first learner at its last start
    frames: float = 0.0
    score: float | None = None
    rate: float | None = None  # frames per second
    why: str = ""  # it failed
    starts: int = 0
    outcome: str = ""  # the state that follows "stopping"
    has_run: bool = False  # whether its run has a record since its last start
    frontend: procfs.Process | None = None
    child: subprocess.Popen[bytes] | None = None  # the frontend, if this process has started it
    stopper: subprocess.Popen[bytes] | None = None  # the command that stops it

    @property
    def name(self) -> str:
        """The name of its run."""
        name = re.sub(r"[^A-Za-z0-9_-]", "-", self.experiment.folder.resolve().name)
        return f"{name[:_NAME_LENGTH]}-{self.number:03d}"

    @functools.cached_property
    def run(self) -> Run:
        """Its run, as this machine's frontends know it."""
        return Run(self.name)

    @property
    def record(self) -> Record | None:
        """The record of its run; another folder's run of the same name is not its own."""
        found = self.run.record
        return found if found and is_same_folder(found.logdir, str(self.folder)) else None

    @functools.cached_property
    def settings(self) -> Config:
        """Its settings."""
        return self.experiment.check(self.values)

    @property
    def folder(self) -> Path:
        """The folder of its run, below that of the experiment."""
        return self.experiment.folder / _TRIALS / f"{self.number:03d}"

    def command(self, program: Sequence[str], flags: Sequence[str], *others: str) -> list[str]:
        """Return the command of its frontend; `others`: flags that say what to do with the run."""
        return [
            *program,
            f"--config={self.folder / SETTINGS}",
            f"--workers_csv_path={self.folder / ROWS}",
            f"--logdir={self.folder}",
            f"--tmux_sess={self.name}",
            *flags,
            *others,
        ]

    def write_files(self) -> None:
        """Write the trial's settings and its rows, from which its command reads them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / SETTINGS).write_text(self.describe_settings(), encoding="utf-8")
        write_csv(self.folder / ROWS, self.rows)

    def describe_settings(self) -> str:
        """Return its settings as a file for --config."""
        experiment = self.experiment
        lines = [f"# Trial {self.number} of {experiment.path}"]
        settings = experiment.base | self.values
        if settings.get("mirror"):  # each run has one of its own
            settings["mirror"] += f"/{_TRIALS}/{self.number:03d}"
        for name, value in settings.items():
            source = "command line" if name in experiment.typed else experiment.path
            line = f"{name} = {setting_files.to_toml(value)}"
            lines.append(f"{line:40}  # {'axis' if name in self.values else source}")
        return "\n".join(lines) + "\n"

    def start(self, command: Sequence[str]) -> None:
        """Start its frontend, which no terminal and no end of this process ends."""
        with (self.folder / OUTPUT).open("ab") as output:
            self.child = _start(command, output)
        self.outcome, self.stopper = "", None
        self.frontend = procfs.identify(self.child.pid)

    def begin_stop(self, command: Sequence[str], outcome: str) -> None:
        """Begin to save and stop it, and to remove the record of its run."""
        self.state, self.outcome = "stopping", outcome
        with (self.folder / OUTPUT).open("ab") as output:
            self.stopper = _start(command, output)

    @property
    def has_frontend(self) -> bool:
        """Whether its frontend is running."""
        if self.child is not None:
            return self.child.poll() is None
        return self.frontend is not None and procfs.is_alive(self.frontend)

    @property
    def away(self) -> set[str]:
        """The ids of the hosts of its processes that cannot be reached."""
        return {each.place for each in self.run.states().values() if each.state == "away"}

    def end_frontend(self, number: int = signal.SIGTERM) -> None:
        """End its frontend, which leaves the run as it is, unless `number` is SIGINT."""
        if self.frontend and self.has_frontend:
            os.kill(self.frontend[0], number)

    def look(self) -> str:
        """Read what its run reports, and return the run's state; empty if there is no run."""
        found = status.snapshot_without_gpus(self.run) if self.record else {}
        if found:
            self.has_run = True
            self.take(found)
        return str(found.get("state", ""))

    def take(self, row: dict[str, Any]) -> None:
        """Take the figures of a row of metrics."""
        self.rate = row.get("frames_per_second")
        if is_number(row.get("frames")):
            self.frames = row["frames"]
        if is_number(row.get(METRIC)):
            self.score = row[METRIC]

    def take_last_row(self) -> None:
        """Take the figures of the last row that its run has written."""
        for row in drop_replaced(read_records(self.folder / "metrics.jsonl")):
            self.take(row)
        self.rate = None

    def first_error(self) -> str:
        """Return the error that its frontend has printed last."""
        try:
            lines = (self.folder / OUTPUT).read_text(errors="replace").splitlines()
        except OSError:
            return "it has printed nothing"
        errors = [line for line in lines if re.search(r"^error: | failed: |^FAILED ", line)]
        return (errors or lines or ["it has printed nothing"])[-1].strip()


def _start(command: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
