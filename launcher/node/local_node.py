"""This machine's part of a run, called by a frontend here, or over SSH through `agent_main`.

Arguments and results are made of what JSON has, and nothing but Python's own library is needed.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node import keyring, tmux
from launcher.node.run_registry import Record, Run, RunInUse, boot_id
from launcher.node.task import LEARNERS, LEARNERS_VARIABLE, RANK_BEATS_FOLDER, Task, write_json

_END_SECONDS = 15.0  # that what an earlier start left has to end


class LocalNode:
    """The part of one run that is on this machine."""

    def __init__(
        self,
        run: Run,
        make_tmux: Callable[[str], tmux.RunTmux] = tmux.tmux_program,
        start: str | None = None,
    ):
        """`make_tmux`: by the socket of a server, how to ask it.

        `start`: only this start of the run is meant, for there may be another's of that name; it
        is said by `select_start` or `begin_run`. None: any.
        """
        self.run, self._make_tmux, self._start = run, make_tmux, start

    def select_start(self, start: str) -> None:
        """Only this start is meant."""
        self._start = start

    def _is_selected(self) -> bool:
        record = self.run.record
        return record is not None and self._start in (None, record.id)

    def begin_run(self, record: dict[str, Any], token: str, starts_to_end: list[str]) -> None:
        """Begins a start of the run, which has processes here, once `starts_to_end` have ended."""
        with self.run.locked(wait=True):
            if not self.has_start(record["id"]):  # it may be reached by another name, too
                self._replace_run(record, token, starts_to_end)
        self.select_start(record["id"])

    def _replace_run(self, record: dict[str, Any], token: str, starts_to_end: list[str]) -> None:
        before = self.run.record
        if before and before.id in starts_to_end:
            self.end_starts(starts_to_end)
        self._refuse_running()
        self.run.create_state(token)
        socket_path = tmux.default_socket()
        if socket_path:
            tmux.Session(self.run.name, self._make_tmux(socket_path)).close_ended()
        (self.run.folder / RANK_BEATS_FOLDER).mkdir(mode=0o700)
        self.run.write_record(Record(**record | {"boot": boot_id(), "socket": socket_path}))

    def _refuse_running(self) -> None:
        """Raises RunInUse where another frontend's goes on here."""
        record = self.run.record
        if record and self.run.is_running():
            raise RunInUse(
                f"a run called {self.run.name} goes on there, started from {record.started_from}: "
                f"--tmux_sess=NAME starts another beside it, `tmux kill-session -t "
                f"{self.run.name}` on that host ends its part"
            )

    def has_start(self, start: str) -> bool:
        """Whether this start of the run was begun here, since the machine was."""
        record = self.run.record
        return record is not None and (record.id, record.boot) == (start, boot_id())

    def rank_silence(self) -> float | None:
        """Seconds since a learner here that is supervised elsewhere got on; None: there is none."""
        beats = [
            path.stat().st_mtime for path in (self.run.folder / RANK_BEATS_FOLDER).glob("beat*")
        ]
        return time.time() - max(beats) if beats else None

    def end_starts(self, starts: list[str]) -> bool:
        """Ends these starts now, whatever their runs are called; True: nothing of them is left."""
        for path in self.run.folder.parent.glob("*/run.json"):
            run = Run(path.parent.name, path.parent.parent)
            record = run.record
            if record and record.id in starts:
                run.request_stop("now")
                until = time.monotonic() + _END_SECONDS
                while run.is_running() and time.monotonic() < until:
                    time.sleep(0.1)
                run.kill()
                LocalNode(run, self._make_tmux).forget(record.id)
        for start in starts:
            self.kill_learners(start)
        return True

    def start_processes(self, tasks: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
        """Starts processes; `entries`: how a record has them, of those that it does not have yet.

        A task's environment comes on top of this one.
        """
        record = self.run.record
        if record is None or not self._is_selected():
            raise RunInUse(f"{self.run.name} was not begun there")
        if not entries:
            self._open_windows(tasks, record)
            return
        with self.run.locked(wait=True):  # a host may be reached by two names
            record = self.run.record or record
            names = {process["name"] for process in entries}
            record.processes[:] = [p for p in record.processes if p["name"] not in names] + entries
            self.run.write_record(record)
            self._open_windows(tasks, record)

    def _open_windows(self, tasks: list[dict[str, Any]], record: Record) -> None:
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
            tmux.Session(self.run.name, self._make_tmux(record.socket)).open_windows(paths)
        else:
            for path in paths.values():
                tmux.start_in_background(path)

    def states(self) -> dict[str, dict[str, Any]]:
        """Of its processes here."""
        return self.run.states() if self._is_selected() else {}

    def request_stop(self, mode: str, name: str = "") -> None:
        """To one process or to all of them."""
        if self._is_selected():
            self.run.request_stop(mode, name)

    def kill(self, lost_only: bool = False) -> int:
        """What did not obey, or only what lost its supervisor; how many."""
        return self.run.kill(lost_only) if self._is_selected() else 0

    def give_credentials(self, credentials: dict[str, Any]) -> None:
        """To the learners' supervisor, once it is there."""
        until = time.monotonic() + _END_SECONDS
        while True:
            try:
                return keyring.send_credentials(self.run.folder / LEARNERS, credentials)
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def kill_learners(self, start: str) -> int:
        """Ranks of a start of the run, and what started them, that nobody here supervises."""
        mark = f"{LEARNERS_VARIABLE}={start}".encode()
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
                tmux.Session(self.run.name, self._make_tmux(record.socket)).close()
