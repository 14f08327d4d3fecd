"""The start of a learner's process: its levels and device, and its flags for this environment.

`jobs.learner` imports this once TensorFlow is loaded; `setup` builds the learner of a `Start`.
"""

import contextlib
import os
from typing import NamedTuple

import tensorflow as tf

from impala_mm.config import auto, flags
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config, UpdateThreads
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments import from_flags
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import phases, resume
from impala_mm.records.outputs import RunOutputs
from impala_mm.records.run_folder import RunFolder
from impala_mm.replay.source import Turns
from impala_mm.runtime import devices, lifecycle, ports
from impala_mm.runtime.log import Say
from impala_mm.runtime.starter import process_rank


def find_levels_and_device(config: Config) -> tuple[dict[str, EnvironmentSpec], str]:
    """Set the numbers of threads and the device; return the levels, and the device in words.

    TensorFlow must not have computed anything before.
    """
    if config.deterministic_run:
        lifecycle.use_deterministic_operations()
    here, cores = process_rank(), len(os.sched_getaffinity(0))
    share = max(1, cores // here.local_size) if here.local_size > 1 else 0
    lifecycle.set_thread_counts(config.intra_op_threads or share, config.inter_op_threads or 2)
    device = devices.find_device("device", config.device, here.local_rank)
    levels = from_flags.level_specs(config)
    spec, gpu = next(iter(levels.values())), bool(tf.config.get_visible_devices("GPU"))
    if auto.needs_one_thread(config, spec.observation, gpu, config.algorithm in BUILT_IN):
        # TensorFlow refuses if a level has already computed with it.
        with contextlib.suppress(RuntimeError):
            threads = config.update_threads if here.size == 1 else UpdateThreads()
            lifecycle.set_thread_counts(threads.within, threads.at_once)
            device = "one CPU core, since observations are small"
            if threads.cores > 1:
                device = "two CPU cores, since products of matrices are large"
    devices.start_devices()
    return levels, device


class Start(NamedTuple):
    """The things that a learner's process has before its learner is built."""

    config: Config  # the flags as they were given
    levels: dict[str, EnvironmentSpec]  # by name
    group: LearnerGroup
    addresses: list[str]  # of all learners, in the order of ranks
    held: ports.HeldAddress  # where this one listens
    folder: RunFolder | None  # the run's, of rank 0
    began: float  # time.monotonic() of the process
    outputs: RunOutputs
    tools: phases.PolicyTools
    played: Turns | None = None  # of environments in this process, with --debug

    @property
    def say(self) -> Say:
        """What prints a line."""
        return self.outputs.say


def config_for_task(start: Start) -> Config:
    """Return the config with what `auto` stands for in the flags that follow the environment.

    A run that was started before keeps what its folder has recorded.
    """
    config, folder, say = start.config, start.folder, start.say
    spec = next(iter(start.levels.values()))
    recorded = resume.recorded_flags(config, str(folder.path)) if folder else None
    new, own = auto.for_task(config, spec), auto.for_task(config, spec, recorded)
    if folder:
        names, about = list(auto.task_flags(config)), flags.infos(config)
        kept, chosen = flags.changed(new, own, names), flags.changed(config, own, names)
        if kept:
            say(f"{', '.join(flags.arguments(own, kept))}, which this run has recorded")
        elif spec.emulator and (of_games := [n for n in chosen if about[n].of_games]):
            say(f"a game of Atari: {' '.join(flags.arguments(own, of_games))}")
        elif spec.actions.has_box and (of_box := [n for n in chosen if not about[n].of_games]):
            say(f"actions are numbers (Box): {' '.join(flags.arguments(own, of_box))}")
    return auto.adopt(config, start.group.gather(auto.task_flags(own), "task")[0])
