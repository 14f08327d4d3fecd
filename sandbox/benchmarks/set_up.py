"""The cost of each part of the set-up: MB to download, MB on disk, CPU seconds to install.

    make wheelhouse ROLE=all
    .venv/bin/python sandbox/benchmarks/set_up.py wheelhouse

The parts are the optional sets of pyproject.toml; a package counts in the first that needs it. Each
is installed into an empty environment as set-up does it, without a cache and with bytecode, from
the wheelhouse, so that the network costs nothing.
"""

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_UV = Path(sys.prefix) / "bin" / "uv"
_PARTS = (
    *((), ("cpu",), ("environments",), ("multi", "openmpi", "build-horovod")),
    *(("launcher",), ("dev",), ("setup",)),
)


class Cost(NamedTuple):
    """The cost of some packages."""

    packages: int
    download: float  # MB
    disk: float  # MB
    cpu: float  # seconds


def main() -> None:
    """Measure all parts and print a table."""
    wheels = Path(sys.argv[1]).resolve()
    print("| part | packages | MB to download | MB on disk | CPU seconds |\n|---|---|---|---|---|")
    extras: list[str] = []
    known: set[str] = set()
    costs = []
    for part in _PARTS:
        extras += part
        packages = _needed(extras) - known
        known |= packages
        costs.append(_measure(packages, wheels))
        _show(", ".join(part) or "the library itself", costs[-1])
    _show("all", Cost(*(sum(column) for column in zip(*costs, strict=True))))


def _needed(extras: list[str]) -> set[str]:
    """Return the packages of these optional sets, each as NAME==VERSION."""
    command = [_UV, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--system-certs"]
    command += ["--constraint", "constraints.lock", "--python", sys.executable, "pyproject.toml"]
    command += [f"--extra={extra}" for extra in extras]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^[\w.-]+==[^\s;]+", ran.stdout, re.MULTILINE))


def _measure(packages: set[str], wheels: Path) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        subprocess.run([_UV, "venv", "--quiet", venv], check=True)
        before = _bytes(venv), _cpu_seconds()
        command = [_UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python"]
        command += ["--no-cache", "--no-index", "--find-links", wheels, "--no-deps"]
        subprocess.run([*command, "--compile-bytecode", *sorted(packages)], check=True)
        disk, cpu = _bytes(venv) - before[0], _cpu_seconds() - before[1]
    files = [path for path in wheels.iterdir() if _package_of(path) in packages]
    return Cost(len(packages), sum(path.stat().st_size for path in files) / 1e6, disk / 1e6, cpu)


def _package_of(path: Path) -> str:
    name, _, version = re.sub(r"(\.tar\.gz|-(py|cp)[\w.]*-.*\.whl)$", "", path.name).rpartition("-")
    return f"{name.lower().replace('_', '-')}=={version}"


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(name: str, cost: Cost) -> None:
    print(
        f"| {name} | {cost.packages} | {cost.download:,.0f} | {cost.disk:,.0f} | {cost.cpu:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
