"""The checks before a run starts: flags, ports, versions, disks, GPUs and network.

`commands.launch` calls it; modules of the user add checks. It must not import `commands`.
"""

from launcher.checks.check import (
    CheckedHost,
    Finding,
    PlannedRun,
    Scope,
    check,
    failed,
    note,
    passed,
)

__all__ = ["CheckedHost", "Finding", "PlannedRun", "Scope", "check", "failed", "note", "passed"]
