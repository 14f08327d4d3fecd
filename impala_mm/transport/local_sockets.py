"""Unix sockets of this user's learners and actors, in a folder that no other user can enter.

    /tmp/impala_mm-<uid>/                       mode 0700; its owner is checked
        <network namespace>-<address>-<port>    a learner that listens there
        <random number>                         an actor's end of a connection by TLS

Sockets have mode 0755 whatever the umask is, so it is the folder that keeps others out.
"""

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from impala_mm.runtime import ports

# Not $TMPDIR, which an actor and its learner may have set differently.
_FOLDER = Path("/tmp") / f"impala_mm-{os.geteuid()}"
_LEFT_SECONDS = 60.0  # a socket of this age on which nobody listens belongs to no process
_WILDCARDS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


def path_of_learner(sockets: Iterable[socket.socket]) -> Path:
    """Return the path of a new socket for the learner that listens at these TCP sockets.

    Actors of this machine find it by their addresses. Without any, they do not.
    """
    remove_unused()
    try:
        folder = _own_folder()
        first, *others = [_path(folder, *each.getsockname()[:2]) for each in sockets] or [_new()]
        for path in (first, *others):
            path.unlink(missing_ok=True)  # of an earlier learner
        for path in others:
            path.symlink_to(first)
        return first
    except OSError:
        return _new()


def path_of_actor() -> Path:
    """Return the path of a new socket for this process."""
    remove_unused()
    return _new()


def _new() -> Path:
    """Return a new path where nobody looks; if the user's folder cannot be used, in another one."""
    try:
        folder = _own_folder()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="impala_mm-"))
    # Containers that share the folder have processes of equal numbers.
    return folder / secrets.token_hex(8)


def find_learner(address: str) -> Path | None:
    """Return the socket of a learner of this user and machine that listens at `address`."""
    try:
        folder = _own_folder()
        for path in _candidates(folder, address):
            if is_bound(path):
                return path
    except OSError:
        return None
    return None


def is_bound(path: Path) -> bool:
    """Return whether a process has this Unix socket; it does not notice the question.

    The kernel refuses datagrams to a socket for connections by another error than to a file that
    no process has as its socket. A connection would wait for a busy process, and a relay would
    dial its learner.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(str(path)) == errno.EPROTOTYPE


def _candidates(folder: Path, address: str) -> Iterator[Path]:
    host, port = ports.split_address(address)
    for family, _, _, _, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if _is_here(family, found):
            yield _path(folder, str(found[0]), port)
            yield _path(folder, _WILDCARDS[family], port)


def _is_here(family: int, address: tuple) -> bool:
    """Return whether an address belongs to this machine."""
    with socket.socket(family) as probe, contextlib.suppress(OSError):
        probe.bind((address[0], 0, *address[2:]))
        return True
    return False


def _path(folder: Path, host: str, port: int) -> Path:
    # Containers with networks of their own may share the folder.
    network = os.stat("/proc/self/ns/net").st_ino
    return folder / f"{network}-{re.sub(r'[^0-9a-f.]', '_', host)}-{port}"


def _own_folder() -> Path:
    """Return the user's folder of sockets, which exists; raise OSError if others can enter it."""
    with contextlib.suppress(FileExistsError):
        _FOLDER.mkdir(mode=0o700)
    found = _FOLDER.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{_FOLDER} does not belong to this user alone")
    return _FOLDER


def remove_unused() -> None:
    """Remove sockets that processes left behind when they were killed."""
    with contextlib.suppress(OSError):
        for path in _own_folder().iterdir():
            with contextlib.suppress(OSError):
                age = time.time() - path.lstat().st_mtime
                if age > _LEFT_SECONDS and not is_bound(path):
                    path.unlink()
