"""Fills a folder with all packages that a set-up needs, for machines without internet.

    make wheelhouse ROLE=actor      or     .venv/bin/python docker/wheelhouse.py --role=actor FOLDER

`install.py --wheelhouse=FOLDER` installs from it and asks nobody else; the frontend's `--deploy
--wheelhouse=FOLDER` copies it to the hosts first. It is for machines with this Python's version and
this processor. In it lie

    actor-cpu-cp311-x86_64.txt     what is needed for a role and device, with version and checksums
    *.whl, *.tar.gz                all of that
    horovod/KEY/                   Horovod as `horovod_wheel.py` compiled and cached it
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import horovod_wheel
import install
from steps import Problem, run, say

# What builds packages that have no wheel, and this project itself.
_BUILDERS = "setuptools\nwheel\n"
_NAMED = 8  # packages that a sentence names


def tag() -> str:
    """Of machines that can share packages with this one."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"


def lacks(folder: Path, role: str, device: str, tags: str) -> str:
    """A sentence that names what is missing for a role; empty where nothing is.

    `tags`: of machines, as a pattern.
    """
    lists = sorted(folder.glob(f"{role}-{device}-{tags}.txt"))
    if not lists:
        others = ", ".join(sorted(path.stem for path in folder.glob("*-*-*-*.txt"))) or "nothing"
        which = f"{role}-{device}-{tags}".removesuffix("-*")
        fill = f"make wheelhouse ROLE={role}{' WHEELS=gpu' * (device == 'gpu')}"
        return f"the wheelhouse {folder} has {others}, and not {which}: `{fill}` fills it"
    there = {_named(path.name) for path in folder.iterdir()}
    needed = re.findall(r"^([\w.-]+)==([^\s;\\]+)", lists[-1].read_text(), re.MULTILINE)
    missing = [
        f"{name} {version}" for name, version in needed if (_plain(name), version) not in there
    ]
    if not missing:
        return ""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    names = ", ".join(missing[:_NAMED])
    return f"the wheelhouse {folder} lacks {names}{more}: `make wheelhouse ROLE={role}` brings them"


def _named(file: str) -> tuple[str, str]:
    """Package and version of a wheel or a source archive."""
    found = re.fullmatch(r"(.+?)-(\d[^-]*)(-.*\.whl|\.tar\.gz|\.zip)", file)
    return (_plain(found[1]), found[2]) if found else ("", "")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def fill(folder: Path, role: str, device: str) -> None:
    """Fetches what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "wheelhouse.log"
    needed = folder / f"{role}-{device}-{tag()}.txt"
    work = needed.with_suffix(".new")
    work.write_text(_needed([device, *install.EXTRAS[role], "setup"]))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    exactly = ["--no-deps", "--require-hashes", "--dest", folder, "-r", work]
    run([*pip, *exactly], log, "fetching packages", os.environ)
    work.replace(needed)
    if role != "actor":
        _add_horovod(folder)
    if why := lacks(folder, role, device, tag()):
        raise Problem(why)
    log.unlink()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{folder} has all for {needed.stem} ({size / 1e6:.0f} MB)")


def _needed(extras: Sequence[str]) -> str:
    """Every package of these optional sets for this Python, with its locked version."""
    options = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    options += ["--constraint", "constraints.lock", "--python", sys.executable, "--system-certs"]
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", *options]
    ran = subprocess.run(
        [*command, *(f"--extra={extra}" for extra in extras), "pyproject.toml", "-"],
        cwd=install.ROOT,
        env=install.index(os.environ),
        input=_BUILDERS,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise Problem(f"finding out what is needed failed: {ran.stderr.strip().splitlines()[-1]}")
    return ran.stdout


def _add_horovod(folder: Path) -> None:
    """What was compiled here for the TensorFlow of the lock, and the source of the rest."""
    cache, into = horovod_wheel.cache_folder(), folder / "horovod"
    locked = re.search(r"^tensorflow==(\S+)", (install.ROOT / "constraints.lock").read_text(), re.M)
    assert locked
    ours = horovod_wheel.Target(locked[1], tag(), "MPI", "none").key()
    begin, end = ours.split("MPI")[0], ours.rsplit("-", 1)[1]
    shutil.rmtree(into, ignore_errors=True)
    for found in sorted(cache.glob(f"{begin}*-{end}")):
        if (found / "sha256").exists():
            shutil.copytree(found, into / found.name)
    if (cache / horovod_wheel.SDIST).exists():
        into.mkdir(exist_ok=True)
        shutil.copy(cache / horovod_wheel.SDIST, into)
    if not list(into.glob("*/*.whl")):
        say("no compiled Horovod is in it (`make horovod` compiles one): hosts need a compiler")


def main(argv: Sequence[str]) -> None:
    """Fills a wheelhouse, or checks one; raises Problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--role", choices=tuple(install.EXTRAS), default="actor")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    args = parser.parse_args(argv)
    if not args.check:
        fill(args.folder.absolute(), args.role, args.device)
    elif why := lacks(args.folder, args.role, args.device, "*"):
        raise Problem(why)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(f"[set-up] {problem}")
    except KeyboardInterrupt:
        sys.exit("\n[set-up] interrupted; the same command goes on from here")
