"""What a frontend runs on another host, over SSH: it answers there for this host's part of a run.

Lines of JSON come and go: `{"id": 7, "op": "order", "what": "save"}` is a call of a method of
`Here`, `Machine` or `Watch`; `{"id": 7, "result": ...}` or `{"id": 7, "error": sentence}` is its
answer, `{"id": 7, "said": line}` what it prints meanwhile. Without being asked it tells how the
processes are, and what their files say. It ends with the connection: what it started goes on.
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

from launcher.node.machine_probe import Machine
from launcher.node.node_agent import Here
from launcher.node.run_registry import BadName, Foreign, Run, Taken, of_this_host
from launcher.node.tmux import Broken

MARK = "impala_mm is here"  # its first line: before it, a login may have said anything
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 2.0  # at least so often something is said: who hears nothing knows that we are gone
_SILENT_SECONDS = 30.0  # without a word of the frontend, its connection is dead
_MOST = 1 << 18  # bytes of a file that are told at once

Tell = Callable[[dict[str, Any]], None]


class Watch(threading.Thread):
    """Tells what changed: `{"states": {...}}`, `{"file": path, "offset": n, "data": base64}`."""

    def __init__(self, here: Here, tell: Tell):
        super().__init__(name="watch", daemon=True)
        self._here, self._tell = here, tell
        self._files: dict[str, int] = {}  # how much of each is known
        self._states: dict[str, Any] = {}
        self._told = 0.0
        self._followed = False  # somebody asked for it
        self._whole = False  # all states are told next: what is not among them is not there

    def follow(self, start: str, files: dict[str, int]) -> None:
        """From now on these, each from so many bytes on; and all states of that start once more."""
        self._here.serve(start)
        self._files, self._states, self._told = dict(files), {}, 0.0
        self._whole = self._followed = True

    def run(self) -> None:
        """To the end of the process."""
        while True:
            whole, self._whole = self._whole, False
            states = self._here.states()
            changed = {n: s for n, s in states.items() if whole or s != self._states.get(n)}
            self._states |= changed
            if changed or whole or time.monotonic() - self._told > _TELL_SECONDS:
                self._told = time.monotonic()
                news = {"states": changed, "whole": whole}
                self._tell(news if self._followed else {"alive": True})
            for path in list(self._files):
                self._grown(path)
            time.sleep(_LOOK_SECONDS)

    def _grown(self, path: str) -> None:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            known = self._files.get(path, 0)
            if os.fstat(file.fileno()).st_size < known:  # begun anew
                known = 0
            file.seek(known)
            if data := file.read(_MOST):
                self._files[path] = known + len(data)
                self._tell({"file": path, "offset": known, "data": _encoded(data)})


class Far:
    """Of one connection."""

    def __init__(self, name: str):
        run = Run(name, of_this_host())
        self._here = Here(run, start="")
        self._out = threading.Lock()
        self._watch = Watch(self._here, self.tell)
        self._machine = Machine(run)
        self._heard = time.monotonic()

    def tell(self, message: dict[str, Any]) -> None:
        """One line."""
        line = json.dumps(message).encode() + b"\n"
        with self._out:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def listen(self) -> None:
        """To the end of the connection."""
        threading.Thread(target=self._end_when_silent, daemon=True).start()
        print(MARK, flush=True)
        self._watch.start()
        for line in sys.stdin.buffer:
            self._heard = time.monotonic()
            message = json.loads(line)
            if message["op"] == "ping":
                with contextlib.suppress(OSError):
                    news = self._here.run.folder / "news"
                    if news.parent.is_dir():
                        news.touch(mode=0o600)
                continue
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()

    def _answer(self, message: dict[str, Any]) -> None:
        number, op = message.pop("id"), message.pop("op")
        of = next(each for each in (self._watch, self._machine, self._here) if hasattr(each, op))
        call = getattr(of, op)
        if message.pop("stream", False):
            message["heard"] = lambda line: self.tell({"id": number, "said": line})
        try:
            self.tell({"id": number, "result": call(**message)})
        except BrokenPipeError:
            self.end()
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            self.tell({"id": number, "error": said})
        except (Taken, Foreign, BadName, Broken) as error:
            self.tell({"id": number, "error": str(error)})
        except Exception as error:  # ours: whoever reads it should see what it was
            self.tell({"id": number, "error": f"{type(error).__name__}: {error}"})

    def _end_when_silent(self) -> None:
        while time.monotonic() - self._heard < _SILENT_SECONDS:
            time.sleep(1)
        self.end()

    def end(self) -> None:
        """At once: threads of calls that go on would hold it up."""
        self._machine.abandon()
        os._exit(0)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main(name: str) -> None:
    """To the end of the connection."""
    far = Far(name)
    far.listen()
    far.end()
