"""Starts the programs of this package on the machine where a process runs.

    launcher.supervise.supervisor TASK.json     runs a process; in the background, outside of tmux
    launcher.supervise.window FOLDER            shows a process; in a window of tmux
    launcher.supervise.mpi_agent HOST ...       is called by mpirun, for each other learners' host
    launcher.supervise.mpi_host ADDRESS ...     runs mpirun's daemon on another learners' host
    launcher.supervise.file_service             sends and receives files, over SSH

They need no installed packages; without them Python starts in half the time.

With KillUserProcesses=yes systemd ends at a logout all that the login has started, in whatever
session and process group. What the user's own manager has started instead stays, as long as the
user "lingers".
"""

import functools
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.supervise.task import PORTS_VARIABLE

PACKAGE = "launcher.supervise"  # first word of a command for `complete`
_FOLDER = Path(__file__).resolve().parent  # in the project's clone, or in the archive of it
_LOGIND_SECONDS = 5.0  # timeout for an answer of systemd


def command_of(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program of this package, in any working directory."""
    return [sys.executable, "-ES", str(_FOLDER), f"{PACKAGE}.{program}", *arguments]


def complete(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return a command and its environment as they are on this machine.

    [PACKAGE, PROGRAM, ...] becomes that program of this package. An mpirun that starts learners on
    other hosts calls `mpi_agent` instead of ssh; it takes no paths that contain spaces or colons.
    """
    found = dict(environment)
    if PORTS_VARIABLE in environment:
        found["PRTE_MCA_plm_ssh_agent"] = " ".join(command_of("mpi_agent"))
    return command_of(*command[1:]) if command[0] == PACKAGE else list(command), found


def start_supervisor(
    task: Path, shows_output: bool = False, before: Sequence[str] = ()
) -> subprocess.Popen:
    """Start the supervisor of a task in a session of its own, which no terminal can end.

    `before`: what is put before its command.
    Its output is lost, unless `shows_output`: then it goes to the terminal of this process.
    """
    output = None if shows_output else subprocess.DEVNULL
    return subprocess.Popen(
        [*before, *command_of("supervisor", str(task))],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal is for the process that follows the run
    )


@functools.cache
def staying_command() -> list[str] | None:
    """Return what to put before a command so that it stays after the logout; None: nothing helps.

    The result is empty where systemd does not end processes at the logout.
    """
    manager = _properties("show-session", "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
    user, only = _user(), manager.get("KillOnlyUsers", "").split()
    are_killed = user in only if only else manager.get("KillUserProcesses") == "yes"
    if not are_killed or user in manager.get("KillExcludeUsers", "").split():
        return []
    command = ["systemd-run", "--user", "--scope", "--quiet", "--"]
    lingers = _properties("show-user", "Linger", name=user).get("Linger") == "yes"
    return command if lingers and _output([*command, "true"]) is not None else None


def _user() -> str:
    """Return the name of this user, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _output(command: list[str]) -> str | None:
    """Return what a command prints; None if it fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_LOGIND_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):  # there is no systemd; it hangs
        return None


def _properties(verb: str, *names: str, name: str = "") -> dict[str, str]:
    """Return properties of a user, or of the manager of all logins; empty without systemd."""
    command = ["loginctl", verb, *([name] if name else []), *(f"--property={n}" for n in names)]
    lines = (_output(command) or "").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
