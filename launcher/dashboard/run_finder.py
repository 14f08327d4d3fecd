"""Finds the runs that a dashboard shows: those of this user's frontends, and those in a folder."""

import contextlib
import functools
import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from impala_mm.records import run_contents
from impala_mm.runtime.safe_files import from_json, text_reader
from launcher.supervise.run_registry import (
    Record,
    Run,
    UnreadableRecord,
    foreground_runs,
    run_names,
)

_MOST_RUNS = 500  # of a folder; the newest
_PERIOD_SECONDS = 5.0  # seconds for which a result holds
_EXPERIMENT = "experiment.jsonl"  # in the folder of an experiment
_MARKS = ("metrics.jsonl", "starts.jsonl", "settings.json")  # files of a run's folder


class NoSuchRun(Exception):
    """An error: no run has this key, or not any more."""


class FoundRun(NamedTuple):
    """A run, and its record and states, if they are known."""

    key: str  # in addresses of the page
    name: str
    logdir: Path
    run: Run | None = None  # of this user on this machine
    is_elsewhere: bool = False  # whether its folder lies outside of the dashboard's

    @property
    def run_name(self) -> str:
        """The name by which frontends know it; empty if none does."""
        return self.run.name if self.run and self.run.has_frontend else ""

    def read_record(self) -> Record | None:
        """Return its record; None if there is none, or it cannot be read."""
        with contextlib.suppress(UnreadableRecord):  # `--status` tells its user
            return self.run.record if self.run else None
        return None


class RunFinder:
    """The runs of one dashboard; a folder is looked through again after some seconds."""

    def __init__(self, folder: Path):
        """Find the run in `folder`, or those in its subfolders, besides those of frontends."""
        self._folder = folder
        self._found: dict[str, FoundRun] = {}
        self._known: dict[Path, str] = {}  # folders that were found elsewhere, and their names
        self._looked = 0.0

    def find(self) -> dict[str, FoundRun]:
        """Return all runs by key, the newest first."""
        if time.monotonic() - self._looked > _PERIOD_SECONDS or not self._looked:
            self._found = {run.key: run for run in self._look()}
            self._looked = time.monotonic()
        return self._found

    def get(self, key: str) -> FoundRun:
        """Return one run. Raises NoSuchRun."""
        try:
            return self.find()[key]
        except KeyError:
            raise NoSuchRun(key) from None

    def _look(self) -> list[FoundRun]:
        inside = set(map(Path.resolve, self._folders()))
        names = {logdir: _name(logdir) for logdir in inside}
        runs: dict[Path, Run] = {}
        for run in [*foreground_runs(), *map(Run, run_names())]:
            with contextlib.suppress(UnreadableRecord):  # `--status` tells its user
                if record := run.record:
                    logdir = Path(record.logdir).resolve()
                    runs[logdir], self._known[logdir] = run, record.name
        for logdir, name in self._known.items():  # a run that was stopped has no record any more
            if logdir in runs or _is_run(logdir):
                names[logdir] = name
        folder = self._folder.resolve()
        found = []
        for logdir, name in names.items():
            is_elsewhere = logdir not in inside and not logdir.is_relative_to(folder)
            found.append(FoundRun(key_of(logdir), name, logdir, runs.get(logdir), is_elsewhere))
        return sorted(found, key=lambda each: -_modified(each.logdir))

    def _folders(self) -> list[Path]:
        if _is_run(self._folder):
            return [self._folder]
        inside = _subfolders(self._folder)
        for folder in [self._folder, *inside]:
            if os.path.exists(folder / _EXPERIMENT):
                inside += _subfolders(folder / "trials")
        return sorted(filter(_is_run, inside), key=_modified)[-_MOST_RUNS:]


def describe_settings(logdir: Path) -> dict[str, str]:
    """Return a run's seed, and the settings of its experiment; empty if they cannot be read."""
    path = logdir / "settings.json"
    try:
        return _read_settings(path, path.stat().st_mtime_ns)
    except OSError:  # the learner has not written them yet
        return {}


@functools.lru_cache(maxsize=2 * _MOST_RUNS)
def _read_settings(path: Path, modified: int) -> dict[str, str]:
    """Read a file of settings as it is since it was `modified`."""
    del modified
    with contextlib.suppress(OSError, ValueError):  # they are damaged, or were just removed
        settings = from_json(text_reader(path.parent)(path))
        if isinstance(settings, dict):
            others = run_contents.other_settings() - {"seed"}
            return {
                name: run_contents.format_value(value)
                for name, value in settings.items()
                if name not in others
            }
    return {}


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [Path(entry) for entry in os.scandir(folder) if os.path.isdir(entry)]
    except OSError:  # there is no run yet, or the file system fails for now
        return []


def _name(logdir: Path) -> str:
    """Return the name of a run's folder, of a trial with that of its experiment."""
    experiment = logdir.parent.parent
    is_trial = os.path.exists(experiment / _EXPERIMENT)
    return f"{experiment.name}-{logdir.name}" if is_trial else logdir.name


def _is_run(folder: Path) -> bool:
    # In contrast to Path.exists, this is False for a folder that may not be entered.
    return any(os.path.exists(folder / name) for name in _MARKS)


def _modified(logdir: Path) -> float:
    for name in (*_MARKS, ""):
        with contextlib.suppress(OSError):  # there is no such file
            return (logdir / name).stat().st_mtime
    return 0.0


def key_of(path: Path) -> str:
    """Return what stands for a folder or a file in addresses of the page."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
