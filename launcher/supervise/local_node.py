"""One machine's part of a run; a frontend calls it directly, or over SSH through `agent_main`.

Arguments and results consist of JSON types.
"""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from launcher.supervise import programs, tmux
from launcher.supervise.json_files import write_json
from launcher.supervise.leftovers import remove_leftovers
from launcher.supervise.run_registry import (
    ProcessEntry,
    Record,
    Run,
    RunInUse,
    boot_id,
    readable_runs,
)
from launcher.supervise.task import Task

_TMUX_FAILED = "tmux cannot show the processes: {}"
_END_SECONDS = 15.0  # seconds that processes of an earlier start have to end


class LocalNode:
    """The part of one run that is on this machine."""

    def __init__(
        self,
        run: Run,
        run_tmux: tmux.RunTmux = tmux.run_program,
        start: str | None = None,
    ):
        """Represent the part of `run` on this machine.

        `start`: the id of the only start of the run that is meant, since another frontend may have
        a run of the same name; `select_start` and `begin_run` set it. None: any start.
        """
        self.run, self._start = run, start
        self._windows = _RunWindows(run, run_tmux)

    def select_start(self, start: str) -> None:
        """Restrict all calls to this start of the run."""
        self._start = start

    def _is_selected(self) -> bool:
        record = self.run.record
        return record is not None and self._start in (None, record.id)

    def begin_run(self, record: dict[str, Any], token: str, starts_to_end: list[str]) -> None:
        """Begin a start of the run on this machine, after ending the starts `starts_to_end`."""
        with self.run.locked(wait=True):
            if not self.has_start(record["id"]):
                self._replace_run(record, token, starts_to_end)
            else:  # the same host is reached by two names, of which one may have learners
                self.run.complete_token(token)
        self.select_start(record["id"])

    def _replace_run(self, record: dict[str, Any], token: str, starts_to_end: list[str]) -> None:
        before = self.run.record
        if before and before.id in starts_to_end:
            self.end_starts(starts_to_end)
        self.refuse_taken_name(record["logdir"], record["started_from"])
        self.run.create_state(token)
        socket_path = tmux.default_socket()
        if socket_path:
            self._windows.session(socket_path).close_ended()
        self.run.write_record(Record(**record | {"boot": boot_id(), "socket": socket_path}))
        remove_leftovers(Path(os.environ.get("TMPDIR") or "/tmp"))

    def refuse_taken_name(self, logdir: str, started_from: str) -> None:
        """Raise RunInUse or TmuxError if another run has this name here, or a session of a user.

        A run with the same `logdir` and frontend's host is the same run; it must have ended.
        """
        name, record = self.run.name, self.run.record
        if record and self.run.is_running():
            raise RunInUse(
                f"a run named {name} is running on that host, started from "
                f"{record.started_from}: "
                f"--tmux_sess=NAME starts another run, `rm -r {self.run.folder}` on that host ends "
                f"its part"
            )
        is_same = record and (record.logdir, record.started_from) == (logdir, started_from)
        if record and not is_same:
            raise RunInUse(
                f"a run named {name} has ended on that host, and {record.started_from}, from which "
                f"it was started, has not removed it by --stop: --tmux_sess=NAME starts another run"
            )
        socket = "" if record else tmux.default_socket()
        if socket and self._windows.session(socket).exists():
            raise tmux.TmuxError(
                f"tmux has a session named {name} on that host: --tmux_sess=NAME starts another run"
            )

    def has_start(self, start: str) -> bool:
        """Return whether this start of the run was begun here since the machine was booted."""
        record = self.run.record
        return record is not None and (record.id, record.boot) == (start, boot_id())

    def end_starts(self, starts: list[str]) -> bool:
        """End these starts now, whatever the names of their runs; return True once all ended."""
        for run, record in readable_runs(self.run.folder.parent):
            if record.id in starts:
                run.request_stop("now")
                until = time.monotonic() + _END_SECONDS
                while run.is_running() and time.monotonic() < until:
                    time.sleep(0.1)
                run.kill()
                LocalNode(run, self._windows.run_tmux).forget(record.id)
        return True

    def start_processes(self, tasks: list[dict[str, Any]], entries: list[dict[str, Any]]) -> str:
        """Start processes; each task's environment is added to that of this process.

        `entries`: the processes that the run's record does not contain yet, in its format. Return
        why they have no windows; empty if they have.
        """
        record = self.run.record
        if record is None or not self._is_selected():
            raise RunInUse(f"{self.run.name} was not begun on that host")
        if not entries:
            return self._start_supervisors(tasks, record)
        with self.run.locked(wait=True):  # the same host may be reached by two names
            record = self.run.record
            assert record
            new = [ProcessEntry(**entry) for entry in entries]
            names = {entry.name for entry in new}
            others = [entry for entry in record.processes if entry.name not in names]
            record = dataclasses.replace(record, processes=others + new)
            self.run.write_record(record)
            return self._start_supervisors(tasks, record)

    def _start_supervisors(self, tasks: list[dict[str, Any]], record: Record) -> str:
        """Start the supervisors of these tasks, in place of what their folders had before."""
        folders = {}
        for each in tasks:
            folder = self.run.folder / each["name"]
            folder.mkdir(mode=0o700, exist_ok=True)
            Path(each["log"]).parent.mkdir(parents=True, exist_ok=True)
            task = Task(**each | {"environment": os.environ | each["environment"]})
            write_json(
                folder / "task.json", task._asdict()
            )  # first, so that it never counts as lost
            for old in folder.iterdir():  # left by a process of the same name
                if old.name not in ("task.json", "lock"):
                    old.unlink()
            folders[task.name] = folder
        before = programs.staying_command() or []
        for folder in folders.values():
            programs.start_supervisor(folder / "task.json", before=before)
        return self._windows.open(folders, record)

    def open_windows(self) -> str:
        """Open the windows of running processes that were closed; return why not, or nothing."""
        record = self.run.record
        return self._windows.open_closed(record) if record and self._is_selected() else ""

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of its processes on this machine, by name, as in their files."""
        states = self.run.states() if self._is_selected() else {}
        return {name: state.to_json() for name, state in states.items()}

    def request_stop(self, mode: str, name: str = "") -> None:
        """Request a stop of one process, or of all: "save", "now" or "ended"."""
        if self._is_selected():
            self.run.request_stop(mode, name)

    def kill(self, lost_only: bool = False) -> int:
        """Kill all processes, or only those that lost their supervisor; return their number."""
        return self.run.kill(lost_only) if self._is_selected() else 0

    def forget(self, start: str = "") -> None:
        """Remove the run's record and windows; if `start` is given, only of that start."""
        record = self.run.record
        if record and start in ("", record.id):
            self.run.forget()
            self._windows.close(record)


