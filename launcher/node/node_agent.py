"""This machine's part of a run, as a frontend asks for it: here, or over SSH (`there`, by `far`).

What is taken and given is made of what JSON has, and nothing but Python's own library is needed.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node import keyring
from launcher.node import tmux as windows
from launcher.node.run_registry import Record, Run, Taken, boot
from launcher.node.task import LEARNERS, OF_LEARNERS, RANKS, Task, write_json

_END_SECONDS = 15.0  # that what an earlier start left has to end


class Here:
    """Of one run."""

    def __init__(
        self,
        run: Run,
        tmux: Callable[[str], windows.Tmux] = windows.program,
        start: str | None = None,
    ):
        """`tmux`: by the socket of a server, how to ask it.

        `start`: only this start of the run is meant, for there may be another's of that name; it
        is said by `serve` or `begin`. None: any.
        """
        self.run, self._tmux, self._start = run, tmux, start

    def serve(self, start: str) -> None:
        """Only this start is meant."""
        self._start = start

    def _is_meant(self) -> bool:
        record = self.run.record
        return record is not None and self._start in (None, record.id)

    def begin(self, record: dict[str, Any], token: str, over: list[str]) -> None:
        """Of a run that has processes here. `over`: starts of it that are to end first."""
        with self.run.being_changed(patiently=True):
            if not self.knows(record["id"]):  # it may be reached by another name, too
                self._begin(record, token, over)
        self.serve(record["id"])

    def _begin(self, record: dict[str, Any], token: str, over: list[str]) -> None:
        before = self.run.record
        if before and before.id in over:
            self.finish(over)
        self._refuse_taken()
        self.run.renew(token)
        socket_path = windows.here()
        if socket_path:
            windows.Session(self.run.name, self._tmux(socket_path)).clear()
        (self.run.folder / RANKS).mkdir(mode=0o700)
        self.run.write(Record(**record | {"boot": boot(), "socket": socket_path}))

    def _refuse_taken(self) -> None:
        """Raises Taken where another frontend's goes on here."""
        record = self.run.record
        if record and self.run.goes_on():
            raise Taken(
                f"a run called {self.run.name} goes on there, started from {record.started_from}: "
                f"--tmux_sess=NAME starts another beside it, `tmux kill-session -t "
                f"{self.run.name}` on that host ends its part"
            )

    def knows(self, start: str) -> bool:
        """Whether this start of the run was begun here, since the machine was."""
        record = self.run.record
        return record is not None and (record.id, record.boot) == (start, boot())

    def ranks_silent(self) -> float | None:
        """Seconds since a learner here that is supervised elsewhere got on; None: there is none."""
        beats = [path.stat().st_mtime for path in (self.run.folder / RANKS).glob("beat*")]
        return time.time() - max(beats) if beats else None

    def finish(self, over: list[str]) -> bool:
        """Ends these starts now, whatever their runs are called; True: nothing of them is left."""
        for path in self.run.folder.parent.glob("*/run.json"):
            run = Run(path.parent.name, path.parent.parent)
            record = run.record
            if record and record.id in over:
                run.order("now")
                until = time.monotonic() + _END_SECONDS
                while run.goes_on() and time.monotonic() < until:
                    time.sleep(0.1)
                run.kill()
                Here(run, self._tmux).forget(record.id)
        for start in over:
            self.end_learners(start)
        return True

    def add(self, tasks: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
        """Starts processes; `told`: how a record has them, of those that it does not have yet.

        A task's environment comes on top of this one.
        """
        record = self.run.record
        if record is None or not self._is_meant():
            raise Taken(f"{self.run.name} was not begun there")
        if not told:
            self._start_here(tasks, record)
            return
        with self.run.being_changed(patiently=True):  # a host may be reached by two names
            record = self.run.record or record
            names = {process["name"] for process in told}
            record.processes[:] = [p for p in record.processes if p["name"] not in names] + told
            self.run.write(record)
            self._start_here(tasks, record)

    def _start_here(self, tasks: list[dict[str, Any]], record: Record) -> None:
        paths = {}
        for each in tasks:
            folder = self.run.folder / each["name"]
            folder.mkdir(mode=0o700, exist_ok=True)
            Path(each["log"]).parent.mkdir(parents=True, exist_ok=True)
            task = Task(**each | {"environment": os.environ | each["environment"]})
            write_json(folder / "task.json", task._asdict())  # first: it is never seen as lost
            for old in folder.iterdir():  # of one that was there before
                if old.name not in ("task.json", "lock"):
                    old.unlink()
            paths[task.name] = folder / "task.json"
        if record.socket:
            windows.Session(self.run.name, self._tmux(record.socket)).open(paths)
        else:
            windows.open_in_background(paths)

    def states(self) -> dict[str, dict[str, Any]]:
        """Of its processes here."""
        return self.run.states() if self._is_meant() else {}

    def order(self, what: str, name: str = "") -> None:
        """To one process or to all of them."""
        if self._is_meant():
            self.run.order(what, name)

    def kill(self, lost: bool = False) -> int:
        """What did not obey, or only what lost its supervisor; how many."""
        return self.run.kill(lost) if self._is_meant() else 0

    def give_keys(self, credentials: dict[str, Any]) -> None:
        """To the learners' supervisor, once it is there."""
        until = time.monotonic() + _END_SECONDS
        while True:
            try:
                return keyring.give(self.run.folder / LEARNERS, credentials)
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def end_learners(self, start: str) -> int:
        """Ranks of a start of the run, and what started them, that nobody here supervises."""
        mark = f"{OF_LEARNERS}={start}".encode()
        killed = 0
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    killed += 1
        return killed

    def forget(self, start: str = "") -> None:
        """That it was ever there, its windows included; only of that start, if one is named."""
        record = self.run.record
        if record and start in ("", record.id):
            self.run.forget()
            if record.socket:
                windows.Session(self.run.name, self._tmux(record.socket)).close()
