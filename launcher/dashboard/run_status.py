"""The status of a run as `--status --json` prints it, also of runs that no frontend started."""

from typing import Any

from launcher.dashboard.run_finder import FoundRun
from launcher.follow import status
from launcher.supervise import file_lock
from launcher.supervise.task import FINAL_STATES

Status = dict[str, Any]


def read_status(found: FoundRun) -> Status:
    """Return the status of a run; of one without known processes, what its folder tells."""
    if found.run and (known := status.snapshot_without_gpus(found.run)):
        return known
    state, row = state_of_folder(found), status.last_row(found.logdir / "metrics.jsonl", 0.0)
    if state in FINAL_STATES:
        row["verdict"] = status.describe_end(row)
    return {
        "name": found.name,
        "state": state,
        "logdir": str(found.logdir),
        "seconds": None,
        **row,
        "controller": None,
        "processes": [],
    }


def unreadable_status(found: FoundRun, error: Exception) -> Status:
    """Return the status of a run whose files cannot be read because of this error."""
    return {
        "name": found.name,
        "state": "unreadable",
        "logdir": str(found.logdir),
        "failure": describe_error(error),
        "processes": [],
    }


def describe_error(error: Exception) -> str:
    """Return what kind of error it is, and what it says."""
    return f"{type(error).__name__}: {error}"


def state_of_folder(found: FoundRun) -> str:
    """Return the state of a run of which only the folder is known."""
    return "running" if file_lock.is_held(found.logdir / "lock") else "ended"


def is_live(known: Status) -> bool:
    """Return whether a run's learners have not ended, as far as is known."""
    return known["state"] not in (*FINAL_STATES, "ending", "lost", "stale", "elsewhere")
