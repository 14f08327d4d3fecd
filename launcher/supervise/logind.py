"""Asks systemd whether it ends this user's processes at the logout, and how they can stay.

With KillUserProcesses=yes it ends all that a login has started, in whatever session and process
group. What the user's own manager has started instead stays, as long as the user "lingers".
"""

import contextlib
import functools
import os
import pwd
import subprocess

_SECONDS = 5.0  # timeout for an answer


@functools.cache
def ends_processes() -> bool:
    """Return whether the processes that a login of this user starts end with it."""
    manager = _properties("show-session", "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
    if not manager:
        return False
    user, only = _user(), manager.get("KillOnlyUsers", "").split()
    if user in manager.get("KillExcludeUsers", "").split():
        return False
    return user in only if only else manager.get("KillUserProcesses") == "yes"


@functools.cache
def staying_command() -> list[str] | None:
    """Return what to put before a command so that it stays after the logout; None: nothing helps.

    The result is empty where systemd does not end processes at the logout.
    """
    if not ends_processes():
        return []
    command = ["systemd-run", "--user", "--scope", "--quiet", "--"]
    lingers = _properties("show-user", "Linger", name=_user()).get("Linger") == "yes"
    return command if lingers and _works([*command, "true"]) else None


def _user() -> str:
    """Return the name of this user, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _works(command: list[str]) -> bool:
    """Return whether a command succeeds."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        return ran.returncode == 0
    return False


def _properties(verb: str, *names: str, name: str = "") -> dict[str, str]:
    """Return properties of a user, or of the manager of all logins; empty without systemd."""
    command = ["loginctl", verb, *([name] if name else []), *(f"--property={n}" for n in names)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
    return {}
