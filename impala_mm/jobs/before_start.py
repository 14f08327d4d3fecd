"""The checks of a run before it starts: of its environments, and of numbers that make it slow.

--validate makes the complete check. The process that starts a run makes one of two seconds.
"""

import os
import sys

from impala_mm.config import auto, flags
from impala_mm.config.messages import escape
from impala_mm.config.settings import Config
from impala_mm.environments.check_process import CheckProcess
from impala_mm.environments.make import level_names
from impala_mm.environments.types import GENERAL_FLAGS
from impala_mm.runtime import machine, starter

_SECONDS_BEFORE_TRAINING = 2.0


def start(config: Config, seconds: float) -> CheckProcess:
    """Start a check of all levels that may take `seconds`."""
    names = level_names(config.level_name) if seconds else []
    options = {name: getattr(config, name) for name in GENERAL_FLAGS}
    return CheckProcess(names, options, seconds, config.actor_device == "cpu")


def refuse_broken(check: CheckProcess) -> None:
    """Wait for the check and print its warnings; exit with code 2 if it found errors."""
    errors, warnings = check.result()
    for warning in warnings:
        flags.warn(warning)
    for number, (sentence, traceback) in enumerate(errors, 1):
        if traceback:
            print(escape(traceback), file=sys.stderr)
        if number == len(errors):
            flags.refuse(sentence)
        print(f"error: {escape(sentence)}", file=sys.stderr)


def was_made() -> bool:
    """Return whether the program that started this process has checked the environments.

    `experiment.py` without a role has, and so has the frontend, among its checks of the hosts.
    """
    return bool(starter.start_id())


def before_training(config: Config) -> None:
    """Check all levels for at most two seconds; exit with code 2 if one is broken."""
    refuse_broken(start(config, min(config.check_env_secs, _SECONDS_BEFORE_TRAINING)))


def warn_of_slow(config: Config, learners: int) -> None:
    """Warn of groups of different sizes, and of more learners than this machine has devices.

    `learners` is the number of learners on this machine.
    """
    if uneven := auto.uneven_groups(config):
        flags.warn(uneven)
    cores = len(os.sched_getaffinity(0))
    gpus = machine.visible_gpus() if config.device != "cpu" else 0
    shared, unit = (gpus, "GPU") if gpus else (cores, "core")
    if learners > shared:
        flags.warn(
            f"{learners} learners share {shared} {unit}{'s' * (shared > 1)} of this machine, so "
            f"that each waits while another computes: {shared} or fewer are faster"
        )