class _RunWindows:
    """The tmux windows that show one run's processes here; no process depends on them."""

    def __init__(self, run: Run, run_tmux: tmux.RunTmux):
        self._run, self.run_tmux = run, run_tmux

    def session(self, socket: str) -> tmux.Session:
        """Return the session of the run on the server of this socket."""
        return tmux.Session(self._run.name, socket, self.run_tmux)

    def open(self, folders: dict[str, Path], record: Record) -> str:
        """Open windows of processes, given their folders by name; return why not, or nothing."""
        if not record.socket or not folders:
            return ""
        try:
            self.session(record.socket).open_windows(folders)
        except tmux.TmuxError as error:
            return _TMUX_FAILED.format(error)
        return ""

    def open_closed(self, record: Record) -> str:
        """Open the windows of running processes that were closed; return why not, or nothing."""
        if not record.socket:
            return ""
        try:
            living = self.session(record.socket).living_windows()
        except tmux.TmuxError as error:
            return _TMUX_FAILED.format(error)
        missing = {
            name: self._run.folder / name
            for name, state in self._run.local_states().items()
            if not state.has_ended and name not in living
        }
        try:
            with self._run.locked():
                return self.open(missing, record)
        except RunInUse:  # another frontend opens them
            return ""

    def close(self, record: Record) -> None:
        """Close all of them."""
        if record.socket:
            self.session(record.socket).close()
