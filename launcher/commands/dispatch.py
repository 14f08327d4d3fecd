"""Selects the command of the frontend by its flags: start and follow a run, or one of the others.

`run_experiment_mm_raw.py` calls `main` with the parsed flags. Errors that the user can fix are
raised as `LauncherError`, whose message is printed without a traceback.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable

from impala_mm.config.user_sources import TooManyFiles
from impala_mm.runtime.certificates import CannotMake
from launcher.commands import apply, manage
from launcher.commands.launch import launch
from launcher.emit import EMITTERS, slurm
from launcher.experiments.run import begin_array, run_experiment
from launcher.follow import names, remembered
from launcher.follow.console import say
from launcher.plan import hosts_from
from launcher.plan.request import (
    NUMBERS,
    Request,
    UserError,
    check_flags,
    count_workers,
    read_workers,
    refuse_passwords,
)
from launcher.supervise.run_registry import Run


def emit_script(run: Run, request: Request) -> int:
    """Print the run as a file for another launcher; notes go to stderr."""
    config = request.launcher
    if config.emit not in EMITTERS:
        raise UserError(f"--emit={config.emit}: {EMITTERS.unknown(config.emit)}")
    with contextlib.redirect_stdout(sys.stderr):
        check_flags(request)
        emit = _emit_array if config.experiment else _emit_run
        text, notes = emit(run.name, request)
        for note in notes:
            say(f"note: {note}")
    print(text, end="")
    return 0


def _emit_run(name: str, request: Request) -> tuple[str, list[str]]:
    """Return the file for one run, and notes."""
    config = request.launcher
    is_counted = any(name in request.given for name in NUMBERS)
    workers = count_workers(request) if is_counted else read_workers(request)
    given = [name for name in request.given if name not in NUMBERS]
    request = dataclasses.replace(request, given=given)
    refuse_passwords(workers, config)
    return EMITTERS[config.emit](name, workers, request)


def _emit_array(_: str, request: Request) -> tuple[str, list[str]]:
    """Return the script of a Slurm array whose jobs are the trials of an experiment, and notes."""
    if request.launcher.emit != "slurm":
        raise UserError(
            f"--emit={request.launcher.emit} is about one run; slurm takes --experiment"
        )
    experiment, rows, numbers = begin_array(request)
    if not numbers:
        raise UserError(f"{experiment.folder}: all trials have ended")
    needs = experiment.needs
    trials = slurm.Trials(
        str(experiment.folder), numbers, experiment.at_once, needs.cores, needs.gpus
    )
    return slurm.emit(experiment.folder.name, rows, request, trials)


# By the flag that asks for it; without one of them a run is started.
COMMANDS: dict[str, Callable[[Run, Request], int]] = {
    "dry_run": launch,
    "check": launch,
    "emit": emit_script,
    "status": manage.show_status,
    "json": manage.show_status,
    "logs": manage.show_log,
    "attach": manage.attach_run,
    "control": manage.control_run,
    "apply": apply.apply_csv,
    "save": manage.save_now,
    "fetch": manage.fetch_files,
    "stop": manage.stop_run,
}


def main(request: Request) -> int:
    """Run the command that the flags ask for, and return its exit code. Raises LauncherError."""
    config = request.launcher
    asked = [name for name in COMMANDS if getattr(config, name)]
    if "control" in asked:  # a controller has the other flags of the command that leaves it
        asked = ["control"]
    if len(asked) > 1 and asked != ["status", "json"]:
        raise UserError(f"--{asked[0]} and --{asked[1]} are two commands: give one of them")
    act = COMMANDS[asked[0]] if asked else launch
    if config.experiment and act not in (launch, emit_script):
        raise UserError(
            f"--{asked[0]} is about one run: give --tmux_sess=NAME of a trial, without --experiment"
        )
    try:
        if config.hosts_from and hosts_from.rank():
            hosts_from.wait_for_the_first()
            return 0
        if config.experiment and act is launch:
            return run_experiment(request)
        run = Run(config.tmux_sess)
        if act not in (launch, emit_script):
            run = names.find(run.name, "tmux_sess" in request.given)
            request = remembered.use(run, request)
        return act(run, request)
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk, or a folder without permissions
        what = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{what}{error.strerror or error}") from None
    except (TooManyFiles, CannotMake) as error:
        raise UserError(str(error)) from None
