"""Recovers a run from lost hosts and supervisors while a frontend follows the run.

Every second it compares what should run on the hosts that are connected with what runs there,
whatever the reason for a difference: an outage, a reboot, a supervisor that was killed.
`remote_node` keeps trying to reconnect to an unreachable host; `learner_recovery` restarts the
learners' mpirun.
"""

import time
from collections.abc import Mapping, Sequence

from launcher.follow import connect
from launcher.follow.followed_run import FAILURES, RETRY_SECONDS, FollowedRun
from launcher.follow.learner_recovery import LearnerRecovery
from launcher.hosts.remote_node import OperationFailed
from launcher.supervise.errors import join_names
from launcher.supervise.json_files import read_text
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import Record
from launcher.supervise.task import LEARNERS

# A file in the run's state folder, by which `--status` asks a connected frontend to open windows.
WINDOWS_REQUEST = "open-windows"
_CHECK_SECONDS = 1.0
# Seconds for which a process must be found not to run: a host that has just been connected may
# still report, and what ends together is restarted together.
_SETTLE_SECONDS = 3.0
# Seconds before an unreachable host is reported: perhaps another frontend has just disconnected.
_AWAY_SECONDS = 4.0

# The id of a host, the name of a process there, and the stop request that the process lacks; it is
# empty if the process should run and does not.
_Wrong = tuple[str, str, str]


class Recovery:
    """Restarts what should run of one run and does not, and stops what should not run."""

    def __init__(self, followed: FollowedRun):
        self._followed, self._learners = followed, LearnerRecovery(followed)
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say
        self._checked = 0.0
        self._reported_away: set[str] = set()  # unreachable hosts that a message was printed for
        self._due: dict[_Wrong, float] = {}  # when something is done about it, or done again

    def restarts_learners(self, state: str) -> bool:
        """Return whether a run continues whose learners have ended in this state.

        If another frontend recovers the run, it decides whether learners that are lost are started
        again.
        """
        if state == "lost":
            return not self._followed.holds_lock() or self._config.restart_learners
        return state in ("stopped", "failed") and self._learners.is_restarting

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
        if self._followed.holds_lock():
            self._restore(record, now)
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
        """Record which hosts are unreachable, and print when that changes."""
        away_since = self._followed.away_since
        for host_id in self._hosts.remote_nodes:
            if why := self._run.why_away(host_id):
                silent = now - away_since.setdefault(host_id, now)
                if silent > _AWAY_SECONDS and host_id not in self._reported_away:
                    self._reported_away.add(host_id)
                    names = [p.name for p in record.processes if p.place == host_id]
                    self._say(
                        f"{host_id} is unreachable ({why}); processes on it: {join_names(names)}; "
                        f"trying to reconnect"
                    )
                continue
            since = away_since.pop(host_id, now)
            if host_id in self._reported_away:
                self._reported_away.remove(host_id)
                self._say(f"{host_id} is connected again after {now - since:.0f} s")

    def _restore(self, record: Record, now: float) -> None:
        """Restart what should run and does not, and stop what should not run."""
        states = self._run.states()
        learners = states.get(LEARNERS)  # None: meanwhile somebody has stopped the run
        if not learners or learners.state not in ("running", "away"):
            return  # the other processes end with them, or their restart comes first
        if (self._run.folder / "stop").exists():
            return
        due = self._choose_due(self._find_wrong(states), now)

        def restore(host_id: str) -> str:
            for name, stop in due[host_id].items():
                if stop:
                    self._hosts.call(host_id, "request_stop", mode=stop, name=name)
            gone = {name for name, stop in due[host_id].items() if not stop}
            if not gone:
                return ""
            is_new = self._followed.begin_if_unknown(record, host_id)
            self._hosts.call(host_id, "kill", lost_only=True)  # what killed supervisors have left
            try:
                names = self._followed.restart(gone, record)
            except OperationFailed:
                if host_id:  # their copied states were removed, and they have not changed there
                    self._followed.mirror.on_connected(host_id)
                raise
            lost = names and not is_new and all(states[name].state == "lost" for name in names)
            return join_names(names) + ", whose supervisor was killed" * bool(lost)

        # The frontend reads no keys meanwhile, so hosts do not wait for each other: after an outage
        # of its own network, all of them are restored.
        for host_id, done in self._hosts.for_each(restore, list(due), self._say, FAILURES).items():
            if isinstance(done, Exception):
                self._say(f"could not restart the processes of a host: {done}")
            elif done:
                self._say(f"{host_id or 'this machine'}: restarted {done}")

    def _find_wrong(self, states: Mapping[str, State]) -> list[_Wrong]:
        """Return the processes that should run and do not, or run and should not.

        The learners' mpirun does not count as one that should run.
        """
        wrong: list[_Wrong] = []
        is_mpirun_there = states[LEARNERS].state == "running"
        for name, state in states.items():
            if state.job == "learner":  # mpirun waits for those of other hosts, whatever ended them
                gone = name != LEARNERS and state.has_ended and is_mpirun_there
            else:
                gone = state.state in ("lost", "stopped") and not state.is_to_stop
            if gone:
                wrong.append((state.place, name, ""))
        # A host that was unreachable has missed that its learners were restarted on others, or that
        # a stop was requested.
        for host_id, reported in list(self._followed.mirror.reported.items()):
            for name, state in reported.items():
                if state.has_ended:
                    continue
                if state.job == "learner" and _is_another(state, states.get(name), host_id):
                    wrong.append((host_id, name, "now"))
                elif (stop := read_text(self._run.folder / name / "stop")) and (
                    not state.is_to_stop or (stop == "now" and state.state == "saving")
                ):
                    wrong.append((host_id, name, stop))
        return [each for each in wrong if not self._followed.is_away(each[0])]

    def _choose_due(self, wrong: Sequence[_Wrong], now: float) -> dict[str, dict[str, str]]:
        """Return what is to be put right now, by host and name; if it does not help, again later.

        Processes of a host that ended at about the same time are restarted together.
        """
        self._due = {each: at for each, at in self._due.items() if each in wrong or at > now}
        for each in wrong:
            self._due.setdefault(each, now + _SETTLE_SECONDS)
        due: dict[str, dict[str, str]] = {each[0]: {} for each in wrong if self._due[each] <= now}
        for host_id, name, stop in wrong:
            if host_id in due and self._due[host_id, name, stop] <= now + _SETTLE_SECONDS:
                due[host_id][name] = stop
                self._due[host_id, name, stop] = now + RETRY_SECONDS
        return due


def _is_another(reported: State, known: State | None, host_id: str) -> bool:
    """Return whether a host reports another process than the one of this name that is known.

    A host that is reached by two names reports each process by both.
    """
    return not known or (known.place != host_id and known.supervisor != reported.supervisor)
