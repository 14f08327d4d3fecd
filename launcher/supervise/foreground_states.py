"""The states of processes that an experiment.py runs in the foreground of its terminal.

`foreground` names the run's folder in its temporary state folder, TMPDIR/impala_mm-HOST.PID-*/, so
that the dashboard finds the processes of a run's folder.
"""

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.supervise import procfs
from launcher.supervise.process_state import read_state
from launcher.supervise.task import FINAL_STATES, LEARNERS

_LOGDIR_FILE = "logdir"


def folder_prefix() -> str:
    """Return how the name of this process's state folder begins; `leftovers` reads it."""
    return f"impala_mm-{socket.gethostname()}.{os.getpid()}-"


def write_logdir(state_folder: Path, logdir: Path) -> None:
    """Write down to which run's folder a state folder belongs."""
    with contextlib.suppress(OSError):  # the disk may be full
        (state_folder / _LOGDIR_FILE).write_bytes(os.fsencode(logdir.absolute()))


def find_state_folders() -> dict[Path, Path]:
    """Return the state folders of this user's experiment.py on this host, by the run's folder.

    A run that was killed leaves its state folder behind: of several for the same run's folder it is
    the one whose learners' supervisor lives, else the newest.
    """
    found = {}
    pattern = f"impala_mm-{socket.gethostname()}.*/{_LOGDIR_FILE}"
    all_folders = [path.parent for path in Path(tempfile.gettempdir()).glob(pattern)]
    folders = filter(_is_own, all_folders)  # nothing is read in those of other users
    for folder in sorted(folders, key=lambda each: (_is_live(each), start_of(each))):
        with contextlib.suppress(OSError):
            logdir = os.fsdecode((folder / _LOGDIR_FILE).read_bytes())
            found[Path(logdir).resolve()] = folder
    return found


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.lstat().st_uid == os.geteuid()
    return False


def _is_live(state_folder: Path) -> bool:
    state = read_state(state_folder / LEARNERS)
    return bool(state) and procfs.is_alive(state["supervisor"])


def read_states(state_folder: Path) -> dict[str, dict[str, Any]]:
    """Return the state of each process by name, the learners' first."""
    found = {}
    for path in state_folder.glob("*/state.json"):
        state = read_state(path.parent)
        if not state:
            continue
        if state["state"] not in FINAL_STATES and not procfs.is_alive(state["supervisor"]):
            state["state"] = "lost"
        found[path.parent.name] = state

    def order(name: str) -> tuple[bool, int, str]:
        number = name.rpartition("-")[2]
        return found[name]["job"] != "learner", int(number) if number.isdecimal() else 0, name

    return {name: found[name] for name in sorted(found, key=order)}


def start_of(state_folder: Path) -> float:
    """Return when its run was started, in seconds since 1970."""
    try:
        return (state_folder / _LOGDIR_FILE).stat().st_mtime
    except OSError:
        return time.time()
