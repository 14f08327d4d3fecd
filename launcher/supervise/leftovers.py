"""Removes files that killed processes have left in the folders for temporary files.

A process that SIGKILL ends cannot remove its own files:

    /dev/shm/sm_segment.HOST.UID.JOB.RANK    shared memory of one rank of an mpirun, 16 MiB
    TMPDIR/ompi.PID/                         the session of the mpirun with this pid
    TMPDIR/ompi.HOST.UID/jf.0/JOB/           the session of a rank that had no mpirun
    TMPDIR/impala_mm-HOST.PID-*/             the state folder of the experiment.py with this pid
    /tmp/__autograph_generated_file*.py      a Python function that TensorFlow has translated
    /dev/shm/impala_mm-UID-RUN/              the parameters that the actors of a run have shared

The learners' supervisor calls `remove_leftovers` before it starts them, and each host does at the
begin of a run; the supervisors of actors call `remove_shared_parameters` when they end.
Nothing is removed that may belong to another user, to another host that shares the folder, or to a
process that is alive.
"""

import contextlib
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from launcher.supervise import file_lock, procfs
from launcher.supervise.json_files import read_text

_LEAST_AGE = 10.0  # seconds: a new file may not be in use yet
_CLOCK_SECONDS = 60.0  # by which the clock may have been set since a process was started
_PROGRAM = re.compile(r"python|mpirun|prte|orted")  # in the commands of learners
# The folders of an mpirun and of an experiment.py.
_OWNED = re.compile(r"(?:ompi|impala_mm-(?P<host>.+))\.(?P<pid>\d+)(?:-[^-]+)?")
# The namespaces of a machine itself, by their inodes; those of containers have others.
_PID_NAMESPACE, _IPC_NAMESPACE = 0xEFFFFFFC, 0xEFFFFFFF


class _Uses(NamedTuple):
    """The files that living processes of this user have open or mapped."""

    paths: set[str]
    files: set[tuple[int, int]]  # (device, inode)
    tensorflow_since: float  # when the oldest process that has TensorFlow was started; inf: none

    def has(self, path: Path) -> bool:
        """Return whether a process uses a file, or a file within a folder."""
        inside = [path, *(path.rglob("*") if path.is_dir() else ())]
        return any(str(each) in self.paths or _identity(each) in self.files for each in inside)


def remove_leftovers(
    temporary: Path, shared_memory: Path = Path("/dev/shm"), local: Path = Path("/tmp")
) -> None:
    """Remove the leftovers of this user's killed processes.

    `temporary` is the TMPDIR of learners. Files of TensorFlow are removed from `local` alone: their
    names do not tell the host, and a TMPDIR may be shared by several.
    """
    in_container = _namespace("pid") != _PID_NAMESPACE
    if in_container and _namespace("ipc") == _IPC_NAMESPACE:
        return  # the machine's processes share its memory, and cannot be seen
    here = f"{socket.gethostname()}.{os.geteuid()}"
    segments = _ours(shared_memory, f"sm_segment.{here}.*.*", stat.S_ISREG)
    folders, translated = [], []
    if not in_container:  # its folders may be those of the machine
        owned = _ours(temporary, "ompi.*", stat.S_ISDIR)
        owned += _ours(temporary, "impala_mm-*", stat.S_ISDIR)
        folders = [path for path in owned if _owner_has_ended(path)]
        single = temporary / f"ompi.{here}"
        for folder in _own_folders(single, single / "jf.0")[1:]:
            folders += _ours(folder, "*", stat.S_ISDIR)
        for folder in (local, *_own_folders(local / "__pycache__")):
            translated += _ours(folder, "__autograph_generated_file*", stat.S_ISREG)
    if not (segments or folders or translated):
        return
    uses = _find_uses()
    if uses is None:
        return
    in_use = {_job(path) for path in segments if uses.has(path)}
    for path in segments:
        if _job(path) not in in_use:
            _remove(path)
    for path in folders:
        if not uses.has(path) and not (path.name.isdigit() and f"{int(path.name):x}" in in_use):
            _remove(path)
    for path in translated:
        with contextlib.suppress(OSError):  # TensorFlow has just removed it
            if path.stat().st_mtime < uses.tensorflow_since - _CLOCK_SECONDS:
                _remove(path)


