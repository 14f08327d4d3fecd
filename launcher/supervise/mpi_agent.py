"""Lets another host start mpirun's daemon: mpirun calls this program instead of ssh.

    launcher.supervise.mpi_agent HOST COMMAND...

On each other host the frontend has started `mpi_host`, which connects to this host at the port
that is known to both. The program waits for it, passes mpirun's command for the daemon to it over
TLS, and then runs as long as the daemon, whose output it prints. Its exit code is the daemon's; 255
if the daemon could not be started, or the connection was lost.

Both sides show the learners' certificate of the run's token file, which hosts of actors lack:
others are refused before a byte of theirs is read. Messages are lines of JSON: {"command": text} to
the other host, and from it {"output": text}, at the daemon's end with its "code", too.
"""

import contextlib
import errno
import ipaddress
import json
import os
import queue
import re
import socket
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

from launcher.supervise.task import HEARTBEAT, PORTS_VARIABLE, WAITS

# Environment variable of mpirun: the run's token file, or its content.
TOKEN_VARIABLE = "IMPALA_MM_MPI_CERTIFICATES"
FIRST_PORT = 7001  # the first port that is tried
_ROLE = "learner"  # what the certificate of both sides names
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)
_FAILED = 255  # ssh's exit code for its own failures
_PORT_SECONDS = 15.0  # seconds that the agent of the last mpirun has to leave the port
_HANDSHAKE_SECONDS = 5.0
_MAX_STRANGERS = 100  # connections whose certificate is not verified yet
_MAX_NAMED = 20  # addresses whose refusal is printed
_SAY_SECONDS = 5.0  # seconds of waiting after which it is printed
_DEAD_MS = 60_000  # after which a connection without acknowledgements counts as lost
# Seconds without traffic before the first probe, seconds between probes, and their number.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def context(token: str, is_server: bool) -> ssl.SSLContext:
    """Return the TLS context of one side; `token`: the run's token file, or its content."""
    content = token if "-----BEGIN" in token else Path(token).read_text()
    authority, *own = [found[0] for found in _PEM.finditer(content)]
    if len(own) != 4:
        raise ssl.SSLError(f"{token} has no certificate for learners")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=authority)
    file = os.memfd_create("certificate")  # a certificate can be loaded only from a file
    try:
        os.write(file, "".join(own[:2]).encode())
        made.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    if is_server:
        made.num_tickets = 0  # sessions are not resumed
    return made


def connect(host: str, port: int, token: str) -> ssl.SSLSocket:
    """Connect to the agent of the learners' mpirun. Raises OSError."""
    connection = socket.create_connection((host, port), _HANDSHAKE_SECONDS)
    try:
        _detect_loss(connection)
        secured = context(token, is_server=False).wrap_socket(connection, server_hostname=_ROLE)
    except BaseException:
        connection.close()
        raise
    secured.settimeout(None)
    return secured


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message).encode() + b"\n"


def listen(host: str, port: int) -> socket.socket:
    """Listen at this host's address, given by the name by which others reach it. Raises OSError.

    Of several addresses it is the first that others reach. If it is not this machine's, as behind a
    translation of addresses, listen on all.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    outside = [each for each in found if not ipaddress.ip_address(each[4][0]).is_loopback]
    family, *_, address = (outside or found)[0]
    try:
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family)


def _detect_loss(connection: socket.socket) -> None:
    """Let a connection fail if the other host no longer answers, such as after a power cut."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)


class Door:
    """The listening socket for one other host; the first peer that shows the certificate enters.

    It stays open afterwards, so that no other run takes the port for its own.
    """

    def __init__(self, listener: socket.socket, token: str):
        self._listener, self._context = listener, context(token, is_server=True)
        self.entered = queue.SimpleQueue[ssl.SSLSocket]()
        self._strangers: list[ssl.SSLSocket] = []  # the oldest first
        self._lock = threading.Lock()
        self._named: set[str] = set()  # addresses whose refusal was printed
        self._is_taken = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:  # it was aborted, or no more files can be open now
                time.sleep(0.1)
                continue
            try:
                _detect_loss(connection)
                connection.settimeout(_HANDSHAKE_SECONDS)
                peer = self._context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            except OSError:  # it has gone already
                connection.close()
                continue
            with self._lock:
                self._strangers.append(peer)
                if len(self._strangers) > _MAX_STRANGERS:  # a handshake takes far less time
                    with contextlib.suppress(OSError):  # it has gone just now
                        socket.socket.shutdown(self._strangers[0], socket.SHUT_RDWR)
                    del self._strangers[0]
            threading.Thread(target=self._verify, args=(peer, address), daemon=True).start()

    def _verify(self, peer: ssl.SSLSocket, address: str) -> None:
        """Let a peer in once it has shown the certificate; read nothing of it before."""
        why = ""
        try:
            peer.do_handshake()
            if ("DNS", _ROLE) not in (peer.getpeercert() or {}).get("subjectAltName", ()):
                why = "its certificate is not that of a learner's host"
        except OSError as error:
            why = getattr(error, "reason", "") or str(error)
        with self._lock:
            if peer in self._strangers:
                self._strangers.remove(peer)
            if not why and not self._is_taken:
                self._is_taken = True
                peer.settimeout(None)
                self.entered.put(peer)
                return
            is_news = why and address not in self._named and len(self._named) < _MAX_NAMED
            self._named.add(address)
        peer.close()
        if is_news:
            print(f"refused a connection from {address}: {why}", flush=True)


def set_waiting(host: str, waits: bool) -> None:
    """Tell this process's supervisor, by a file, whether it waits for a host."""
    if beat := os.environ.get(HEARTBEAT):
        path = Path(beat).with_name(WAITS + host)
        path.touch() if waits else path.unlink(missing_ok=True)


def _wait_for(door: Door, host: str, port: int) -> ssl.SSLSocket:
    """Wait for the connection of a host."""
    set_waiting(host, True)
    try:
        with contextlib.suppress(queue.Empty):  # it is late, so that it is said
            return door.entered.get(timeout=_SAY_SECONDS)
        print(
            f"waiting for {host}: no process of the run has connected from there to port {port} of "
            f"this host; a frontend that follows the run (--attach) starts it",
            flush=True,
        )
        return door.entered.get()
    finally:
        set_waiting(host, False)


def main(host: str, *command: str) -> int:
    """Let a host start the daemon; return its exit code once it has ended."""
    own, port = json.loads(os.environ[PORTS_VARIABLE])[host]
    until = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            door = Door(listen(own, port), os.environ[TOKEN_VARIABLE])
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                print(f"error: cannot wait for {host} at {own}:{port}: {error}", file=sys.stderr)
                return _FAILED
            time.sleep(0.2)
    why = "it ended the connection"
    try:
        with _wait_for(door, host, port) as connection:
            connection.sendall(encode({"command": " ".join(command)}))
            for line in connection.makefile("rb"):
                reply = json.loads(line)
                os.write(1, reply["output"].encode(errors="replace"))
                if "code" in reply:
                    return int(reply["code"])
    except OSError as error:
        why = str(error)
    print(f"error: mpirun's daemon on {host} is lost: {why}", file=sys.stderr)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
