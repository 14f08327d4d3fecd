"""The program on each host that takes the orders of the run's controller on another host.

    python -m launcher.node.order_server      reads an `OrderServerTask` as JSON from its input

A frontend starts it, and it prints {"port": ..., "id": ...}: where it listens, over TLS
(`order_channel`). A controller's connection carries the messages of `agent_main`, restricted to the
orders in `host_orders`. A controller from which a frontend has taken over is refused, by its term
(`controlled_node.TERM`). The server ends with the run.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from launcher.node import host_orders, order_channel, procfs
from launcher.node.agent_main import ChangeReporter
from launcher.node.controlled_node import ORDER_SERVER, TERM, ControlledNode, read_term
from launcher.node.lease import Lease
from launcher.node.local_node import LocalNode
from launcher.node.order_listener import OrderListener
from launcher.node.order_messages import OrderMessages
from launcher.node.process_output import ProcessOutput
from launcher.node.run_registry import Run, remote_runs_folder
from launcher.node.task import FINAL_STATES, ROW_FILES, has_other_id, write_json

_CHECK_SECONDS = 0.4
_LOOK_SECONDS = 5.0  # seconds between two looks for processes of the run
_SILENT_SECONDS = 30.0  # seconds without an order after which a controller counts as gone
_MAX_ORDER_BYTES = 1 << 20
_LOG_MB = 1.0


class OrderServerTask(NamedTuple):
    """The task of one server, which a frontend sends it."""

    name: str  # the run's
    address: str  # by which other hosts reach this one
    credentials: str  # of the role "supervisor" (`order_channel`)
    start: str  # the id of the run's start
    # Seconds without a controller, a frontend and a process of the run on this host; 0: no limit.
    lease_secs: float


class OrderServer:
    """The server of one host."""

    def __init__(self, task: OrderServerTask):
        """Listen for controllers. Raises OSError."""
        self._task, self._run = task, Run(task.name, remote_runs_folder())
        self._selector = selectors.DefaultSelector()
        self._output = ProcessOutput(str(self._run.folder / "orders.log"), _LOG_MB)
        self._writing = threading.Lock()
        self._listener = OrderListener(
            task.address, task.credentials, self._selector, self._obey, self.say
        )
        self.entry = {"port": self._listener.port, "id": secrets.token_hex(8)}
        self._lease = Lease(self._run.folder / "news", task.lease_secs)
        self._is_over = threading.Event()
        self._node = LocalNode(self._run, start=task.start)
        self._looked = self._needed = time.monotonic()

    def serve(self) -> None:
        """Take orders until the run is over."""
        own = [os.getpid(), procfs.start_time(os.getpid())]
        write_json(self._run.folder / ORDER_SERVER, self.entry | {"supervisor": own})
        print(json.dumps(self.entry), flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads it any more
        while not self._is_over.is_set():
            for key, _ in self._selector.select(_CHECK_SECONDS):
                now = self._selector.get_map().get(key.fd)
                if now and now.data == key.data:  # else the event before this one has closed it
                    key.data()
            self._listener.check()
            if has_other_id(self._run.folder / ORDER_SERVER, self.entry["id"]):
                self._is_over.set()  # the run's state was removed or replaced
            if self._lease.has_expired(self._last_needed()):
                self._is_over.set()

    def _last_needed(self) -> float:
        """Return when a process of the run was last running on this host."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            states = self._node.states().values()
            if any(state["state"] not in (*FINAL_STATES, "lost") for state in states):
                self._needed = self._looked
        return self._needed

    def _obey(self, connection: ssl.SSLSocket, address: str, order: dict[str, Any]) -> None:
        """Serve a controller whose certificate was verified, in a thread."""
        term: Any = order.get("term")
        why = ""
        if order.get("order") != "serve" or order.get("id") != self.entry["id"]:
            why = "its order is for another server, or is none of this one"
        elif type(term) is not int or self.is_over(term):
            why = "a frontend has taken over from this controller"
        if why:
            self.say(f"refused an order from {address}: {why}")
            with contextlib.suppress(OSError):
                connection.sendall(order_channel.encode({"refused": why}))
            connection.close()
            return
        session = _Session(self._run, self._task.start, connection, address, self, term)
        threading.Thread(target=session.serve, name=f"orders of {address}", daemon=True).start()

    def is_over(self, term: int) -> bool:
        """Return whether a frontend has taken over from the controller of this term."""
        return term < read_term(self._run.folder / TERM)

    def say(self, text: str) -> None:
        """Log a line."""
        with self._writing:
            self._output.write_message(text)

    def end(self) -> None:
        """End this server: the run is over."""
        self._is_over.set()


