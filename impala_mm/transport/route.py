"""The way from an actor to a learner: a Unix socket of its machine, a relay, or a plain port.

Unix sockets of this user's learners and actors are in a folder that no other user can enter:

    /tmp/impala_mm-<uid>/                       mode 0700; its owner is checked
        <network namespace>-<address>-<port>    a learner that listens there
        <random number>                         an actor's end of a connection by TLS

Sockets have mode 0755 whatever the umask is, so it is the folder that keeps others out.
"""

import contextlib
import errno
import functools
import os
import re
import secrets
import select
import socket
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from impala_mm.runtime import ports
from impala_mm.runtime.lifecycle import name_thread
from impala_mm.transport.messages import NO_TOKEN
from impala_mm.transport.tls import ACTOR, LEARNER, Carrier, Credentials, keep_watch

# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, and the alerts by which
# the learner's end says the same of this end's certificate.
_OUTSIDE_ITS_TIME = {9, 10}
_OF_TIME = {"SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED"}
_NOT_TLS = {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
# Not $TMPDIR, which an actor and its learner may have set differently.
_FOLDER = Path("/tmp") / f"impala_mm-{os.geteuid()}"
_LEFT_SECONDS = 60.0  # a socket of this age on which nobody listens belongs to no process
_WILDCARDS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class NotAccepted(Exception):
    """The learner's end and this one have different credentials; the message says what to do."""


def find(address: str, credentials: Credentials, seconds: float, from_outside: bool) -> str:
    """Return the target for gRPC that leads to the learner at `address`, which has answered.

    `from_outside`: dial the address itself, even on the learner's machine. Raises NotAccepted, and
    OSError if nobody answers within `seconds`.
    """
    if not credentials.authority:
        with socket.create_connection(ports.split_address(address), seconds) as connection:
            _wait_for_server(connection)
        return address
    if not from_outside and (path := find_learner(address)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            _wait_for_server(connection)
        return f"unix:{path}"
    relay = relay_to(address, credentials)
    try:
        with relay.dial(seconds) as connection:
            _wait_for_server(connection)
    except ssl.SSLError as error:
        raise _refusal(address, error) from None
    return f"unix:{relay.path}"


def watch(target: str) -> None:
    """Let the kernel close gRPC's connections to a target whose host has vanished.

    Otherwise the kernel repeats what was not acknowledged after ever longer pauses, and goes on to
    wait for nearly as long as the network was down. gRPC takes no such options for its sockets.
    """
    if target.startswith("unix:"):  # the relay watches its own connections
        return
    host, port = ports.split_address(target)
    with contextlib.suppress(OSError):
        hosts = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        peers = {(f"{prefix}{host}", port) for host in hosts for prefix in ("", "::ffff:")}
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # it is closed by now, or not a connection
                own = os.dup(number)
                if not stat.S_ISSOCK(os.fstat(own).st_mode):
                    os.close(own)
                    continue
                # Addresses of every family fit into those of this one.
                with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=own) as connection:
                    if connection.getpeername()[:2] in peers:
                        keep_watch(connection)


def _wait_for_server(connection: socket.socket) -> None:
    """Wait until a gRPC server sends its first byte; raise OSError if none does.

    A learner that is starting holds its port, where connections wait until its server listens.
    """
    if not connection.recv(1):
        raise ConnectionResetError("the connection was closed")


def _refusal(address: str, error: ssl.SSLError) -> Exception:
    """Return what an error of TLS means to an actor."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionResetError("the connection was closed")
    if error.reason in _NOT_TLS:
        return NotAccepted(
            f"the process at {address} does not use TLS: if it is a learner with "
            f"--transport_security=none, give the same flag to its actors"
        )
    why = getattr(error, "verify_message", "") or (error.reason or "").replace("_", " ").lower()
    if getattr(error, "verify_code", 0) in _OUTSIDE_ITS_TIME or error.reason in _OF_TIME:
        return NotAccepted(
            f"the clock of this host ({time.strftime('%Y-%m-%d %H:%M')}) or of the learner's is "
            f"wrong, or the token file is older than ten years (TLS: {why}): set the clock, or "
            f"remove the file on all hosts"
        )
    return NotAccepted(f"{NO_TOKEN} (TLS: {why})")


_DIAL_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # after a connection that could not be served
_ENDED = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Relay:
    """A Unix socket of this process that leads to a learner's front."""

    def __init__(self, address: str, credentials: Credentials):
        """Listen; raise OSError if that is impossible. The learner is dialled later."""
        self._to, self._context = ports.split_address(address), credentials.context(ACTOR)
        self.path: Path = path_of_actor()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def dial(self, seconds: float) -> ssl.SSLSocket:
        """Connect to the front. Raises OSError, of which ssl.SSLError is one.

        A front that does not accept this actor's certificate says so only at the first read.
        """
        connection = socket.create_connection(self._to, seconds)
        try:
            keep_watch(connection)
            return self._context.wrap_socket(connection, server_hostname=LEARNER)
        except OSError:
            connection.close()
            raise

    def _accept(self) -> None:
        name_thread("relay")
        while True:
            local = None
            try:
                local, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[local], daemon=True).start()
            except (OSError, RuntimeError):  # too many files or threads; there may be fewer later
                if local:
                    local.close()
                time.sleep(_PAUSE_SECONDS)

    def _serve(self, local: socket.socket) -> None:
        name_thread("relay")
        with local, contextlib.suppress(OSError), self.dial(_DIAL_SECONDS) as far:
            _carry(local, far)


@functools.lru_cache(maxsize=64)
def relay_to(address: str, credentials: Credentials) -> Relay:
    """Return this process's relay to a learner. Raises OSError."""
    return Relay(address, credentials)


def _carry(local: socket.socket, far: ssl.SSLSocket) -> None:
    """Carry bytes until either end closes. Raises OSError where a connection breaks."""
    carrier, poll, numbers = Carrier(local, far), select.poll(), (local.fileno(), far.fileno())
    ready: dict[int, int] = {}
    while carrier.step(*(number in ready for number in numbers)):
        poll.register(local, carrier.local_events)
        poll.register(far, carrier.far_events)
        ready = dict(poll.poll())
        if any(event & _ENDED and not event & select.POLLIN for event in ready.values()):
            return


def path_of_learner(sockets: Iterable[socket.socket]) -> Path:
    """Return the path of a new socket for the learner that listens at these TCP sockets.

    Actors of this machine find it by their addresses. Without any, they do not.
    """
    remove_unused()
    try:
        folder = _own_folder()
        first, *others = [_path(folder, *listener.getsockname()[:2]) for listener in sockets] or [
            _new()
        ]
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
    for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if _is_here(family, place):
            yield _path(folder, str(place[0]), port)
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
    status = _FOLDER.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
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
