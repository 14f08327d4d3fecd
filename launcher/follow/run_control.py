"""Stops a run on all of its machines, and removes what they keep of it."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from launcher.follow.pending_stops import PendingStops
from launcher.hosts.hosts import Hosts, libtmux_server
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.supervise import tmux
from launcher.supervise.callbacks import Say
from launcher.supervise.run_registry import Record, Run
from launcher.supervise.task import FINAL_STATES, LEARNERS, write_json

REPEAT_SECONDS = 2.0  # seconds after which a stop request is repeated: hosts may have missed it
_MESSAGE_SECONDS = 2.0  # seconds after which a message says that evaluators are waited for
_END_SECONDS = 20.0  # timeout for actors to exit after the learners have ended


class RunControl:
    """Sends stop requests to all hosts of a run, and ends what remains."""

    def __init__(self, run: Run, hosts: Hosts):
        self.run, self.hosts = run, hosts

    def request_stop(self, mode: str, name: str = "") -> None:
        """Request one process, or all, to stop: by "save", with a checkpoint, or "now", without.

        Callers repeat the request until the learners have ended, for hosts that missed it.
        """
        record = self.run.record
        host_id = record.host_id_of(name) if record and name else ""
        if host_id:
            (self.run.folder / name).mkdir(exist_ok=True, mode=0o700)
        self.run.request_stop(mode, name)
        host_ids = [host_id] if name else list(self.hosts.remote_nodes)
        self._call_each("request_stop", [p for p in host_ids if p], mode=mode, name=name)

    def open_windows(self, say: Say) -> None:
        """Open tmux windows of running processes again if they were closed, on all hosts."""
        host_ids = ["", *self.hosts.remote_nodes]
        found = self.hosts.for_each(lambda h: self.hosts.call(h, "open_windows"), host_ids)
        for host_id, why in found.items():
            if why and not isinstance(why, HostUnavailable):  # a lost host is reported elsewhere
                say(f"note: {host_id or 'this machine'}: {why}")

    def end_remaining(
        self, say: Say, is_interrupted: Callable[[], bool] | None = None
    ) -> list[str]:
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
        self._call_each(
            "request_stop",
            [p for p in self.hosts.remote_nodes if p != learners],
            mode="ended",
            name="",
        )
        self._call_each("kill", list(self.hosts.remote_nodes), lost_only=True)
        self._wait_for_end(say, is_interrupted)
        killed = self.run.kill() if self.run.is_running() else 0
        if self._reachable_running():
            killed += sum(self._call_each("kill", list(self.hosts.remote_nodes)).values())
        if record.targets:
            self._call_each("kill_learners", list(self.hosts.remote_nodes), start=record.id)
            self.hosts.local_node.kill_learners(record.id)
        if killed:
            processes = f"{killed} process{'es' * (killed != 1)}"
            say(f"killed {processes} that did not exit within {_END_SECONDS:g} s of a stop request")
        return self.record_pending_stops(record)

    def _wait_for_end(self, say: Say, is_interrupted: Callable[[], bool] | None) -> None:
        """Wait until all processes have ended that can be reached, or have had their time."""
        begin, has_said, ends_now = time.monotonic(), False, False
        while running := self._reachable_running():
            waited = time.monotonic() - begin
            evaluators = [] if ends_now else [s for s in running if s["job"] == "evaluator"]
            if evaluators and is_interrupted and is_interrupted():
                begin, ends_now = time.monotonic(), True
                self.request_stop("now")
            elif waited > _END_SECONDS and not evaluators:
                return
            elif evaluators and waited > _MESSAGE_SECONDS and not has_said:
                has_said = True
                names = " and ".join(state["name"] for state in evaluators)
                hint = "; Ctrl-C ends this" if is_interrupted else ""
                say(f"waiting for {names} to test the last checkpoint{hint}")
            time.sleep(0.1)

    def undo_start(self, record: Record) -> None:
        """End what was already started of a run whose start failed, and remove its record."""
        self.run.request_stop("now")
        self._call_each(
            "end_starts",
            list(self.hosts.remote_nodes),
            starts=[record.id],
            timeout=_END_SECONDS,
        )
        until = time.monotonic() + _END_SECONDS
        while any(s["state"] in ("running", "ending") for s in self.run.states().values()):
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        self.run.kill()
        self.forget(record)

    def record_pending_stops(self, record: Record) -> list[str]:
        """Record that the run must be ended on unreachable hosts, and return these hosts."""
        states = list(self.run.states().values())
        left = {s["place"] for s in states if s.get("place") and s["state"] == "away"}
        pending = PendingStops()
        for host_id in left:
            pending.add(host_id, record.id)
        for state in states:  # the run has ended, even if a process still runs on that host
            if state["state"] == "away":
                folder = self.run.folder / state["name"]
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state | {"state": "lost", "supervisor": None})
        # The run's controller ends it at the same time, and may have recorded some just before.
        recorded = {h for h in record.targets if record.id in pending.starts_on(h)}
        return sorted(left | recorded)

    def forget(self, record: Record, is_stale: bool = False) -> None:
        """Remove the run's record and states on every host, and its tmux windows."""
        self._call_each("forget", list(self.hosts.remote_nodes), start=record.id)
        self.run.forget()
        if record.socket and not is_stale:
            tmux.Session(self.run.name, libtmux_server(record.socket)).close()

    def end_pending(self, say: Say) -> None:
        """End earlier runs on hosts that were unreachable when those runs were stopped."""
        pending = PendingStops()
        for host_id in pending.host_ids():
            node = self.hosts.remote_nodes.get(host_id)
            if node is None or node.error:
                continue
            with contextlib.suppress(HostUnavailable, OperationFailed):
                node.call("end_starts", starts=pending.starts_on(host_id), timeout=60)
                pending.clear(host_id)
                say(f"{host_id} is connected again: ended the processes of an earlier run on it")

    def _reachable_running(self) -> list[dict[str, Any]]:
        return [state for state in self.run.states().values() if self._is_reachable_running(state)]

    def _is_reachable_running(self, state: dict[str, Any]) -> bool:
        if state["state"] != "away":
            return state["state"] not in (*FINAL_STATES, "lost")
        node = self.hosts.remote_nodes.get(state["place"])
        # Another frontend has disconnected; the host will report to this one in a moment.
        return node is not None and not node.error

    def _call_each(self, op: str, host_ids: list[str], **arguments: Any) -> dict[str, int]:
        """Call all of these hosts; return the numbers that they returned, without failed calls."""
        found = self.hosts.for_each(
            lambda host_id: self.hosts.call(host_id, op, **arguments), host_ids
        )
        return {host_id: result for host_id, result in found.items() if isinstance(result, int)}