def remove_shared_parameters(shared_memory: Path = Path("/dev/shm")) -> None:
    """Remove what actors of this user have shared, of each run of which no actor is left here.

    Actors do so themselves unless all are killed; each holds a shared lock of the file `members`.
    """
    for folder in shared_memory.glob(f"impala_mm-{os.geteuid()}-*"):
        if not _own_folders(folder):
            continue
        with contextlib.suppress(OSError):  # the last actor has just removed the folder
            lock = file_lock.acquire(folder / "members")
            if lock is None:
                continue
            if os.fstat(lock).st_nlink:  # else another process has removed the folder meanwhile
                _remove(folder)
            os.close(lock)


def _own_folders(*folders: Path) -> list[Path]:
    """Return these folders up to the first that is not this user's.

    Another user could have put a link there, to a folder whose content must not be removed.
    """
    found: list[Path] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # there is none
            entry = folder.lstat()
            if entry.st_uid == os.geteuid() and stat.S_ISDIR(entry.st_mode):
                found.append(folder)
                continue
        break
    return found


def _ours(folder: Path, pattern: str, is_kind: Callable[[int], bool]) -> list[Path]:
    """Return the entries of a folder that belong to this user and are not new."""
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # its process has just removed it
            entry = path.lstat()
            is_old = time.time() - entry.st_mtime > _LEAST_AGE
            if entry.st_uid == os.geteuid() and is_kind(entry.st_mode) and is_old:
                found.append(path)
    return found


def _job(segment: Path) -> str:
    """Return the number, in hexadecimal, of the job that a rank belonged to."""
    return segment.name.split(".")[-2]


def _owner_has_ended(folder: Path) -> bool:
    """Return whether a process of this host made a folder, and none has its pid any more."""
    found, host = _OWNED.fullmatch(folder.name), socket.gethostname()
    if not found or (found["host"] != host and not (folder / f"pmix.{host}.tool").exists()):
        return False
    return not Path("/proc", found["pid"]).exists()


def _find_uses() -> _Uses | None:
    """Return what this user's processes use; None if that is not known of one of them."""
    uses, ticks = _Uses(set(), set(), 0.0), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.geteuid():
                continue
            maps = (process / "maps").read_text(errors="replace")
            for link in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it has just been closed
                    uses.paths.add(os.readlink(link))
                    uses.files.add(_identity(link))
        except PermissionError:  # the kernel protects it, as it does programs with privileges
            if _PROGRAM.search(read_text(process / "cmdline")):
                return None
            continue
        except OSError:  # it has just ended
            continue
        for fields in (line.split(maxsplit=5) for line in maps.splitlines()):
            if len(fields) == 6 and fields[4] != "0":
                major, minor = fields[3].split(":")
                uses.files.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
                uses.paths.add(fields[5])
        if "libtensorflow" in maps:
            ticks.append(procfs.start_time(int(process.name)))
    return uses._replace(tensorflow_since=_time_of(ticks))


def _time_of(ticks: Iterable[int]) -> float:
    """Return the earliest of the times that the kernel gives in ticks, as a time of the clock."""
    seconds = min(ticks, default=float("inf")) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


def _identity(path: Path) -> tuple[int, int]:
    try:
        entry = path.stat()
    except OSError:  # it has just been removed
        return 0, 0
    return entry.st_dev, entry.st_ino


def _namespace(name: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{name}").st_ino
    except OSError:  # the kernel has no such namespaces
        return 0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process of this user removes it, too
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
