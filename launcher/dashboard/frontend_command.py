"""The frontend's own commands for a run, which a dashboard calls as processes of their own."""

import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.plan import project


def frontend_command(name: str, action: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command that does something with the run `name`; `flags` are those of the user."""
    program = str(Path(project.ROOT, "run_experiment_mm_raw.py"))
    return [sys.executable, program, action, f"--tmux_sess={name}", *flags]
