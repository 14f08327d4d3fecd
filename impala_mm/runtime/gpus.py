"""The use of this machine's GPUs, by nvidia-smi."""

import contextlib
import shutil
import subprocess
import threading
import time
from typing import NamedTuple

from impala_mm.runtime import thread_names

_KEYS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")
_TIMEOUT = 5.0  # seconds that nvidia-smi may take
_SECONDS = 10.0  # between two measurements: nvidia-smi takes up to a second of a core


class GpuUse(NamedTuple):
    """The use of one GPU; texts are as nvidia-smi prints them, such as 37 or [N/A]."""

    number: str
    name: str
    used: str  # % of the time in which it was busy
    memory: str  # MiB in use
    of: str  # MiB


def measure() -> list[GpuUse]:
    """Return the present use of each GPU; empty without nvidia-smi, or if that fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, TypeError):
        ran = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_KEYS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
        return [GpuUse(*line.split(", ")) for line in ran.stdout.splitlines()]
    return []


class GpuWatch(threading.Thread):
    """A thread that measures regularly, so that nobody waits for nvidia-smi."""

    def __init__(self) -> None:
        super().__init__(name="gpus", daemon=True)
        self.newest: list[GpuUse] = []

    def run(self) -> None:
        """Measure until the process ends, if this machine has nvidia-smi."""
        thread_names.name_thread("gpus")
        while shutil.which("nvidia-smi"):
            self.newest = measure()
            time.sleep(_SECONDS)
