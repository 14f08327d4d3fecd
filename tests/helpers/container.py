"""A container without an engine: an image's files and entry point in namespaces of their own.

The user in it is the image's, not root. The rest of the system and the Python come from this
machine.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import dockerfile
import pytest
from processes import ROOT, Process

HOME = "/home/impala"
_PASSWD = f"root:x:0:0::/root:/bin/sh\nimpala:x:1000:1000::{HOME}:/bin/bash\n"
# $1: this container's folder; the other arguments: the command to run.
_ENTER = """
set -eu
folder=$1; shift
hostname {name}
mkdir -p "$folder/python" "$folder/venv"
mount --bind {prefix} "$folder/python"
mount --bind {venv} "$folder/venv"
mount -t proc proc /proc
mount -t tmpfs -o size=64m,mode=1777 none /dev/shm
mount -t tmpfs -o mode=755 none /home
mkdir {home}
mount --bind "$folder/home" {home}
{open}
mount -t tmpfs -o mode=755 none /opt
mkdir /opt/impala_mm
mount --bind "$folder/root/opt/impala_mm" /opt/impala_mm
mount --bind "$folder/venv" /opt/impala_mm/.venv
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/hosts" /etc/hosts
{volumes}
cd {workdir}
exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --pdeathsig=KILL \
    env -i HOME={home} PATH=/opt/impala_mm/.venv/bin:/usr/bin:/bin {environment} "$@"
"""


def needed() -> None:
    """Skip the test if containers are impossible on this machine."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    probe = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("namespaces are unavailable on this machine")


class Container:
    """A container that exits with the test; `volumes` maps folders of this machine into it."""

    def __init__(self, image, folder, *arguments, volumes=None, net="", names="", **environment):
        self.folder = folder
        path = ROOT / "docker" / f"{image}.Dockerfile"
        dockerfile.assemble(path, folder / "root")
        for name in (".ssh", ".config/impala_mm", "host_keys"):
            (folder / "home" / name).mkdir(parents=True, exist_ok=True)
        for name in ("root/opt/impala_mm/runs", "root/opt/impala_mm/.venv"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "passwd").write_text(_PASSWD)
        (folder / "hosts").write_text(f"127.0.0.1 localhost {names}\n")
        volumes = volumes or {}
        owned = [folder / "home", *(folder / "home").rglob("*"), *map(Path, volumes)]
        for each in [*owned, folder / "root/opt/impala_mm/runs"]:
            if each.is_dir() or each.is_relative_to(folder):
                os.chown(each, 1000, 1000)
        script = _ENTER.format(
            name=folder.name,
            home=HOME,
            prefix=shlex.quote(sys.base_prefix),
            open=_open(sys.base_prefix),
            venv=shlex.quote(sys.prefix),
            workdir=dockerfile.last(path, "WORKDIR"),
            volumes="\n".join(_mount(source, target) for source, target in volumes.items()),
            environment=shlex.join(f"{name}={value}" for name, value in environment.items()),
        )
        within = ["ip", "netns", "exec", net] if net else []
        self.process = Process(
            *within,
            *("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"),
            *("--propagation", "private"),
            *("sh", "-c", script, "sh", str(folder), *dockerfile.entrypoint(path), *arguments),
        )

    def signal(self, number):
        """Send a signal to the container's first process, as an engine's stop does."""
        parent = self.process.process.pid
        child = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0]
        os.kill(int(child), number)


def _mount(source, target):
    """Return shell lines that mount a source, creating its target as an engine does.

    Only targets inside the container's own folders are allowed: others would be created on this
    machine.
    """
    assert target.startswith((HOME, "/opt/impala_mm"))
    make = f"mkdir -p {target}" if Path(source).is_dir() else f"touch {target}"
    return f"{make}\nmount --bind {shlex.quote(str(source))} {target}"


def _open(prefix):
    """Return shell lines that make a Python in a folder of root's accessible to all users."""
    for folder in reversed(Path(prefix).parents):
        if not folder.stat().st_mode & 1:
            there = shlex.quote(prefix)
            return (
                f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}\n"
                f'mkdir -p {there}\nmount --bind "$folder/python" {there}'
            )
    return ""
