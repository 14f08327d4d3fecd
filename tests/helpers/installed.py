"""The wheel, installed into an environment of its own as a user's is, outside of the clone."""

import os
import site
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from package_sets import with_package_index
from processes import ROOT, finish

_UV = Path(sys.prefix) / "bin" / "uv"


class Installed(NamedTuple):
    """An environment that has the wheel."""

    bin: Path  # the folder of its commands
    wheel: Path


def install(folder: Path, extras: str = "") -> Installed:
    """Build the wheel and install it with these optional sets.

    Without any, its dependencies are those of the tests' own environment.
    """
    run_alone(_UV, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    run_alone(_UV, "venv", "--python", sys.executable, folder / "venv")
    into = ("pip", "install", "--python", folder / "venv" / "bin" / "python")
    if extras:
        lock = ("--constraint", ROOT / "constraints.lock")
        run_alone(_UV, *into, *lock, f"{wheel}[{extras}]", **with_package_index(os.environ))
    else:
        run_alone(_UV, *into, "--no-deps", wheel)
        (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
        (packages / "dependencies.pth").write_text(site.getsitepackages()[0])
    return Installed(folder / "venv" / "bin", wheel)


def run_alone(*command: object, cwd: Path | None = None, code: int = 0, **env: str) -> str:
    """Run a command that finds nothing of the tests' environment; return what it printed."""
    variables = {k: v for k, v in (os.environ | env).items() if k not in _OURS}
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    printed, _ = finish(process, 280)
    assert process.returncode == code, printed
    return printed


_OURS = {"PYTHONPATH", "VIRTUAL_ENV"}
