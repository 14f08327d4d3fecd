"""Finds out which run or process of this machine writes to a run's folder.

A frontend asks before it starts a run in a folder, on its own machine and on the learners' host:
two runs in one folder would write into each other's logs.
"""

import contextlib
import os
from pathlib import Path

from launcher.supervise import file_lock
from launcher.supervise.run_registry import Run, UnreadableRecord, remote_runs_folder, runs_folder
from launcher.supervise.task import LEARNERS


def describe_writer(folder: str, starting: str = "") -> str:
    """Return what writes to a folder, such as "the run impala"; empty if nothing does.

    `starting` is the name of the run that is about to start in it. Its own frontend holds its lock,
    which other hosts see, too, if they share the user's home.
    """
    for runs in (runs_folder(), remote_runs_folder()):
        for path in sorted(runs.glob("*/run.json")):
            run = Run(path.parent.name, runs)
            with contextlib.suppress(UnreadableRecord):
                if _uses(run, folder) and run.is_running():
                    return _describe_run(run)
        for path in sorted(runs.glob("*.lock")):
            if path.stem == starting:
                continue
            if is_same_folder(_read_text(path), folder) and file_lock.is_held(path):
                return f"another frontend, which is starting the run {path.stem} in it,"
    lock = Path(folder) / "lock"  # of the learner: see impala_mm/records/run_folder.py
    if file_lock.is_held(lock):
        return f"process {_read_text(lock) or 'of another machine'}"
    return ""


def is_same_folder(path: str, other: str) -> bool:
    """Return whether two absolute paths name the same folder; it need not exist."""
    return bool(path) and os.path.realpath(path) == os.path.realpath(other)


def _uses(run: Run, folder: str) -> bool:
    """Return whether the folder is the run's, on this machine or as its learners' folder."""
    record = run.record
    if record is None:
        return False
    logs = [p.get("log", "") for p in record.processes if p["name"] == LEARNERS]
    is_frontend = run.folder.parent == runs_folder()  # `logdir` is a path on the frontend's machine
    folders = [record.logdir] * is_frontend + [str(Path(log).parent) for log in logs if log]
    return any(is_same_folder(each, folder) for each in folders)


def _describe_run(run: Run) -> str:
    record = run.record
    if record and run.folder.parent != runs_folder():
        return f"the run {run.name}, started from {record.started_from},"
    return f"the run {run.name} (--stop --tmux_sess={run.name} ends it)"


def _read_text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.fsdecode(path.read_bytes()).strip()
    return ""
