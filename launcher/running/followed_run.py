"""A run as the frontend that follows it sees it, for both parts of its recovery.

`recovery` writes which hosts are away, and restarts actors and evaluators; `learner_recovery`
restarts learners.
"""

import contextlib
from collections.abc import Sequence

from launcher.node import file_lock
from launcher.node.callbacks import Say
from launcher.node.run_registry import Record, RunInUse
from launcher.plan.host_environment import InstallationOf
from launcher.plan.process_plan import PlanError, Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.remote.state_mirror import StateMirror
from launcher.running import connect, start
from launcher.running.run_control import RunControl

RETRY_SECONDS = 30.0  # seconds between attempts to restart learners, or a lost process
SETTLE_SECONDS = 3.0  # seconds that a reconnected host has to report the states of its processes
# What a restart raises, also on this machine; it is tried again.
FAILURES = (HostUnavailable, OperationFailed, OSError, RunInUse, PlanError)


class FollowedRun:
    """A run, its hosts and the rows of its CSV."""

    def __init__(
        self,
        control: RunControl,
        mirror: StateMirror,
        config: LauncherConfig,
        workers: Sequence[Worker],
        installation_of: InstallationOf,
        log_max_mb: float,
        say: Say,
    ):
        self.control, self.mirror, self.config = control, mirror, config
        self.run, self.hosts = control.run, control.hosts
        self.workers, self.installation_of = list(workers), installation_of
        self.say = say
        self.away_since: dict[str, float] = {}  # unreachable hosts, and since when
        self.restore_times: dict[str, float] = {}  # when to check a reconnected host's processes
        self._log_max_mb = log_max_mb
        self._last_sentence = ""
        self._lock: int | None = None

    def holds_lock(self) -> bool:
        """Return whether this frontend is the one that recovers the run: several may follow it."""
        if self._lock is None:
            with contextlib.suppress(OSError):
                self._lock = file_lock.acquire(self.run.folder / "mends")
        return self._lock is not None  # held until this process exits

    def is_away(self, host_id: str) -> bool:
        """Return whether the host is unreachable."""
        return host_id != "" and (host_id in self.away_since or self.run.why_away(host_id) != "")

    def find_installations(self, rows: Sequence[Worker]) -> None:
        """Find out where the project is installed on the hosts of these rows."""
        self.installation_of = connect.find_installations(
            rows, self.hosts, self.config.deploy, self.say
        )

    def begin_if_unknown(self, record: Record, host_id: str) -> None:
        """Begin the run on a host that does not know it, such as one that was rebooted."""
        if not self.hosts.call(host_id, "has_start", start=record.id):
            start.begin_on_hosts(self.run, self.hosts, record, [host_id], self.say)
            self.mirror.on_connected(host_id)

    def start(self, processes: Sequence[Process], record: Record, say: Say | None = None) -> None:
        """Start these processes on their hosts."""
        start.start_processes(
            self.run, self.hosts, processes, self.config, record, self._log_max_mb, say
        )

    def say_once(self, sentence: str) -> None:
        """Print the sentence, unless it was the last one that was printed by this function."""
        if sentence != self._last_sentence:
            self._last_sentence = sentence
            self.say(sentence)


def join_names(names: Sequence[str]) -> str:
    """Return the names as a list for a sentence; only the first three of five or more."""
    return (
        ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"
    )
