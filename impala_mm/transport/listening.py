"""The end of the connection that listens: a learner's Unix socket and its front, or a plain port.

`server` offers its functions through a `Listener`, which starts the front as a process of its own,
and again if that ends.
"""

import contextlib
import fcntl
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.runtime import ports
from impala_mm.runtime.lifecycle import name_thread
from impala_mm.runtime.log import Say
from impala_mm.transport import route
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.front import CONNECTIONS, SERVING
from impala_mm.transport.tls import Credentials

_START_SECONDS = 30.0  # for the front
_DIAL_SECONDS = 5.0
# The variables of mpirun, which would be wrong for another process, do not matter: it has no MPI.
_START = """
import json, os, sys
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 1) or sys.exit(1)
start = json.loads(line)
sys.path[:] = start["path"]
from impala_mm.transport import front
front.Front(start).serve()
"""
# The learner alone decides when its front ends: by closing its input, also by being killed.
_NOT_FOR_IT = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}
_PAUSE_SECONDS = 1.0  # before a restart
_OWN_FILES = 500  # of a learner, besides connections: of TensorFlow, MPI and checkpoints


class Listener:
    """TensorFlow's RPC server of a learner, and the process that relays other hosts to it."""

    def __init__(
        self,
        held: ports.HeldAddress,
        credentials: Credentials,
        functions: Mapping[str, Any],
        offers_socket: bool,
        say: Say,
    ):
        """Offer these functions of TensorFlow, by name, at the address that `held` holds.

        Without certificates the RPC server listens there itself. With them it listens at a Unix
        socket, and `offers_socket` says whether actors of this user and machine find that.
        """
        own: Path | None = None
        if credentials.authority:
            own = route.path_of_learner(held.sockets if offers_socket else ())
        else:
            held.share()
        target = f"unix:{own}" if own else held.address
        self._server = tf.distribute.experimental.rpc.Server.create("grpc", target)
        for name, function in functions.items():
            self._server.register(name, function)
        self._server.start()
        self.address, self.front = held.address, None
        if own:
            self.front = FrontProcess(held.take_sockets(), own, credentials, say)
        held.release()
        self._say = say

    def check(self, address: str, token: str, nonce: int) -> None:
        """Raise OSError unless the functions with this nonce answer those who dial `address`.

        gRPC raises no error if it shares the port with another process. A front shares no port;
        others may use up the handshakes that it grants to this machine's address, and that must not
        end the learner.
        """
        if self.front and not self.front.serves.wait(_START_SECONDS):
            raise OSError("the process that other hosts connect to does not start")
        try:
            client = Client(address, token, timeout=10, from_outside=True)
            answer = client.hello({"probe": True})
        except (Refused, Unreachable) as error:
            if self.front and isinstance(error, Unreachable) and _accepts(address):
                self._say(
                    f"warning: this learner got no answer from itself at {address} ({error}): "
                    f"others may use up the connections there, or the address leads to another "
                    f"process; actors that get no answer try again"
                )
                return
            raise OSError(f"this learner cannot reach itself at {address}: {error}") from None
        if answer["nonce"] != nonce:
            holder = ports.describe_holder(self.address)
            raise OSError(f"{address} is answered by another learner{holder}")


def _accepts(address: str) -> bool:
    """Return whether a process accepts connections at an address."""
    try:
        socket.create_connection(ports.split_address(address), _DIAL_SECONDS).close()
    except ConnectionResetError:  # it was accepted first
        return True
    except OSError:
        return False
    return True


class FrontProcess:
    """The process that other hosts reach, which relays them to a learner's Unix socket."""

    def __init__(
        self, sockets: Sequence[socket.socket], learner: Path, credentials: Credentials, say: Say
    ):
        """Serve those who connect to `sockets`; they wait there if the process is restarted."""
        self._sockets, self._say = [_above_standard_files(listener) for listener in sockets], say
        self._start_message = json.dumps(
            {
                "path": sys.path,
                "listeners": [listener.fileno() for listener in self._sockets],
                "learner": str(learner),
                # Each takes a file of the learner, too.
                "connections": _most_connections(),
                # The front needs no actor's key.
                "credentials": credentials._replace(token="", actor=""),
            }
        )
        self.serves = threading.Event()  # set once the process has accepted connections
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self.process = self._start()
        threading.Thread(target=self._watch, name="front", daemon=True).start()

    def stop(self) -> None:
        """End the process; it ends by itself with this one."""
        with self._lock:
            self._stopped.set()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()
        for listener in self._sockets:
            listener.close()

    def _start(self) -> subprocess.Popen:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_IT)  # the child inherits it
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, "front of a learner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno() for listener in self._sockets],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin
        process.stdin.write(f"{self._start_message}\n".encode())
        process.stdin.flush()
        return process

    def _watch(self) -> None:
        """Log what the process prints, and restart it when it ends."""
        name_thread("front")
        while not self._stopped.is_set():
            assert self.process.stdout
            for line in self.process.stdout:
                text = line.decode(errors="replace").rstrip()
                if text == SERVING:
                    self.serves.set()
                else:
                    self._say(text)
            code = self.process.wait()
            if self._stopped.is_set():
                return
            self._say(
                f"the process that other hosts connect to has ended (exit code {code}); starting "
                f"it again, and actors reconnect"
            )
            self._stopped.wait(_PAUSE_SECONDS)
            with self._lock, contextlib.suppress(OSError):  # there is no memory; this tries again
                if not self._stopped.is_set():
                    self.process = self._start()


def _above_standard_files(listener: socket.socket) -> socket.socket:
    """Return a socket whose number is not that of the front's input, output or errors.

    It has one if the learner was started without these files.
    """
    if listener.fileno() > 2:
        return listener
    moved = socket.socket(fileno=fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 3))
    listener.close()
    return moved


def _most_connections() -> int:
    """Return how many connections this learner can serve."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(limit - _OWN_FILES, limit // 4))
