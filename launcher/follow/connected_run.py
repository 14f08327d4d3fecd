"""A run with the hosts that are connected: what it takes to look at it, to stop it, to remove it.

Runs that were stopped while a host was unreachable are ended there once a frontend has connected
again; all frontends of a user share the file that remembers them:

~/.local/state/impala_mm/unfinished.json     {host id: [id of a start, ...]}
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher.follow import connect
from launcher.follow.console import say
from launcher.hosts.hosts import Hosts, run_libtmux
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.hosts.state_mirror import StateMirror
from launcher.plan.host_environment import InstallationOf
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.supervise import file_lock, tmux
from launcher.supervise.callbacks import Say
from launcher.supervise.json_files import fits, read_json, write_json
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import Record, Run, runs_folder
from launcher.supervise.task import LEARNERS

REPEAT_SECONDS = 2.0  # seconds after which a stop request is repeated: hosts may have missed it
_MESSAGE_SECONDS = 2.0  # seconds after which a message says that evaluators are waited for
_END_SECONDS = 20.0  # timeout for actors to exit after the learners have ended
_FIRST_CONTACT_SECONDS = 10.0  # timeout for the first status report of all hosts


@dataclasses.dataclass
class ConnectedRun:
    """A run, its hosts, and the rows and flags of the command that is about it."""

    run: Run
    hosts: Hosts
    config: LauncherConfig = dataclasses.field(default_factory=LauncherConfig)
    workers: Sequence[Worker] = ()
    log_max_mb: float = 1.0
    say: Say = say
    installation_of: InstallationOf = dataclasses.field(init=False)  # see `find_installations`
    mirror: StateMirror = dataclasses.field(init=False)  # see `watch_hosts`

    def find_installations(self, rows: Sequence[Worker]) -> None:
        """Find out where the project is installed on the hosts of these rows."""
        self.installation_of = connect.find_installations(
            rows, self.hosts, self.config.deploy, self.say
        )

    def watch_hosts(self, log: str = "") -> None:
        """Start to copy states and logs of all hosts, and wait for their first status reports.

        The logs are that of the learners, with their metrics, and that of the process `log`.
        """
        record = self.run.record
        nodes = self.hosts.remote_nodes
        for host_id, node in nodes.items():
            if node.error and self.run.why_away(host_id):  # unless another frontend is connected
                self.run.record_contact(host_id, node.error)
        files = connect.mirrored_files(record, log) if record else {}
        self.mirror = StateMirror(self.run, self.hosts, files)
        self.hosts.stay_connected(self.mirror)
        until = time.monotonic() + _FIRST_CONTACT_SECONDS
        # Contacts that the run's folder records may be those of another frontend.
        while time.monotonic() < until and not all(
            node.error or host_id in self.mirror.reported for host_id, node in nodes.items()
        ):
            time.sleep(0.05)

    def disconnect(self) -> None:
        """Close the connections. Remote processes keep running."""
        self.hosts.close()
        connect.forget_contacts(self.run, self.hosts.remote_nodes)

    def request_stop(self, mode: str, name: str = "") -> None:
        """Request one process, or all, to stop: by "save", with a checkpoint, or "now", without.

        Callers repeat the request until the learners have ended, for hosts that missed it.
        """
        record = self.run.record
        host_id = record.host_id_of(name) if record and name else ""
        if host_id:
            (self.run.folder / name).mkdir(exist_ok=True, mode=0o700)
        self.run.request_stop(mode, name)
        host_ids = ([host_id] if host_id else []) if name else None
        self._call_each("request_stop", host_ids, mode=mode, name=name)

    def open_windows(self) -> None:
        """Open tmux windows of running processes again if they were closed, on all hosts."""
        host_ids = ["", *self.hosts.remote_nodes]
        found = self.hosts.for_each(lambda h: self.hosts.call(h, "open_windows"), host_ids)
        for host_id, why in found.items():
            if why and not isinstance(why, HostUnavailable):  # a lost host is reported elsewhere
                self.say(f"note: {host_id or 'this machine'}: {why}")

    def end_remaining(self, is_interrupted: Callable[[], bool] | None = None) -> list[str]:
        """End all processes that have not ended with the learners.

        Evaluators test the last checkpoint first, for as long as their supervisors let them; if
        `is_interrupted` returns True, they end at once. Return the hosts that could not be reached.
        """
        record = self.run.record
        if record is None:
            return []
        self.run.kill(lost_only=True)
        learners = record.host_id_of(LEARNERS)
        if learners:
            self.run.request_stop("ended")
        others = [host_id for host_id in self.hosts.remote_nodes if host_id != learners]
        self._call_each("request_stop", others, mode="ended", name="")
        self._call_each("kill", lost_only=True)
        self._wait_for_end(is_interrupted)
        killed = self.run.kill() if self.run.is_running() else 0
        if self._reachable_running():
            killed += sum(self._call_each("kill").values())
        if killed:
            processes = f"{killed} process{'es' * (killed != 1)}"
            self.say(
                f"killed {processes} that did not exit within {_END_SECONDS:g} s of a stop request"
            )
        return self.record_pending_stops(record)

    def _wait_for_end(self, is_interrupted: Callable[[], bool] | None) -> None:
        """Wait until all processes have ended that can be reached, or have had their time."""
        begin, has_said, ends_now = time.monotonic(), False, False
        while running := self._reachable_running():
            waited = time.monotonic() - begin
            evaluators = [] if ends_now else [s for s in running if s.job == "evaluator"]
            if evaluators and is_interrupted and is_interrupted():
                begin, ends_now = time.monotonic(), True
                self.request_stop("now")
            elif waited > _END_SECONDS and not evaluators:
                return
            elif evaluators and waited > _MESSAGE_SECONDS and not has_said:
                has_said = True
                names = " and ".join(state.name for state in evaluators)
                hint = "; Ctrl-C ends this" if is_interrupted else ""
                self.say(f"waiting for {names} to test the last checkpoint{hint}")
            time.sleep(0.1)

    def undo_start(self, record: Record) -> None:
        """End what was already started of a run whose start failed, and remove its record."""
        self.run.request_stop("now")
        self._call_each("end_starts", starts=[record.id], timeout=_END_SECONDS)
        self._wait_for_end(None)
        self.run.kill()
        self.forget(record)

    def record_pending_stops(self, record: Record) -> list[str]:
        """Record that the run must be ended on unreachable hosts, and return these hosts."""
        states = list(self.run.states().values())
        left = {s.place for s in states if s.place and s.state == "away"}
        for host_id in left:
            add_pending_stop(host_id, record.id)
        for state in states:  # the run has ended, even if a process still runs on that host
            if state.state == "away":
                folder = self.run.folder / state.name
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state._replace(state="lost").to_json())
        # The run's controller ends it at the same time, and may have recorded some just before.
        with _pending_stops() as pending:
            recorded = {h for h in record.targets if record.id in pending.get(h, [])}
        return sorted(left | recorded)

    def forget(self, record: Record, is_stale: bool = False) -> None:
        """Remove the run's record and states on every host, and its tmux windows."""
        self._call_each("forget", start=record.id)
        self.run.forget()
        if record.socket and not is_stale:
            tmux.Session(self.run.name, record.socket, run_libtmux).close()

    def end_pending(self, say: Say) -> None:
        """End earlier runs on hosts that were unreachable when those runs were stopped."""
        for host_id, node in self.hosts.remote_nodes.items():
            starts = pending_stops_on(host_id)
            if not starts or node.error:
                continue
            try:
                node.call("end_starts", starts=starts, timeout=60)
            except (HostUnavailable, OperationFailed):  # the next frontend tries again
                continue
            with _pending_stops() as pending:
                pending.pop(host_id, None)
            say(f"{host_id} is connected again: ended the processes of an earlier run on it")

    def _reachable_running(self) -> list[State]:
        return [state for state in self.run.states().values() if self._is_reachable_running(state)]

    def _is_reachable_running(self, state: State) -> bool:
        if state.state != "away":
            return not state.has_ended
        node = self.hosts.remote_nodes.get(state.place)
        # Another frontend has disconnected; the host will report to this one in a moment.
        return node is not None and not node.error

    def _call_each(
        self, op: str, host_ids: Sequence[str] | None = None, **arguments: Any
    ) -> dict[str, int]:
        """Call these hosts, or all; return the numbers that they returned, without failed calls."""
        found = self.hosts.for_each(
            lambda host_id: self.hosts.call(host_id, op, **arguments),
            list(self.hosts.remote_nodes) if host_ids is None else host_ids,
        )
        return {host_id: result for host_id, result in found.items() if isinstance(result, int)}


def pending_stops_on(host_id: str) -> list[str]:
    """Return the ids of the starts to end on a host that was unreachable when they were stopped."""
    with _pending_stops() as pending:
        return pending.get(host_id, [])


def add_pending_stop(host_id: str, start: str) -> None:
    """Record that a start must be ended on a host that is unreachable now."""
    with _pending_stops() as pending:
        pending[host_id] = [*pending.get(host_id, []), start]


@contextlib.contextmanager
def _pending_stops() -> Iterator[dict[str, list[str]]]:
    """Lock the file of pending stops and yield its content, whose changes are written."""
    path = runs_folder().parent / "unfinished.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = file_lock.acquire(path.with_suffix(".lock"), timeout=math.inf)
    assert lock is not None
    with os.fdopen(lock):
        content = read_json(path)  # it may be damaged
        pending = {each: ids for each, ids in content.items() if fits(ids, list[str])}
        before = {each: list(ids) for each, ids in pending.items()}
        yield pending
        if pending != before:
            write_json(path, pending)
