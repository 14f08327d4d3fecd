"""Selects the command of the frontend by its flags: start and follow a run, or one of the others.

`run_experiment_mm_raw.py` calls `main` with the parsed flags. Errors that the user can fix are
raised as `UserError`, whose message is printed without a traceback.
"""

import contextlib
import sys
from collections.abc import Callable

from launcher.commands import manage
from launcher.commands.apply import NotRunning
from launcher.commands.launch import launch
from launcher.follow import follow, names, remembered
from launcher.follow.console import say
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import process_plan, slurm
from launcher.plan.request import Request, UserError, read_workers, refuse_launcher_flags
from launcher.plan.workers_csv import BadCsv
from launcher.supervise import tmux
from launcher.supervise.run_registry import (
    InvalidRunName,
    Run,
    RunInUse,
    UnreadableRecord,
    UnwritableState,
)


def main(request: Request) -> int:
    """Run the command that the flags ask for, and return its exit code. Raises UserError."""
    config = request.launcher
    commands: dict[str, Callable[[Run, Request], int]] = {
        **{"stop": manage.stop_run, "save": manage.save_now, "control": manage.control_run},
        **{"status": manage.show_status, "json": manage.show_status, "attach": manage.attach_run},
        **{"logs": manage.show_log, "fetch": manage.fetch_files, "apply": manage.apply_csv},
        **{"emit": emit_script, "check": launch, "dry_run": launch},
    }
    asked = {name: act for name, act in commands.items() if getattr(config, name)}
    if "control" in asked:  # a controller has the other flags of the command that leaves it
        asked = {"control": asked["control"]}
    if len(asked) > 1 and set(asked) != {"status", "json"}:
        first, second, *_ = asked
        raise UserError(f"--{first} and --{second} are two commands: give one of them")
    act = next(iter(asked.values()), launch)
    try:
        run = Run(config.tmux_sess)
        if act not in (launch, emit_script):
            run = names.find(run.name, "tmux_sess" in request.given)
            request = remembered.use(run, request)
        return act(run, request)
    except InvalidRunName as error:
        raise UserError(f"--tmux_sess: {error}") from None
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk, or a folder without permissions
        what = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{what}{error.strerror or error}") from None
    except (
        BadCsv,
        UnreadableRecord,
        UnwritableState,
        RunInUse,
        NotRunning,
        follow.NoAddresses,
        OperationFailed,
        HostUnavailable,
        process_plan.PlanError,
        tmux.TmuxError,
    ) as error:
        raise UserError(str(error)) from None


def emit_script(run: Run, request: Request) -> int:
    """Print the run as a script of another launcher; notes go to stderr."""
    config = request.launcher
    if config.emit != "slurm":
        raise UserError(f"--emit={config.emit}: the only choice is slurm")
    refuse_launcher_flags(request)
    with contextlib.redirect_stdout(sys.stderr):
        workers = read_workers(request)
        for note in slurm.list_notes(workers, config, request.given):
            say(f"note: {note}")
    print(slurm.make_script(run.name, workers, config, request.flags), end="")
    return 0
