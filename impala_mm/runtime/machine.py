"""The memory, cores and GPUs of this machine, and the refusal of what does not fit in its memory.

It does not import TensorFlow, so that flags can be checked before that is loaded.
"""

import contextlib
import math
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

from impala_mm.config import flags
from impala_mm.runtime import lifecycle

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Return the memory of this machine, or of its container, in bytes."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            found.append(int(Path(path).read_text()))
    return min(found)


def visible_gpus() -> int:
    """Return the number of NVIDIA's GPUs that CUDA shows to this process."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    installed = len(list(Path("/proc/driver/nvidia").glob("gpus/*")))
    if shown is None:
        return installed
    return min(installed, len(re.findall(r"[^,\s]+", shown.partition("-1")[0])))


def refuse_too_many_unrolls(given: str, unrolls: int, unroll_bytes: int) -> None:
    """Refuse the flags `given` if their unrolls need more than the memory of this machine."""
    if why := why_too_many_unrolls(unrolls, unroll_bytes):
        flags.refuse(f"{given}: {why}")


def why_too_many_unrolls(unrolls: int, unroll_bytes: int) -> str:
    """Return why unrolls do not fit in the memory of this machine; empty if they do."""
    needed, available = unrolls * unroll_bytes, memory_bytes()
    if needed <= available:
        return ""
    return (
        f"memory for {unrolls:,} unrolls of {unroll_bytes:,} bytes is needed, "
        f"{needed / 1e9:,.1f} GB ({needed:,} bytes), and this machine has "
        f"{available / 1e9:,.1f} GB ({available:,} bytes)"
    )


class IdleCores:
    """A measurement of idle cores between two calls, whichever programs use the others."""

    def __init__(self, proc: Path = Path("/proc")):
        self._stat = proc / "stat"
        self._before = self._ticks()

    def idle(self) -> float | None:
        """Return the mean number of idle cores since the last call, or None if it is not known."""
        before, self._before = self._before, self._ticks()
        after = self._before
        passed = sum(after) - sum(before)
        if not before or not after or passed <= 0:
            return None
        ours = len(os.sched_getaffinity(0))
        return ours * min(max((after[1] - before[1]) / passed, 0.0), 1.0)

    def _ticks(self) -> tuple[int, ...]:
        """Return (busy, idle) clock ticks since the start of the machine; () if not known."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return ()
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines]
        # user (includes guests), nice, system, idle, waiting for disks, two interrupts, stolen
        times = [list(map(int, each[1:9])) for each in fields if each and each[0] in ours]
        idle = sum(t[3] + t[4] for t in times)
        return sum(map(sum, times)) - idle, idle


_SECONDS = 2.0  # between two measurements: each reads a file for every thread of the process


class Use(NamedTuple):
    """The use of processes."""

    cores: float = 0.0
    memory: float = 0.0  # resident, in MiB

    def in_header(self) -> dict[str, int]:
        """Return the fields of an actor's message that hold it."""
        return {"millicores": round(1000 * self.cores), "memory": round(self.memory)}


class ProcessUse:
    """The use of this process since the last measurement, some seconds ago."""

    def __init__(self) -> None:
        self._ticks, self._measured = dict[tuple[int, int], int](), -math.inf
        self._newest = Use()

    def newest(self) -> Use:
        """Return the newest measurement; measure again if it is too old."""
        seconds = time.monotonic() - self._measured
        if seconds >= _SECONDS:
            with contextlib.suppress(OSError):  # no file can be opened: the last one remains
                self._measure(seconds)
        return self._newest

    def _measure(self, seconds: float) -> None:
        ticks, pages = {}, 0
        for pid in _with_descendants(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid, int(fields[19])] = int(fields[11]) + int(fields[12])
                pages += int(fields[21])
        # Of a process that was not there the last time, the CPU time since then is not known.
        used = sum(new - self._ticks.get(process, new) for process, new in ticks.items())
        cores = used / os.sysconf("SC_CLK_TCK") / seconds
        self._newest = Use(cores, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        self._ticks, self._measured = ticks, time.monotonic()


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += _with_descendants(child)
    return found


_SMI_KEYS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")
_SMI_TIMEOUT = 5.0  # seconds that nvidia-smi may take
_GPU_SECONDS = 10.0  # between two measurements: nvidia-smi takes up to a second of a core


class GpuUse(NamedTuple):
    """The use of one GPU; texts are as nvidia-smi prints them, such as 37 or [N/A]."""

    number: str
    name: str
    used: str  # % of the time in which it was busy
    memory: str  # MiB in use
    of: str  # MiB


def measure_gpus() -> list[GpuUse]:
    """Return the present use of each GPU; empty without nvidia-smi, or if that fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, TypeError):
        ran = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_SMI_KEYS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT,
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
        lifecycle.name_thread("gpus")
        while shutil.which("nvidia-smi"):
            self.newest = measure_gpus()
            time.sleep(_GPU_SECONDS)
