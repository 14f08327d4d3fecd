"""Asks systemd whether it ends this user's processes at the logout, and how they can stay.

With KillUserProcesses=yes it ends all that a login has started, in whatever session and process
group. What the user's own manager has started instead stays, as long as the user "lingers".
"""

import contextlib
import functools
import getpass
import shutil
import subprocess

_SECONDS = 5.0  # timeout for an answer


@functools.cache
def ends_processes() -> bool:
    """Return whether the processes that a login of this user starts end with it."""
    manager = _properties("show-session", "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
    user, only = getpass.getuser(), manager.get("KillOnlyUsers", "").split()
    return (
        manager.get("KillUserProcesses") == "yes"
        and user not in manager.get("KillExcludeUsers", "").split()
        and (not only or user in only)
    )


@functools.cache
def staying_command() -> list[str] | None:
    """Return what to put before a command so that it stays after the logout; None: nothing helps.

    The result is empty where systemd does not end processes at the logout.
    """
    if not ends_processes():
        return []
    lingers = _properties("show-user", "Linger", name=getpass.getuser()).get("Linger") == "yes"
    if lingers and shutil.which("systemd-run"):
        return ["systemd-run", "--user", "--scope", "--quiet", "--"]
    return None


def _properties(verb: str, *names: str, name: str = "") -> dict[str, str]:
    """Return properties of a user, or of the manager of all logins; empty without systemd."""
    command = ["loginctl", verb, *([name] if name else []), *(f"--property={n}" for n in names)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
    return {}
