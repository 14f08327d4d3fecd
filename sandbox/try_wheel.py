"""Try a wheel in a new environment of each Python that this machine has: `make release` calls it.

python sandbox/try_wheel.py dist/impala_mm-0.2.0-py3-none-any.whl
python sandbox/try_wheel.py WHEEL 3.11 ~/.pyenv/versions/3.13.0/bin/python    only these Pythons

Each environment gets the wheel with its set `cpu`, as a user's does, and trains from an empty
folder: by the command a game of ours that a preset names, and from Python Catch. It prints what
each environment weighs.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_VERSIONS = ("3.11", "3.12", "3.13")
_CODE = """
import impala_mm
run = impala_mm.train("catch", num_actors=1, max_seconds=5, progress=False).wait()
print(impala_mm.__version__, impala_mm.evaluate(run.logdir, num_episodes=2).lengths)
"""


def main() -> None:
    """Try the wheel; exit with code 1 if it does not work, or if there is no Python to try it."""
    wheel = Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:] or _VERSIONS
    found = [version for version in wanted if _has(version)]
    for version in found:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            megabytes = _try(wheel, version, Path(folder))
        seconds = time.monotonic() - began
        print(f"Python {version}: works ({megabytes:,.0f} MB, {seconds:.0f} s)", flush=True)
    for version in sorted(set(wanted) - set(found)):
        print(f"Python {version}: not on this machine, not tried")
    sys.exit(not found)


def _has(version: str) -> bool:
    asked = [_uv(), "python", "find", "--no-python-downloads", version]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _try(wheel: Path, version: str, folder: Path) -> float:
    """Install the wheel and use it; return the environment's megabytes."""
    venv, empty = folder / "venv", folder / "empty"
    empty.mkdir()
    subprocess.run([_uv(), "venv", "--quiet", "--python", version, venv], check=True)
    lock = ["--constraint", _ROOT / "constraints.lock"]
    into = ["--quiet", "--python", venv / "bin" / "python"]
    subprocess.run([_uv(), "pip", "install", *into, *lock, f"{wheel}[cpu]"], check=True)
    command = [venv / "bin" / "impala-mm", "--preset=tictactoe-impala", "--max_seconds=5"]
    # A new user has no token file yet.
    user = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    subprocess.run(command, cwd=empty, env=user, check=True, capture_output=True)
    subprocess.run([venv / "bin" / "python", "-c", _CODE], cwd=empty, env=user, check=True)
    return sum(path.lstat().st_size for path in venv.rglob("*") if path.is_file()) / 1e6


def _uv() -> str:
    return str(Path(sys.prefix) / "bin" / "uv")


if __name__ == "__main__":
    main()
