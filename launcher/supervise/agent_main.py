"""The program that a frontend runs on another host over SSH, to control the run's part there.

Both sides send lines of JSON. `{"id": 7, "op": "request_stop", "mode": "save"}` calls a method of
`LocalNode`, `MachineProbe` or `ChangeReporter`; the reply is `{"id": 7, "result": ...}` or
`{"id": 7, "error": sentence}`, and `{"id": 7, "said": line}` for each line that a program prints
before that. On its own it reports the states of processes and what is appended to their files. It
exits when the connection ends; the processes that it started keep running.
"""

import base64
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher.supervise.errors import LauncherError
from launcher.supervise.local_node import LocalNode
from launcher.supervise.machine_probe import MachineProbe
from launcher.supervise.run_registry import Run, remote_runs_folder

READY_LINE = "impala_mm is here"  # its first line; before it, the login may print anything
_CHECK_SECONDS = 0.5  # seconds between two looks for changes
_REPORT_SECONDS = 2.0  # seconds between messages, at most; the frontend takes silence for a failure
_SILENT_SECONDS = 30.0  # seconds without a message of the frontend before this program exits
_MAX_BYTES = 1 << 18  # bytes of a file that are sent at once

SendMessage = Callable[[dict[str, Any]], None]


class ChangeReporter(threading.Thread):
    """A thread that sends changes.

    Its messages are `{"states": {...}}` and `{"file": path, "offset": n, "data": base64}`.
    """

    def __init__(self, node: LocalNode, send: SendMessage):
        super().__init__(name="watch", daemon=True)
        self._node, self._send = node, send
        self._offsets: dict[str, int] = {}  # bytes of each file that the frontend has
        self._states: dict[str, Any] = {}
        self._reported = 0.0
        self._followed = False  # a frontend has called `follow`
        self._send_all = False  # the next message has all states: others no longer exist

    def follow(self, start: str, files: dict[str, int]) -> None:
        """Report on this start of the run from now on: all its states, and what files append.

        `files`: the bytes that the frontend has of each file.
        """
        self._node.select_start(start)
        self._offsets, self._states, self._reported = dict(files), {}, 0.0
        self._send_all = self._followed = True

    def run(self) -> None:
        """Send changes until this program exits, or nobody receives them."""
        with contextlib.suppress(OSError):  # the connection has ended
            while True:
                self._report()
                time.sleep(_CHECK_SECONDS)

    def _report(self) -> None:
        send_all, self._send_all = self._send_all, False
        states = self._node.states()
        changed = {n: s for n, s in states.items() if send_all or s != self._states.get(n)}
        self._states |= changed
        if changed or send_all or time.monotonic() - self._reported > _REPORT_SECONDS:
            self._reported = time.monotonic()
            message = {"states": changed, "all": send_all}
            self._send(message if self._followed else {"alive": True})
        for path in list(self._offsets):
            self._send_appended(path)

    def _send_appended(self, path: str) -> None:
        # A file may not exist yet, or be replaced.
        with contextlib.suppress(OSError), open(path, "rb") as file:
            sent = self._offsets.get(path, 0)
            if os.fstat(file.fileno()).st_size < sent:  # the log was begun anew
                sent = 0
            file.seek(sent)
            if data := file.read(_MAX_BYTES):
                self._offsets[path] = sent + len(data)
                text = base64.b64encode(data).decode()
                self._send({"file": path, "offset": sent, "data": text})


class Agent:
    """The program at the other end of a frontend's connection."""

    def __init__(self, name: str):
        run = Run(name, remote_runs_folder())
        self._node = LocalNode(run, start="")
        self._writing = threading.Lock()
        self._reporter = ChangeReporter(self._node, self.send)
        self._probe = MachineProbe(run)
        self._last_received = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message as one line."""
        line = json.dumps(message).encode() + b"\n"
        with self._writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def serve(self) -> None:
        """Answer calls until the connection ends."""
        threading.Thread(target=self._exit_when_silent, daemon=True).start()
        print(READY_LINE, flush=True)
        self._reporter.start()
        for line in sys.stdin.buffer:
            self._last_received = time.monotonic()
            message = json.loads(line)
            if message["op"] == "ping":
                self._node.run.record_frontend()
                continue
            threading.Thread(target=self._answer_call, args=(message,), daemon=True).start()

    def _answer_call(self, message: dict[str, Any]) -> None:
        number, op = message.pop("id"), message.pop("op")
        targets = self._reporter, self._probe, self._node
        call = next(getattr(target, op) for target in targets if hasattr(target, op))
        if message.pop("stream", False):
            message["on_line"] = lambda line: self.send({"id": number, "said": line})
        try:
            self.send({"id": number, "result": call(**message)})
        except OSError as error:
            sentence = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            self.send({"id": number, "error": sentence})
        except LauncherError as error:
            self.send({"id": number, "error": str(error)})
        except Exception as error:  # a bug: its type helps to find it
            self.send({"id": number, "error": f"{type(error).__name__}: {error}"})

    def _exit_when_silent(self) -> None:
        while time.monotonic() - self._last_received < _SILENT_SECONDS:
            time.sleep(1)
        self.exit()

    def exit(self) -> None:
        """Exit at once, without waiting for the threads of unfinished calls."""
        self._probe.kill_programs()
        os._exit(0)


def main(name: str) -> None:
    """Serve the run of this name until the connection ends."""
    agent = Agent(name)
    agent.serve()
    agent.exit()
