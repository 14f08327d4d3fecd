"""The memory, cores and GPUs of this machine, and the refusal of what does not fit in its memory.

It does not import TensorFlow, so that flags can be checked before that is loaded.
"""

import contextlib
import os
import re
from pathlib import Path

from impala_mm.config import flags

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
