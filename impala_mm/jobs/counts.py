"""Warnings of numbers of processes and environments that work, but slowly.

--validate and the process that starts a run call it, before TensorFlow is loaded.
"""

import os

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.runtime import machine


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
