"""One process of a run as its supervisor reads it, and the files by which they all talk.

In the run's state folder, which is its owner's alone:

    NAME/task.json     what is to be run (`Task`); removed once read, for it holds an environment
    NAME/state.json    how it is (`Supervisor` lists what): written on every change and every 2 s
    NAME/stop, stop    orders to end, to this one and to all: "save", or "now"
    NAME/beat          touched by the process itself while it gets on; of several learners each its
                       own, NAME/beat-RANK
    ranks/             beats of learners whose supervisor is on another host
    news               updated while a frontend on another host is connected to this one

Nothing but Python's own library is imported here and in what else is sent to hosts that may have no
more of this project (`launcher/node`).
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

FINAL_STATES = ("ended", "failed", "stopped")  # states that nothing comes after
LEARNERS = "learners"  # the name of the process that all of them are
RANK_BEATS_FOLDER = "ranks"  # folder of the beats of learners on other hosts than the first's
LEARNERS_VARIABLE = "IMPALA_MM_LEARNERS"  # in the environment of all ranks of a run: its id
HEARTBEAT = "IMPALA_MM_HEARTBEAT"  # in a process's environment: the file that it touches
USER_ERROR = 2  # exit code of a process that its user must mend: starting it again helps nobody


class Task(NamedTuple):
    """One process and how it is to be kept."""

    name: str
    job: str
    host: str
    command: list[str]
    environment: dict[str, str]  # all of it
    workdir: str
    folder: str  # the run's state folder
    log: str  # the file of its output; "": none, its output is shown on the user's own terminal
    log_max_mb: float
    leader: str  # the process whose end ends this one; "" for the learners themselves
    lease_secs: float  # of one whose leader is on another host: without news of it and without
    # getting on for so long, it ends; 0: its leader is here
    rows: str  # file that grows once there is something to save by SIGUSR1; "" where there never is
    agent: list[str]  # by which learners' mpirun reaches other hosts; empty: it needs none
    restarts: int  # deaths, one soon after the other, that are mended
    stall_secs: float  # without a beat of its heartbeat; 0: for ever
    grace_secs: float  # seconds between a request to save and SIGTERM
    # [pid, start time] of a process whose end kills this one at once; None: there is none
    parent: list[int] | None = None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, and for its owner alone."""
    work = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    work.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is none yet."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return {}
