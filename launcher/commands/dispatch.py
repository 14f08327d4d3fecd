"""What the frontend does, by its flags: starts a run and watches it, or asks after one.

`run_experiment_mm_raw.py` calls it with what it has read. What goes wrong by the user's doing is a
`UserError`; the sentence is all that is printed of it.
"""

import contextlib
import sys
from collections.abc import Callable

from launcher.commands import manage
from launcher.commands.apply import NotRunning
from launcher.commands.launch import launch
from launcher.node import tmux
from launcher.node.run_registry import InvalidRunName, Run, RunInUse, UnreadableRecord
from launcher.plan import process_plan, slurm
from launcher.plan.request import Request, UserError, read_workers, refuse_launcher_flags
from launcher.plan.workers_csv import BadCsv
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.ssh.ssh_config import Unreachable


def main(request: Request) -> int:
    """The exit code."""
    config = request.launcher
    handlers: list[tuple[object, Callable[[Run, Request], int]]] = [
        (config.stop, manage.stop_run),
        (config.status or config.json, manage.show_status),
        (config.attach, manage.attach_run),
        (config.logs, manage.show_log),
        (config.fetch, manage.fetch_files),
        (config.apply, manage.apply_csv),
        (config.emit, emit_script),
    ]
    act = next((act for is_asked, act in handlers if is_asked), launch)
    try:
        return act(Run(config.tmux_sess), request)
    except InvalidRunName as error:
        raise UserError(f"--tmux_sess: {error}") from None
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk that is full, a folder that is not ours
        raise UserError(f"{error.filename or 'it cannot go on'}: {error.strerror}") from None
    except (
        BadCsv,
        UnreadableRecord,
        RunInUse,
        NotRunning,
        OperationFailed,
        HostUnavailable,
        Unreachable,  # an SSH configuration that cannot be read
        process_plan.PlanError,
        tmux.TmuxError,
    ) as error:
        raise UserError(str(error)) from None


def emit_script(run: Run, request: Request) -> int:
    """Prints the run as a job of another launcher; all else goes to stderr."""
    config = request.launcher
    if config.emit != "slurm":
        raise UserError(f"--emit={config.emit}: it must be slurm")
    refuse_launcher_flags(request)
    with contextlib.redirect_stdout(sys.stderr):
        workers = read_workers(request)
        for note in slurm.list_notes(workers, config, request.given):
            print(f"note: {note}")
    print(slurm.make_script(run.name, workers, config, request.flags), end="")
    return 0
