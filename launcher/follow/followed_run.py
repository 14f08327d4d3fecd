"""A run as the frontend that follows it sees it, for both parts of its recovery.

`recovery` writes which hosts are away, and restarts processes; `learner_recovery` restarts mpirun.
"""

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from launcher.follow import connect, start
from launcher.follow.connected_run import ConnectedRun
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import process_plan
from launcher.plan.process_plan import PlanError, Process
from launcher.plan.workers_csv import Worker
from launcher.supervise import file_lock
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import ProcessEntry, Record, RunInUse
from launcher.supervise.task import LEARNERS

# A file in the run's state folder, which the frontend that recovers the run locks.
RECOVERS_FILE = "mends"
RETRY_SECONDS = 30.0  # seconds between attempts to restart learners, or a lost process
# What a restart raises, also on this machine; it is tried again.
FAILURES = (HostUnavailable, OperationFailed, OSError, RunInUse, PlanError)


@dataclasses.dataclass
class FollowedRun(ConnectedRun):
    """A run, its hosts and the rows of its CSV, and what is known of hosts that were lost."""

    # Unreachable hosts, and since when.
    away_since: dict[str, float] = dataclasses.field(default_factory=dict)
    _last_sentence: str = ""
    _lock: int | None = None
    _stands_by: bool = False  # another frontend recovers the run

    def holds_lock(self) -> bool:
        """Return whether this frontend is the one that recovers the run: several may follow it."""
        if self._lock is None:
            with contextlib.suppress(OSError):  # the run was removed, or the disk is full
                self._lock = file_lock.acquire(self.run.folder / RECOVERS_FILE)
            if self._lock is None:
                self._stands_by = True
            elif self._stands_by and self.run.is_running():
                self.say("the frontend that restarted what fails is gone: this one does so now")
        return self._lock is not None  # held until this process exits, or until `release_lock`

    def release_lock(self) -> None:
        """Let another frontend recover the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def describe_logins(self) -> str:
        """Return how a controller of the run logs in to the hosts; empty if there are none."""
        nodes = self.hosts.remote_nodes.values()
        counts = Counter(node.login for node in nodes if not node.error)
        if not counts:
            return ""
        how = ", ".join(f"{each} ({n} host{'s' * (n != 1)})" for each, n in counts.items())
        agent = any("the agent's" in each for each in counts)
        return f"the controller connects by {how}" + (
            "; it needs that SSH agent to run as long as the run" * agent
        )

    def is_away(self, host_id: str) -> bool:
        """Return whether the host is unreachable."""
        return host_id != "" and (host_id in self.away_since or self.run.why_away(host_id) != "")

    @property
    def learners(self) -> State:
        """The learners' state; stopped if somebody has stopped the run meanwhile."""
        return self.run.state_of(LEARNERS, otherwise="stopped")

    def change_record(
        self, learner_entries: Sequence[ProcessEntry] = (), **changes: Any
    ) -> Record | None:
        """Change fields of the record, and the learners' entries among its processes.

        Return the record, in which stays what --apply has changed since it was last read; None if
        somebody has stopped the run.
        """
        with self.run.locked(wait=True):
            if (record := self.run.record) is None:
                return None
            if learner_entries:
                changes["processes"] = [*learner_entries, *record.other_processes]
            record = dataclasses.replace(record, **changes)
            self.run.write_record(record)
        return record

    def begin_if_unknown(self, record: Record, host_id: str) -> bool:
        """Begin the run on a host that does not know it, such as one that was rebooted.

        Return whether it did not know it.
        """
        if self.hosts.call(host_id, "has_start", start=record.id):
            return False
        start.begin_on_hosts(self, record, [host_id])
        self.mirror.on_connected(host_id)
        return True

    def restart(self, names: set[str], record: Record) -> list[str]:
        """Start processes of these names again, but not mpirun; return those that were started.

        Processes whose row was removed from the CSV are left out.
        """
        if not names:
            return []
        rows = [*self.workers, *connect.rows_of(record)]  # --apply may have added rows
        chosen: dict[str, Worker] = {}
        for entry in [entry for entry in record.processes if entry.name in names]:
            rows_alike = [w for w in rows if process_plan.row_signature(w) == entry.kind]
            if rows_alike:
                chosen[entry.name] = rows_alike[0]
        installation_of = connect.find_installations(
            list(chosen.values()), self.hosts, self.config.deploy
        )
        ports = {entry.name: entry.port for entry in record.processes}
        found = [
            process_plan.make_process(
                name, row, self.config, record.flags, installation_of, ports[name]
            )
            for name, row in chosen.items()
        ]
        start.start_processes(self, self._with_logs(record, found), found)
        return [process.name for process in found]

    def _with_logs(self, record: Record, processes: Sequence[Process]) -> Record:
        """Return the record with the logs of processes whose host was unreachable when added."""
        learners = record.host_id_of(LEARNERS)
        lacking = {entry.name for entry in record.processes if entry.log.startswith("~")}
        lacking &= {process.name for process in processes}
        if not lacking:
            return record
        new = {p.name: start.record_entry(p, learners, record) for p in processes}
        with self.run.locked(wait=True):
            record = self.run.record or record  # --apply may have changed it meanwhile
            entries = [new[e.name] if e.name in lacking else e for e in record.processes]
            record = dataclasses.replace(record, processes=entries)
            self.run.write_record(record)
        return record

    def say_once(self, sentence: str) -> None:
        """Print the sentence, unless it was the last one that was printed by this function."""
        if sentence != self._last_sentence:
            self._last_sentence = sentence
            self.say(sentence)
