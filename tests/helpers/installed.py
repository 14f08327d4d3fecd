"""The wheel, installed into an environment of its own as a user's is, outside of the clone."""

import os
import site
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from processes import ROOT


class Installed(NamedTuple):
    """An environment that has the wheel."""

    bin: Path  # the folder of its commands
    wheel: Path


def install(folder: Path) -> Installed:
    """Build the wheel and install it, with the dependencies of the tests' own environment."""
    uv = Path(sys.prefix) / "bin" / "uv"
    run_alone(uv, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    run_alone(uv, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run_alone(uv, "pip", "install", "--python", python, "--no-deps", wheel)
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    (packages / "dependencies.pth").write_text(site.getsitepackages()[0])
    return Installed(folder / "venv" / "bin", wheel)


def run_alone(*command, cwd=None, code=0, **env):
    """Run a command that finds nothing of the tests' environment; return what it printed."""
    variables = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    ran = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=variables | env, timeout=280, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout
    return ran.stdout
