"""The supervisor of mpirun's daemon on the host of another learner than the first.

    python -m launcher.supervise.daemon_supervisor      reads a `DaemonTask` as JSON from its input

A frontend starts it, and it prints {"port": ..., "id": ...}: where it listens for orders, over TLS
(`order_channel`). It starts the daemon when the learners' mpirun orders it, again at each restart
of the learners, and ends it when mpirun's agent is gone. It accepts no other order than that for
mpirun's daemon (`daemon_line`). It ends with the run.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from launcher.supervise import child_process, daemon_line, order_channel, procfs
from launcher.supervise.json_files import has_other_id, write_json
from launcher.supervise.lease import Lease
from launcher.supervise.order_listener import OrderListener
from launcher.supervise.process_output import ProcessOutput
from launcher.supervise.task import HOST_NAME_VARIABLE

# In the run's state folder: its pid, its port and its id, and the daemon's pid.
STATE_FILE = "daemon.json"
DAEMON = "mpirun's daemon"  # its name among the states of a host's processes
_CHECK_SECONDS = 0.4
_REPLY_SECONDS = 5.0  # timeout for a peer to take a reply
_KILL_SECONDS = 2.0  # seconds between SIGTERM and SIGKILL
_READ_BYTES = 1 << 16  # bytes of the daemon's output that are read at once
_LOG_MB = 1.0


class DaemonTask(NamedTuple):
    """The task of one supervisor, which a frontend sends it."""

    address: str  # by which other hosts reach this one
    credentials: str  # of the role "supervisor" (`order_channel`)
    prefix: str  # the folder of Open MPI on this host
    announced: list[str]  # words of the user's arguments of mpirun (`daemon_line.parse`)
    start: str  # the id of the run's start, in the environment of all processes on this host
    folder: str  # the run's state folder; empty: the supervisor ends with its input
    lease_secs: float  # seconds without an order and without a frontend; 0: no limit


class DaemonSupervisor:
    """The supervisor of one host; it has at most one daemon, that of the newest mpirun."""

    def __init__(self, task: DaemonTask):
        """Listen for orders. Raises OSError."""
        self._task, self._folder = task, Path(task.folder)
        self._selector = selectors.DefaultSelector()
        self._listener = OrderListener(
            task.address, task.credentials, self._selector, self._obey, self._say
        )
        self.entry = {"port": self._listener.port, "id": secrets.token_hex(8)}
        self._output = ProcessOutput(
            str(self._folder / "daemon.log") if task.folder else "", _LOG_MB
        )
        self._lease, self._orders = Lease(self._folder / "news", task.lease_secs), 0
        self._process: subprocess.Popen | None = None
        self._agent: ssl.SSLSocket | None = None  # the connection of the daemon's mpirun
        self._kill_time = 0.0  # when the daemon is killed; 0: it need not end
        self._is_over = False

    def serve(self) -> None:
        """Obey orders until the run is over."""
        if self._task.folder:
            self._write_state(None)
        else:
            self._selector.register(0, selectors.EVENT_READ, self._read_input)
        print(json.dumps(self.entry), flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads it any more
        while not self._is_over:
            for key, _ in self._selector.select(_CHECK_SECONDS):
                now = self._selector.get_map().get(key.fd)
                if now and now.data == key.data:  # else the event before this one has closed it
                    key.data()
            self._listener.check()
            self._check_daemon()
            self._check_run()
        self._end_daemon()

    def _write_state(self, process: int | None) -> None:
        """Write the state, unless this supervisor has been replaced; `process`: the daemon's."""
        if not self._task.folder or self._is_over:
            return
        pids = {"supervisor": os.getpid(), "process": process}
        known = {name: pid and [pid, procfs.start_time(pid)] for name, pid in pids.items()}
        with contextlib.suppress(OSError):
            write_json(self._folder / STATE_FILE, self.entry | known)

    def _obey(self, connection: ssl.SSLSocket, address: str, order: dict[str, Any]) -> None:
        """Obey the order of a peer whose certificate was verified."""
        kind = order.get("order")
        if order.get("id") != self.entry["id"]:
            why = "the order is for another supervisor, which has ended"
        elif kind in ("ping", "end"):
            self._orders += 1
            self._is_over = kind == "end"
            _reply(connection, {"ready": True})
            connection.close()
            return
        elif kind == "start":
            try:
                command = daemon_line.parse(str(order.get("line")), self._task.announced)
                self._start_daemon(command, connection)
                return
            except daemon_line.Unexpected as error:
                why = str(error)
            except OSError as error:
                why = f"{error.filename}: {error.strerror}"
        else:
            why = f"there is no order {kind!r}"
        self._say(f"refused an order from {address}: {why}")
        _reply(connection, {"refused": why})
        connection.close()

    def _say(self, text: str) -> None:
        """Log a line, and show it in the learners' log while their mpirun is connected."""
        self._output.write_message(text)
        self._relay(f"[{self._task.address}] {text}\n")

    def _relay(self, text: str) -> None:
        if self._agent:
            _reply(self._agent, {"output": text})

    # -- the daemon

    def _start_daemon(self, command: daemon_line.DaemonCommand, agent: ssl.SSLSocket) -> None:
        """Start the daemon of an mpirun, after ending that of an earlier one. Raises OSError."""
        self._end_daemon()
        prefix, libraries = self._task.prefix, os.environ.get("LD_LIBRARY_PATH", "")
        variables = dict.fromkeys(command.variables & {"PMIX_PREFIX", "OPAL_PREFIX"}, prefix) | {
            "PRTE_PREFIX": prefix,
            "LD_LIBRARY_PATH": f"{prefix}/lib:{libraries}".rstrip(":"),
            HOST_NAME_VARIABLE: self._task.address,  # for its ranks
        }
        self._process = child_process.start(
            [f"{prefix}/bin/prted", *command.arguments],
            dict(os.environ) | variables,
            workdir=str(Path.home()),
            death_signal=signal.SIGTERM,  # by which it ends its ranks
        )
        assert self._process.stdout
        # The end of the last daemon's output may yet have to be read, at the same descriptor.
        os.set_blocking(self._process.stdout.fileno(), False)
        self._orders += 1
        self._agent, self._kill_time = agent, 0.0
        self._selector.register(agent, selectors.EVENT_READ, self._read_agent)
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._read_output)
        self._write_state(self._process.pid)

    def _read_agent(self) -> None:
        """Notice the end of mpirun's agent, which sends nothing after its order."""
        assert self._agent
        with contextlib.suppress(OSError):
            self._agent.setblocking(False)
            try:
                if self._agent.recv(1):
                    return
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
        self._close_agent()
        if self._process:
            self._process.terminate()
            self._kill_time = time.monotonic() + _KILL_SECONDS

    def _close_agent(self) -> None:
        if self._agent:
            self._selector.unregister(self._agent)
            self._agent.close()
            self._agent = None

    def _read_output(self) -> None:
        assert self._process
        assert self._process.stdout
        if not self._pass_on(self._process.stdout):
            self._selector.unregister(self._process.stdout)

    def _pass_on(self, output: IO[bytes]) -> bool:
        """Log and relay what the daemon has printed; return whether it may print more."""
        try:
            content = os.read(output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        if content and self._task.folder:
            self._output.write(content)
        self._relay(content.decode(errors="replace"))
        return bool(content)

    def _check_daemon(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._end_daemon()
        elif self._kill_time and time.monotonic() > self._kill_time:
            child_process.kill_tree(self._process)

    def _end_daemon(self) -> None:
        """Kill what is left of the daemon and its ranks, and tell its mpirun how it ended."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            child_process.kill_tree(process)
        process.wait()
        child_process.kill_orphans()
        assert process.stdout
        with contextlib.suppress(KeyError):  # its output has ended already
            self._selector.unregister(process.stdout)
            self._pass_on(process.stdout)  # why it ended
        process.stdout.close()
        code = child_process.exit_code(process)
        self._output.write_message(f"mpirun's daemon {child_process.describe_exit(code)}")
        self._write_state(None)
        if self._agent:
            _reply(self._agent, {"code": code})
        self._close_agent()

    # -- the run

    def _read_input(self) -> None:
        self._is_over |= not os.read(0, 1)

    def _check_run(self) -> None:
        """End with the run: its state is removed or replaced, it must stop, or nobody needs it."""
        if not self._task.folder:
            return
        with contextlib.suppress(OSError):
            self._is_over |= (self._folder / "stop").read_text().strip() in ("now", "ended")
        self._is_over |= has_other_id(self._folder / STATE_FILE, self.entry["id"])
        self._is_over |= self._lease.has_expired(
            time.monotonic() if self._process else self._orders
        )


def _reply(connection: ssl.SSLSocket, message: dict[str, Any]) -> None:
    """Send a message; a peer that is gone or takes nothing is noticed elsewhere."""
    with contextlib.suppress(OSError):
        connection.settimeout(_REPLY_SECONDS)
        connection.sendall(order_channel.encode(message))


def main() -> int:
    """Supervise the daemon of the task in the input."""
    task = DaemonTask(**json.loads(sys.stdin.buffer.readline()))
    signal.signal(signal.SIGHUP, lambda *_: None)
    child_process.adopt_orphans()
    try:
        supervisor = DaemonSupervisor(task)
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error)}), flush=True)
        return 1
    supervisor.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
