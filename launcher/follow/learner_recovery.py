"""Decides when the learners of a run are restarted, and on which hosts; `learner_starts` does it.

If a learner's host stays unreachable and the learners make no progress without it,
`--restart_learners` restarts them on the remaining learner hosts from the last checkpoint. Once it
has answered for `--rejoin_secs`, they save, and are restarted with it (`returning`).
"""

import time
from collections.abc import Sequence

from launcher.follow.followed_run import FAILURES, RETRY_SECONDS, FollowedRun, join_names
from launcher.follow.learner_starts import LearnerStarts
from launcher.follow.returning import ReturningHosts
from launcher.hosts.hosts import host_id_of
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan.workers_csv import Worker
from launcher.supervise.run_registry import Record
from launcher.supervise.task import LEARNERS

# A file in the run's state folder, which exists while learners that stop or fail are restarted, for
# all frontends.
RESTARTING = "restarting-learners"
# Seconds without a heartbeat after which learners count as stuck: a learner whose peers are gone
# waits in its all-reduce.
_STUCK_SECONDS = 20.0
_STARTING_SECONDS = 120.0  # timeout for the learners' first heartbeat
_DAEMONS_SECONDS = 5.0  # seconds between attempts to start supervisors that learners wait for
_SAVE_SECONDS = 10.0  # timeout for learners to exit, in addition to that for saving


class LearnerRecovery:
    """Restarts the learners of one run."""

    def __init__(self, followed: FollowedRun):
        self._followed = followed
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say
        self._starts = LearnerStarts(followed)
        self._retry_time = 0.0
        self._daemons_time = 0.0  # when supervisors that the learners wait for may be started
        self._learner_rows = [worker for worker in followed.workers if worker.job == "learner"]
        self._returning = ReturningHosts(followed.config.rejoin_secs)
        self._restarting = followed.run.folder / RESTARTING

    @property
    def is_restarting(self) -> bool:
        """Whether learners that stopped or failed are being restarted: the run continues."""
        if not self._restarting.exists() or (self._run.folder / "stop").exists():
            return False
        return self._config.restart_learners or not self._followed.holds_lock()

    def check(self, record: Record, now: float) -> None:
        """Restart the learners if they have to be."""
        if now < self._retry_time:
            return
        learners = self._followed.learners
        if learners.awaits and now > self._daemons_time:
            self._daemons_time = now + _DAEMONS_SECONDS
            self._starts.start_daemon_supervisors(record)
        host_id, host_ids = record.host_id_of(LEARNERS), record.learner_places
        state, crashed = learners.state, learners.failure is not None
        stopped = state == "stopped" and self.is_restarting
        lost = (state == "lost" or stopped) and not self._followed.is_away(host_id)
        gone = {
            p
            for p in host_ids
            if now - self._followed.away_since.get(p, now) > self._config.lost_secs
        }
        failed = self._returning.failed(crashed, lambda: self._are_learners_stuck(record), now)
        if state in ("running", "failed") and not failed and not self._returning.has_trial:
            self._restarting.unlink(missing_ok=True)
        if not lost and not failed and not (gone and self._are_learners_stuck(record)):
            if state == "running":
                self._take_back_hosts(record, now)
            return
        if not self._config.restart_learners:
            if host_id in gone:
                self._followed.say_once(
                    f"the learners' host {host_id} stays unreachable: the run waits for it; "
                    f"`--attach --restart_learners` restarts the learners on the other hosts"
                )
            return
        rows = [worker for worker in self._followed.workers if worker.job == "learner"]
        left = [
            worker
            for worker in rows
            if (place := host_id_of(worker)) in host_ids
            and place not in failed
            and not self._followed.is_away(place)
        ]
        if not left:
            self._followed.say_once(
                "all learner hosts are unreachable: the run waits for one of them"
            )
            return
        names = [worker.ip for worker in left]
        why = f"{join_names(sorted(gone))} stays unreachable"
        if failed:
            why = f"the learners do not work with {join_names(sorted(failed))}"
        elif lost:
            why = f"the learners on {host_id or 'this machine'} are not running any more"
        self._say(f"{why}: restarting the learners on {join_names(names)} from the last checkpoint")
        self._returning.end_trials()
        self._restart_learners_on(left, record)

    def _take_back_hosts(self, record: Record, now: float) -> None:
        """Restart running learners with the lost hosts that have answered for a while."""
        config, used = self._config, set(record.learner_places)
        if not config.restart_learners or (self._run.folder / "stop").exists():
            return
        # Rows that were added to the CSV later are no learners of this run.
        rows_of = {host_id_of(worker) for worker in self._learner_rows}
        lost = rows_of & set(record.first_learner_places) - used
        answering = {host_id for host_id in lost if not self._followed.is_away(host_id)}
        for host_id in self._returning.update(answering, now):
            self._say(
                f"{host_id or 'this machine'} answers again: the learners are restarted with it "
                f"once it has answered for {self._returning.wait(host_id):g} s"
            )
        if not (due := self._returning.due(now)):
            return
        self._returning.begin_trial(due, now)
        first = record.host_id_of(LEARNERS)  # it stays the first one: it has the checkpoints
        rows = [worker for worker in self._learner_rows if host_id_of(worker) in used | due]
        rows.sort(key=lambda worker: host_id_of(worker) != first)
        names = join_names([worker.ip for worker in rows])
        self._say(f"saving, to restart the learners on {names} from this checkpoint")
        self._restarting.touch(mode=0o600)
        self._followed.request_stop("save", LEARNERS)
        self._starts.wait_for_end(config.stop_secs + _SAVE_SECONDS)
        if self._run.record is None or (self._run.folder / "stop").exists():
            return  # meanwhile somebody has stopped the run
        self._restart_learners_on(rows, record)

    def _restart_learners_on(self, rows: Sequence[Worker], record: Record) -> None:
        """Restart the learners on the hosts of these rows; if that fails, try again later."""
        workers = self._followed.workers
        try:
            self._restarting.touch(mode=0o600)
            if not self._starts.start_on(rows, record):
                self._retry_time = time.monotonic() + RETRY_SECONDS
        except FAILURES as error:
            if self._returning.has_trial:  # the next attempt is made without the returned hosts
                self._followed.change_record(
                    record.processes[0],
                    flags=record.flags,
                    learners=record.learners,
                    shared=record.shared,
                    learner_places=record.learner_places,
                )
                self._followed.workers = workers
            self._retry_time = time.monotonic() + RETRY_SECONDS
            self._say(f"could not restart the learners: {error}; retry in {RETRY_SECONDS:g} s")

    def _are_learners_stuck(self, record: Record) -> bool:
        """Return whether the learners make no progress.

        They may well make progress on a host that only this machine cannot reach.
        """
        state = self._followed.learners
        host_id = record.host_id_of(LEARNERS)
        if host_id in self._followed.away_since:
            others = [
                w
                for w in record.learner_places
                if w != host_id and w not in self._followed.away_since
            ]
            return not any(self._do_ranks_progress(other, record) for other in others)
        if state.state in ("running", "saving", "ending"):
            return (state.silent or 0.0) > _STUCK_SECONDS
        return state.state not in ("ended", "stopped")

    def _do_ranks_progress(self, host_id: str, record: Record) -> bool:
        try:
            silent = self._hosts.call(host_id, "rank_silence")
        except (HostUnavailable, OperationFailed):
            return False
        if silent is None:  # no heartbeat yet: they may be starting
            return time.time() - record.time < _STARTING_SECONDS
        return silent < _STUCK_SECONDS