class _Session:
    """The connection of one controller."""

    def __init__(
        self,
        run: Run,
        start: str,
        connection: ssl.SSLSocket,
        address: str,
        server: OrderServer,
        term: int,
    ):
        self._run, self._address, self._server = run, address, server
        self._start, self._term = start, term
        self._node = LocalNode(run, start=start)
        self._controlled = ControlledNode(self._node)
        self._messages = OrderMessages(connection, _MAX_ORDER_BYTES)
        self._reporter = ChangeReporter(self._node, self._send)

    def serve(self) -> None:
        """Obey orders until the connection ends, or a frontend takes over."""
        try:
            self._messages.send(order_channel.encode({"ready": True}))
            self._reporter.start()
            for line in self._messages.lines(_SILENT_SECONDS):
                if self._server.is_over(self._term):
                    self._server.say(f"a frontend has taken over from {self._address}")
                    break
                self._take(line)
        except (OSError, ValueError, RecursionError):  # it is gone, or sends no orders
            pass
        finally:
            self._messages.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._messages.send(order_channel.encode(message))

    def _take(self, line: bytes) -> None:
        """Obey one order, or refuse it."""
        message = json.loads(line)
        try:
            number, order, arguments = host_orders.parse(message)
            if arguments.get("start", self._start) != self._start:
                raise host_orders.Refused(f"the order {order} is for another start of the run")
            if order == "follow":
                self._refuse_unknown_files(arguments["files"])
        except host_orders.Refused as error:
            self._server.say(f"refused an order from {self._address}: {error}")
            number = message.get("id") if isinstance(message, dict) else None
            self._send({"id": number, "error": f"refused: {error}"})
            return
        if order not in ("ping", "follow", "has_start", "rank_silence"):
            self._server.say(f"{self._address} orders: {order} {json.dumps(arguments)}")
        if order == "ping":
            with contextlib.suppress(OSError):
                if self._run.folder.is_dir():
                    (self._run.folder / "news").touch(mode=0o600)
        elif order == "end_orders":
            self._send({"id": number, "result": None})
            self._server.end()
        else:
            threading.Thread(
                target=self._answer, args=(number, order, arguments), daemon=True
            ).start()

    def _refuse_unknown_files(self, files: dict[str, int]) -> None:
        """Refuse files other than the logs and rows of the run's processes. Raises Refused."""
        record = self._run.record
        logs = [Path(process["log"]) for process in record.processes] if record else []
        known = {str(path.parent / name) for path in logs for name in (path.name, *ROW_FILES)}
        for path in files:
            if path not in known:
                raise host_orders.Refused(f"{path[:100]!r} is no log of the run")

    def _answer(self, number: int | None, order: str, arguments: dict[str, Any]) -> None:
        targets = self._reporter, self._controlled, self._node
        call = next(getattr(each, order) for each in targets if hasattr(each, order))
        try:
            answer = {"id": number, "result": call(**arguments)}
        except Exception as error:  # also a bug, whose type helps to find it
            answer = {"id": number, "error": str(error) or type(error).__name__}
        with contextlib.suppress(OSError):
            self._send(answer)


def main() -> int:
    """Serve the task in the input."""
    task = OrderServerTask(**json.loads(sys.stdin.buffer.readline()))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server = OrderServer(task)
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error)}), flush=True)
        return 1
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
