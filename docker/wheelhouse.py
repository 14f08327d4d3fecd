"""Fill a folder with all packages that a set-up needs, for machines without internet.

    make wheelhouse ROLE=actor      or, from an installed package,
    impala-mm wheelhouse --role=actor FOLDER

`install.py --wheelhouse=FOLDER` installs from it and from nowhere else; the frontend's `--deploy
--wheelhouse=FOLDER` copies it to the hosts first. It fits machines with the same version of Python
and the same kind of processor as this one. It contains

    actor-cpu-cp311-x86_64.txt     the packages for a role and device, with versions and checksums
    *.whl, *.tar.gz                these packages
    horovod/KEY/                   Horovod as `horovod_wheel.py` compiled and cached it
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import horovod_wheel
from package_sets import (
    BUILD_HOROVOD,
    EXTRAS,
    HAVE_HOROVOD,
    ROOT,
    check_wheelhouse,
    platform_tag,
    with_package_index,
)
from steps import Problem, explain_unreachable, run, run_program, say

# Packages that build others that have no wheel, and this project itself.
_BUILDERS = "setuptools\nwheel\n"
_OTHERWISE = "run it on a machine that can, and copy the folder"


def fill(folder: Path, role: str, device: str) -> None:
    """Download all packages of a role to `folder`, or raise Problem."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "wheelhouse.log"
    needed = folder / f"{role}-{device}-{platform_tag()}.txt"
    work = needed.with_suffix(".new")
    work.write_text(_needed([device, *EXTRAS[role], "setup"]))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    exactly = ["--no-deps", "--require-hashes", "--dest", folder, "-r", work]
    try:
        run([*pip, *exactly], log, "downloading packages", os.environ)
    except Problem as problem:
        raise explain_unreachable(problem, _OTHERWISE) from None
    work.replace(needed)
    if role in HAVE_HOROVOD:
        horovod_wheel.fetch_sdist(horovod_wheel.cache_folder(), log)
        _add_horovod(folder)
    check_wheelhouse(folder, role, device, platform_tag())
    log.unlink()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{folder} has all packages for {needed.stem} ({size / 1e6:.0f} MB)")


def _needed(extras: Sequence[str]) -> str:
    """Return every package of these optional sets for this Python, with its locked version."""
    options = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    options += ["--constraint", "constraints.lock", "--python", sys.executable, "--system-certs"]
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", *options]
    ran = subprocess.run(
        [*command, *(f"--extra={extra}" for extra in extras), "pyproject.toml", "-"],
        cwd=ROOT,
        env=with_package_index(os.environ),
        input=_BUILDERS,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        why = ran.stderr.strip().splitlines()[-1].strip()
        raise explain_unreachable(Problem(f"listing the packages failed: {why}"), _OTHERWISE)
    return ran.stdout


def _add_horovod(folder: Path) -> None:
    """Add the Horovod wheels compiled here for the locked TensorFlow, and Horovod's source."""
    cache, into = horovod_wheel.cache_folder(), folder / "horovod"
    locked = re.search(r"^tensorflow==(\S+)", (ROOT / "constraints.lock").read_text(), re.M)
    assert locked
    ours = horovod_wheel.Target(locked[1], platform_tag(), "MPI", "none").key()
    begin, end = ours.split("MPI")[0], ours.rsplit("-", 1)[1]
    shutil.rmtree(into, ignore_errors=True)
    for found in sorted(cache.glob(f"{begin}*-{end}")):
        if (found / "sha256").exists():
            shutil.copytree(found, into / found.name)
    into.mkdir(exist_ok=True)
    shutil.copy(cache / horovod_wheel.SDIST, into)
    if not list(into.glob("*/*.whl")):
        say(f"it has no compiled Horovod (`{BUILD_HOROVOD}` compiles one): hosts need a compiler")


def main(argv: Sequence[str]) -> None:
    """Fill a wheelhouse, or check one; raise Problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--role", choices=tuple(EXTRAS), default="actor")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--check", action="store_true", help="only print what is missing")
    args = parser.parse_args(argv)
    if args.check:
        check_wheelhouse(args.folder, args.role, args.device, "*")
    else:
        fill(args.folder.absolute(), args.role, args.device)


if __name__ == "__main__":
    run_program(main)
