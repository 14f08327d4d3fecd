"""What the frontend does, by its flags: starts a run and watches it, or asks after one.

`run_experiment_mm_raw.py` calls it with what it has read. What goes wrong by the user's doing is a
`Refused`; the sentence is all that is printed of it.
"""

import contextlib
import sys
from collections.abc import Callable

from launcher.commands import apply as change
from launcher.commands import manage
from launcher.commands.launch import launch
from launcher.node import tmux
from launcher.node.run_registry import BadName, Foreign, Run, Taken
from launcher.plan import process_plan, slurm
from launcher.plan.request import Asked, Refused, read_csv, refuse_what_is_ours
from launcher.plan.workers_csv import BadCsv
from launcher.remote.remote_node import Failed, Lost
from launcher.ssh.ssh_config import Unreachable


def main(asked: Asked) -> int:
    """The exit code."""
    config = asked.launcher
    instead: list[tuple[object, Callable[[Run, Asked], int]]] = [
        (config.stop, manage.stop),
        (config.status or config.json, manage.show),
        (config.attach, manage.attach),
        (config.logs, manage.logs),
        (config.fetch, manage.bring),
        (config.apply, manage.apply),
        (config.emit, emit),
    ]
    act = next((act for is_asked, act in instead if is_asked), launch)
    try:
        return act(Run(config.tmux_sess), asked)
    except BadName as error:
        raise Refused(f"--tmux_sess: {error}") from None
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk that is full, a folder that is not ours
        raise Refused(f"{error.filename or 'it cannot go on'}: {error.strerror}") from None
    except (
        BadCsv,
        Foreign,
        Taken,
        change.Over,
        Failed,
        Lost,
        Unreachable,  # an SSH configuration that cannot be read
        process_plan.Unfit,
        tmux.Broken,
    ) as error:
        raise Refused(str(error)) from None


def emit(run: Run, asked: Asked) -> int:
    """Prints the run as a job of another launcher; all else goes to stderr."""
    config = asked.launcher
    if config.emit != "slurm":
        raise Refused(f"--emit={config.emit}: it must be slurm")
    refuse_what_is_ours(asked)
    with contextlib.redirect_stdout(sys.stderr):
        workers = read_csv(asked)
        for note in slurm.notes(workers, config, asked.given):
            print(f"note: {note}")
    print(slurm.script(run.name, workers, config, asked.flags), end="")
    return 0
