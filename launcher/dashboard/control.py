"""The actions that `--dashboard_control` adds: save and stop runs, apply a changed CSV.

A run of a frontend gets the frontend's own commands, in processes of their own. A run in the
foreground of a terminal is asked as Ctrl-C asks it, through its state folder.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.dashboard.run_finder import FoundRun
from launcher.node.run_registry import Run
from launcher.node.task import SAVE_REQUEST
from launcher.plan import project

ACTIONS = ("save", "stop", "apply")
_SECONDS = 300.0  # timeout of a command


class Refused(Exception):
    """An error: the action is not possible; the message says why."""


def act(found: FoundRun, action: str) -> dict[str, Any]:
    """Do what a page asks for, and return the exit code and what was printed. Raises Refused."""
    if action not in ACTIONS:
        raise Refused(f"{action}: choose one of {', '.join(ACTIONS)}")
    if found.run_name:
        return _call_frontend(_arguments(found, action))
    if not found.state_folder or action == "apply":
        raise Refused(f"{found.name}: only a run that a frontend has started can do that")
    path = found.state_folder / "stop" if action == "stop" else found.logdir / SAVE_REQUEST
    try:
        path.write_text("save")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    asked = "asked to save and stop" if action == "stop" else "asked to save a checkpoint"
    return {"code": 0, "printed": f"{found.name} was {asked}"}


def _arguments(found: FoundRun, action: str) -> list[str]:
    arguments = [f"--{action}", f"--tmux_sess={found.run_name}"]
    if action == "apply":
        record = Run(found.run_name).record
        if not record or not record.csvs:
            raise Refused(f"{found.name}: the CSV that it was started from is not known")
        arguments.append(f"--workers_csv_path={record.csvs[0]}")
    return arguments


def _call_frontend(arguments: Sequence[str]) -> dict[str, Any]:
    program = str(Path(project.ROOT, "run_experiment_mm_raw.py"))
    try:
        ran = subprocess.run(
            [sys.executable, program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C of the dashboard does not end it
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"{' '.join(arguments)} did not end within {_SECONDS:g} s") from None
    return {"code": ran.returncode, "printed": ran.stdout[-4000:]}
