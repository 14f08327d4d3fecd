"""The check of a run's environments before it starts, and the refusal of broken ones.

--validate makes the complete check. The process that starts a run makes one of two seconds.
"""

import sys

from impala_mm.config import flags
from impala_mm.config.printable import escape
from impala_mm.config.settings import Config
from impala_mm.environments.check_process import CheckProcess
from impala_mm.environments.types import GENERAL_FLAGS
from impala_mm.runtime import starter

_SECONDS_BEFORE_TRAINING = 2.0


def start(config: Config, seconds: float) -> CheckProcess:
    """Start a check of all levels that may take `seconds`."""
    names = [name.strip() for name in config.level_name.split(",")] if seconds else []
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
