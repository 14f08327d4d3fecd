"""The actions that `--dashboard_control` adds: save and stop runs, apply a changed CSV.

A run of a frontend gets the frontend's own commands, in processes of their own. A run in the
foreground of a terminal is asked as Ctrl-C asks it, through its state folder.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_mm.config.messages import program
from launcher.dashboard.run_finder import FoundRun
from launcher.dashboard.run_status import is_live, read_status
from launcher.plan import project
from launcher.supervise.run_registry import Run
from launcher.supervise.task import SAVE_REQUEST

ACTIONS = ("save", "stop", "apply")
_SECONDS = 300.0  # timeout of a command


class Refused(Exception):
    """An error: the action is not possible; the message says why."""


def act(found: FoundRun, action: str, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Do what a page asks for, and return the exit code and what was printed. Raises Refused.

    `flags` are the user's, for the frontend's commands.
    """
    if action not in ACTIONS:
        raise Refused(f"{action}: choose one of {', '.join(ACTIONS)}")
    if found.run_name:
        more = _flags_of_csv(found) if action == "apply" else []
        return _call(frontend_command(found.run_name, f"--{action}", [*more, *flags]))
    if not found.run or action == "apply":
        raise Refused(f"{found.name}: only a run that a frontend has started can do that")
    known = read_status(found)
    if not is_live(known):
        raise Refused(
            f"{found.name}: its state is {known['state']}, so that nothing would read the request; "
            f"`{program()}` with --logdir={found.logdir} continues it"
        )
    path = found.run.folder / "stop" if action == "stop" else found.logdir / SAVE_REQUEST
    try:
        path.write_text("save")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    asked = "asked to save and stop" if action == "stop" else "asked to save a checkpoint"
    return {"code": 0, "printed": f"{found.name} was {asked}"}


def frontend_command(name: str, action: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the frontend's command about the run `name`; `flags` are those of the user."""
    program = str(Path(project.ROOT, "run_experiment_mm_raw.py"))
    return [sys.executable, program, action, f"--tmux_sess={name}", *flags]


def _flags_of_csv(found: FoundRun) -> list[str]:
    record = Run(found.run_name).record
    if not record or not record.csvs:
        raise Refused(f"{found.name}: the CSV that it was started from is not known")
    return [f"--workers_csv_path={record.csvs[0]}"]


def _call(command: Sequence[str]) -> dict[str, Any]:
    try:
        ran = subprocess.run(
            command,
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
        raise Refused(f"{command[2]} did not end within {_SECONDS:g} s") from None
    return {"code": ran.returncode, "printed": ran.stdout[-4000:]}
