"""The start, the requests and the end of one worker process, as `WorkerVector` sees it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from impala_mm.environments.faults import FaultElsewhere
from impala_mm.environments.process_end import describe_end, frames_of_stack, text_of
from impala_mm.environments.types import BadLevel
from impala_mm.environments.worker import Reply, Work

_END_SECONDS = 2.0  # seconds that a worker has to close its environments
_CHECK_SECONDS = 1.0  # seconds between two checks whether a busy worker still runs
_STACK_SECONDS = 0.2  # seconds in which a worker writes where it is
_START = (
    "import json, signal, sys; signal.signal(signal.SIGINT, lambda *_: None); "
    "signal.signal(signal.SIGUSR2, lambda *_: None); "  # until the worker answers it (`stack`)
    "path, files = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from impala_mm.environments import worker; worker.run(*files)"
)


class WorkerDied(Exception):
    """A worker process has ended; the message says how."""

    def __init__(self, how: str, stack: str):
        super().__init__(how)
        self.how, self.stack = how, stack


class WorkerProcess:
    """A process that steps some environments of a vector."""

    def __init__(self, work: Work, memory_files: list[int]):
        """Start the process; `opened` waits until it has opened its environments."""
        self.work = work
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        files = [theirs.fileno(), life, self._stacks.fileno(), *memory_files]
        given = json.dumps([sys.path, [*files[:3], memory_files]])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, given], stdin=subprocess.DEVNULL, pass_fds=files
        )
        self._connection = Connection(os.dup(ours.fileno()))
        for socket_end in (ours, theirs):
            socket_end.close()
        os.close(life)
        self._is_waited_for = False  # the answer to a request was not received yet
        self.send(work)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, request: Any) -> None:
        """Send a request, which `receive` waits for; a process that has ended is noticed there."""
        self._is_waited_for = True
        with contextlib.suppress(OSError):
            self._connection.send(request)

    def receive(self) -> Reply:
        """Wait for the answer to the request; raise WorkerDied, BadLevel or FaultElsewhere."""
        try:
            # A program that an environment started may hold the connection open after a crash.
            while not self._connection.poll(_CHECK_SECONDS):
                if self._process.poll() is not None:
                    raise EOFError
            reply: Reply = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        finally:
            self._is_waited_for = False
        if reply.bad_level:
            raise BadLevel(reply.bad_level)
        if reply.raised:
            raise FaultElsewhere(reply.raised)
        return reply

    @property
    def memory(self) -> int:
        """The process's memory in bytes, of which it shares some with other processes."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    @property
    def is_busy(self) -> bool:
        """Whether a request has no answer yet."""
        return self._is_waited_for and not self._connection.poll(0)

    def stack(self) -> list[str]:
        """Return where the process is in the user's code, as lines of a traceback."""
        try:
            begin = os.fstat(self._stacks.fileno()).st_size
            self._process.send_signal(signal.SIGUSR2)
            time.sleep(_STACK_SECONDS)
            return frames_of_stack(text_of(self._stacks, begin))
        except ValueError:  # another thread has closed it (`end`)
            return []

    def close(self) -> None:
        """Ask the process to close its environments and end."""
        with contextlib.suppress(OSError):
            self._connection.close()

    def end(self) -> None:
        """Wait for the process to end, after `close`; kill it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        os.close(self._life)
        self._stacks.close()

    def _death(self) -> WorkerDied:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the connection and still runs
            self._process.kill()
            code = self._process.wait()
        stack = frames_of_stack(text_of(self._stacks))
        return WorkerDied(describe_end(code), "\n".join(stack))
