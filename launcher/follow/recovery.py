"""Recovers a run from lost hosts and supervisors while a frontend follows the run.

`remote_node` keeps trying to reconnect to an unreachable host. Once it is connected again, its
processes that are not running are restarted. Processes whose supervisor was killed are restarted on
any machine. `learner_recovery` restarts the learners' mpirun.
"""

import time
from collections.abc import Sequence

from launcher.follow import connect
from launcher.follow.followed_run import FAILURES, RETRY_SECONDS, SETTLE_SECONDS, FollowedRun
from launcher.follow.learner_recovery import LearnerRecovery
from launcher.supervise.errors import join_names
from launcher.supervise.run_registry import Record
from launcher.supervise.task import FINAL_STATES, LEARNERS

# A file in the run's state folder, by which `--status` asks a connected frontend to open windows.
WINDOWS_REQUEST = "open-windows"
_CHECK_SECONDS = 1.0
# Seconds before an unreachable host is reported: perhaps another frontend has just disconnected.
_AWAY_SECONDS = 4.0


class Recovery:
    """Restores the processes of one run after its hosts were unreachable."""

    def __init__(self, followed: FollowedRun):
        self._followed, self._learners = followed, LearnerRecovery(followed)
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say
        self._checked = 0.0
        self._reported_away: set[str] = set()  # unreachable hosts that a message was printed for
        self._lost_retry_times: dict[str, float] = {}  # by process that was lost and restarted

    @property
    def can_restart_learners(self) -> bool:
        """Whether learners whose supervisor is lost can be restarted, so that the run continues.

        If another frontend recovers the run, it decides.
        """
        return not self._followed.holds_lock() or self._config.restart_learners

    @property
    def is_restarting_learners(self) -> bool:
        """Whether learners that stopped or failed are being restarted: the run continues."""
        return self._learners.is_restarting

    def recover(self) -> None:
        """Check the hosts and the learners, and restart what has to be; call it repeatedly."""
        record = self._run.record
        now = time.monotonic()
        if record is None or now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        if self._hosts.remote_nodes:  # local processes of remote learners wait for this
            self._run.record_frontend()
        if new := set(record.targets) - set(self._hosts.remote_nodes):
            self._connect_new_hosts(record, new)
        self._check_hosts(record, now)
        if (self._run.folder / WINDOWS_REQUEST).exists():
            (self._run.folder / WINDOWS_REQUEST).unlink(missing_ok=True)
            self._followed.open_windows()
        if not self._followed.holds_lock():
            self._followed.restore_times.clear()
            return
        due = [p for p, at in self._followed.restore_times.items() if at < now]
        for host_id in due:
            del self._followed.restore_times[host_id]
        if due:
            self._restore_hosts(due)
        self._restart_lost(record, now)
        self._learners.check(record, now)

    def _connect_new_hosts(self, record: Record, new: set[str]) -> None:
        """Connect to hosts that another frontend added with `--apply`."""
        known = connect.targets_of(record)
        self._hosts.targets |= {host_id: known[host_id] for host_id in new}
        self._hosts.connect(self._followed.say, record.pythons, new)
        for host_id in new:
            self._run.record_contact(host_id, self._hosts.remote_nodes[host_id].error)
            self._hosts.remote_nodes[host_id].stay_connected(self._followed.mirror)

    def _check_hosts(self, record: Record, now: float) -> None:
        were_away = []  # for a moment
        for host_id in self._hosts.remote_nodes:
            why = self._run.why_away(host_id)
            if not why:
                if (since := self._followed.away_since.pop(host_id, None)) is None:
                    continue
                if host_id not in self._reported_away:
                    were_away.append(host_id)
                    continue
                self._reported_away.remove(host_id)
                self._say(f"{host_id} is connected again after {now - since:.0f} s")
                self._followed.restore_times[host_id] = now + SETTLE_SECONDS
                continue
            silent = now - self._followed.away_since.setdefault(host_id, now)
            if silent > _AWAY_SECONDS and host_id not in self._reported_away:
                self._reported_away.add(host_id)
                names = [p.name for p in record.processes if p.place == host_id]
                self._say(
                    f"{host_id} is unreachable ({why}); processes on it: {join_names(names)}; "
                    f"trying to reconnect"
                )
        knowing = self._hosts.for_each(
            lambda host_id: self._hosts.call(host_id, "has_start", start=record.id),
            were_away,
            self._say,
        )
        for host_id, knows in knowing.items():
            if knows is not True:  # it was rebooted, or is asked again when it is restored
                self._followed.restore_times[host_id] = now + SETTLE_SECONDS

    def _restore_hosts(self, host_ids: Sequence[str]) -> None:
        """Restart the processes that should run on reconnected hosts and do not."""
        if (record := self._run.record) is None:  # meanwhile somebody has stopped the run
            return
        gone, stopping = self._find_gone(host_ids)

        def restore(host_id: str) -> list[str]:
            for name in stopping[host_id]:
                # The host was unreachable when the stop was requested.
                self._hosts.call(host_id, "request_stop", mode="save", name=name)
            self._followed.begin_if_unknown(record, host_id)
            if host_id:
                self._end_moved(host_id, record)
            return self._followed.restart(gone[host_id], record)

        # The frontend reads no keys meanwhile, so hosts do not wait for each other: after an outage
        # of its own network, all of them are restored.
        restored = self._hosts.for_each(restore, list(gone), self._say, FAILURES)
        for host_id, names in restored.items():
            if isinstance(names, Exception):
                self._say(f"could not restart the processes of a host: {names}")
            elif names:
                self._say(f"{host_id or 'this machine'}: restarted {join_names(names)}")

    def _end_moved(self, host_id: str, record: Record) -> None:
        """End the learners of a host that were started on others while it was unreachable."""
        here = {process.name for process in record.processes if process.place == host_id}
        for name, state in self._hosts.call(host_id, "states").items():
            if name not in here and state["state"] not in FINAL_STATES:
                self._hosts.call(host_id, "request_stop", mode="now", name=name)

    def _find_gone(
        self, host_ids: Sequence[str]
    ) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """Return which processes do not run, and which are to stop, by host.

        A host whose processes are ending, since the learners have ended, is looked at again later.
        """
        gone: dict[str, set[str]] = {host_id: set() for host_id in host_ids}
        stopping: dict[str, set[str]] = {host_id: set() for host_id in host_ids}
        ending = set()
        for name, state in self._run.states().items():
            if (host_id := state.place) not in gone:
                continue
            if (self._run.folder / name / "stop").exists():
                stopping[host_id].add(name)
            elif name != LEARNERS and state.state in ("ending", "saving"):
                ending.add(host_id)
            elif name != LEARNERS and state.state in ("lost", "starting", "stopped"):
                gone[host_id].add(name)
        for host_id in ending:
            self._followed.restore_times[host_id] = time.monotonic() + SETTLE_SECONDS
            del gone[host_id]
        return gone, stopping

    def _restart_lost(self, record: Record, now: float) -> None:
        """Restart processes whose supervisor was killed, while the learners run.

        Those of other learners' hosts are restarted in any case: the learners wait for them.
        """
        states, folder = self._run.states(), self._run.folder
        learners = states.get(LEARNERS)  # None: meanwhile somebody has stopped the run
        if not learners or learners.state != "running" or (folder / "stop").exists():
            return
        lost: dict[str, set[str]] = {}  # by host
        for name, state in states.items():
            host_id = state.place
            ends = FINAL_STATES if state.job == "learner" else ()
            if state.state not in ("lost", *ends) or (folder / name / "stop").exists():
                continue
            if name == LEARNERS:
                continue
            if (
                self._followed.is_away(host_id) or host_id in self._followed.restore_times
            ):  # restored as a whole
                continue
            if now >= self._lost_retry_times.get(name, 0.0):
                lost.setdefault(host_id, set()).add(name)
                self._lost_retry_times[name] = now + RETRY_SECONDS
        for host_id, names in lost.items():
            where = host_id or "this machine"
            try:
                # A host that was rebooted within seconds never counted as unreachable.
                self._followed.begin_if_unknown(record, host_id)
                self._hosts.call(host_id, "kill", lost_only=True)  # what they left
                restarted = self._followed.restart(names, record)
            except FAILURES as error:
                self._say(f"could not restart the processes of a host: {error}")
            else:
                if restarted:
                    self._say(
                        f"{where}: restarted {join_names(restarted)}, whose supervisor was killed"
                    )
