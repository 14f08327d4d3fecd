"""The origin of a run: versions of packages, the state of this code, the machine."""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from impala_mm.runtime.safe_files import text_of

_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "dm-sonnet", "horovod", "mpi4py", "numpy"),
    *("gymnasium", "gym", "ale-py", "opencv-python-headless"),
)
_ROOT = Path(__file__).resolve().parents[2]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect a run."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def revision() -> str:
    """Return Git's name of this code, with `-dirty` if it was changed since.

    Return an empty string if this is not a Git checkout. Git is only asked about our own checkout:
    a virtual environment with this package may lie within another project's.
    """
    if not (_ROOT / ".git").exists():
        return ""
    return _git("describe", "--always", "--dirty", "--abbrev=12").strip()


def changes() -> str:
    """Return the changes since that revision as `git diff` prints them; new files by name only."""
    if not revision().endswith("-dirty"):
        return ""
    new = _git("ls-files", "--others", "--exclude-standard")
    return _git("diff", "HEAD") + "".join(f"# not in git: {name}\n" for name in new.splitlines())


def machine() -> str:
    """Return the machine's cores, processor and memory, as far as the system reports them."""
    model = re.search(r"model name\s*: (.*)", text_of("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", text_of("/proc/meminfo"))
    cores = len(os.sched_getaffinity(0))
    size = f", {int(memory[1]) / 2**20:.0f} GiB" if memory else ""
    return f"{cores} cores ({model[1] if model else platform.machine()}){size}"


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.decode(errors="replace")
