"""The run as a file for another launcher: `--emit=NAME` prints it.

A module for each launcher, which places, starts and restarts the processes. This package starts
nothing and asks no host. Modules of the user add launchers.
"""

from collections.abc import Callable, Sequence

from impala_mm.config.registry import Registry
from launcher.plan.request import Request
from launcher.plan.workers_csv import Worker

# From the run's name, its rows and the request: the text, and notes on what it leaves out.
Emitter = Callable[[str, Sequence[Worker], Request], tuple[str, list[str]]]
EMITTERS: Registry[Emitter] = Registry(
    "launcher to emit for",
    {
        "slurm": "launcher.emit.slurm:emit",
        "jobset": "launcher.emit.jobset:emit_jobset",
        "mpijob": "launcher.emit.mpijob:emit",
        "trainjob": "launcher.emit.jobset:emit_trainjob",
    },
)
