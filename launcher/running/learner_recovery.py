"""Restarts the learners of a run whose hosts or supervisor were lost, while a frontend follows it.

If a learner's host stays unreachable and the learners make no progress without it,
`--restart_learners` restarts them on the remaining learner hosts from the last checkpoint. Once it
has answered for `--rejoin_secs`, they save, and are restarted with it (`returning`).
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.node.run_registry import Record
from launcher.node.task import FINAL_STATES, LEARNERS, with_learner_hosts
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.remote.hosts import host_id_of
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.running import connect, mpirun_daemons, start
from launcher.running.followed_run import (
    FAILURES,
    RETRY_SECONDS,
    SETTLE_SECONDS,
    FollowedRun,
    join_names,
)
from launcher.running.returning import ReturningHosts
from launcher.transfer import fetch
from launcher.transfer.checkpoints import has_checkpoint

# A file in the run's state folder, which exists while learners that stop or fail are restarted, for
# all frontends.
RESTARTING = "restarting-learners"
# Seconds without a heartbeat after which learners count as stuck: a learner whose peers are gone
# waits in its all-reduce.
_STUCK_SECONDS = 20.0
_STARTING_SECONDS = 120.0  # timeout for the learners' first heartbeat
_END_SECONDS = 20.0  # timeout for learners to exit before they are restarted on other hosts
_DAEMONS_SECONDS = 5.0  # seconds between attempts to start supervisors that learners wait for
_SAVE_SECONDS = 10.0  # timeout for learners to exit, in addition to that for saving


class LearnerRecovery:
    """Restarts the learners of one run."""

    def __init__(self, followed: FollowedRun):
        self._followed = followed
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say
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
        learners = self._run.states()[LEARNERS]
        if learners.get("awaits") and now > self._daemons_time:
            self._daemons_time = now + _DAEMONS_SECONDS
            self._start_daemon_supervisors(record)
        host_id, host_ids = record.host_id_of(LEARNERS), record.learner_places
        state, crashed = learners["state"], bool(learners.get("failure"))
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
        self._followed.find_installations([*self._followed.workers, *rows])
        self._say(f"saving, to restart the learners on {names} from this checkpoint")
        self._restarting.touch(mode=0o600)
        self._followed.control.request_stop("save", LEARNERS)
        self._wait_for_learners_to_end(config.stop_secs + _SAVE_SECONDS)
        if self._run.record is None or (self._run.folder / "stop").exists():
            return  # meanwhile somebody has stopped the run
        self._restart_learners_on(rows, record)

    def _restart_learners_on(self, rows: Sequence[Worker], record: Record) -> None:
        """Restart the learners on the hosts of these rows; if that fails, try again later."""
        workers = self._followed.workers
        try:
            self._restarting.touch(mode=0o600)
            self._start_learners_on(rows, record)
        except FAILURES as error:
            if self._returning.has_trial:  # the next attempt is made without the returned hosts
                self._run.write_record(record)
                self._followed.workers = workers
            self._retry_time = time.monotonic() + RETRY_SECONDS
            self._say(f"could not restart the learners: {error}; retry in {RETRY_SECONDS:g} s")

    def _start_daemon_supervisors(self, record: Record) -> None:
        """Start those on which the learners wait, after their host was rebooted for example."""
        host_ids = record.learner_places
        learners = [
            w for w in self._followed.workers if w.job == "learner" and host_id_of(w) in host_ids
        ]
        learners.sort(key=lambda worker: host_ids.index(host_id_of(worker)))
        if {host_id_of(worker) for worker in learners} != set(host_ids):
            return  # the CSV has changed
        try:
            for host_id in host_ids:
                if host_id and not self._followed.is_away(host_id):
                    self._followed.begin_if_unknown(record, host_id)
            self._followed.find_installations(self._followed.workers)
            mpirun_daemons.start_supervisors(
                *(self._followed.run, self._hosts, self._followed.installation_of(learners[0])),
                process_plan.other_installations(learners, self._followed.installation_of),
                *(self._config, record.id, False),
            )
        except FAILURES as error:
            self._followed.say_once(f"could not start the supervisor of mpirun's daemon: {error}")

    def _are_learners_stuck(self, record: Record) -> bool:
        """Return whether the learners make no progress.

        They may well make progress on a host that only this machine cannot reach.
        """
        state = self._run.states()[LEARNERS]
        host_id = record.host_id_of(LEARNERS)
        if host_id in self._followed.away_since:
            others = [
                w
                for w in record.learner_places
                if w != host_id and w not in self._followed.away_since
            ]
            return not any(self._do_ranks_progress(other, record) for other in others)
        if state["state"] in ("running", "saving", "ending"):
            return state.get("silent", 0.0) > _STUCK_SECONDS
        return state["state"] not in ("ended", "stopped")

    def _do_ranks_progress(self, host_id: str, record: Record) -> bool:
        try:
            silent = self._hosts.call(host_id, "rank_silence")
        except (HostUnavailable, OperationFailed):
            return False
        if silent is None:  # no heartbeat yet: they may be starting
            return time.time() - record.time < _STARTING_SECONDS
        return silent < _STUCK_SECONDS

    def _start_learners_on(self, left: Sequence[Worker], record: Record) -> None:
        """Restart the learners on the hosts of these rows, from the last checkpoint."""
        self._end_learners(record)
        for host_id in {host_id_of(worker) for worker in left} - {""}:
            self._followed.begin_if_unknown(record, host_id)
        others = [worker for worker in self._followed.workers if worker.job != "learner"]
        rows = [*left, *[dataclasses.replace(worker, learner=ANY_LEARNER) for worker in others]]
        first = self._followed.installation_of(left[0])
        old_host_id = record.host_id_of(LEARNERS)
        logdir = record.flags["logdir"]
        shared = record.shared
        if first.host_id != old_host_id:
            logdir, shared = self._provide_checkpoints(record, first)
            if not logdir:
                self._retry_time = time.monotonic() + RETRY_SECONDS
                return
        elif first.host_id and not shared:
            fetch.restore_if_missing(
                self._hosts, first.host_id, Path(record.logdir), logdir, self._followed.say
            )
        flags = record.flags | {"logdir": logdir}
        learners = process_plan.make_processes(
            rows, self._config, flags, self._followed.installation_of
        )[0]
        flags = process_plan.join_common_flags(rows, flags, self._followed.installation_of)
        # Actors that are running know the learners' ports, so they remain, also those of learners
        # on lost hosts, which may return.
        known = record.flags["learner_hosts"]
        addresses = process_plan.known_addresses(flags["learner_hosts"], known).split(",")
        of_actors = list(dict.fromkeys([*addresses, *known.split(",")]))
        new_record = dataclasses.replace(
            record,
            flags=flags | {"learner_hosts": ",".join(of_actors)},
            learners=learners.command,
            shared=shared,
            learner_places=start.learner_host_ids(learners),
        )
        learners = dataclasses.replace(
            learners, command=with_learner_hosts(learners.command, addresses)
        )
        learners_entry = start.record_entry(learners, first.host_id, new_record)
        new_record.processes[0] = learners_entry
        self._run.write_record(new_record)
        self._followed.workers = rows
        self._followed.start([learners], new_record, self._followed.say)
        self._followed.mirror.follow_files(connect.mirrored_files(new_record))
        # The actors on that host ended with its learners.
        self._followed.restore_times[first.host_id] = time.monotonic() + SETTLE_SECONDS

    def _end_learners(self, record: Record) -> None:
        """End all learners that are still running, on every host that is connected."""
        self._followed.control.request_stop("now", LEARNERS)
        until = time.monotonic() + _END_SECONDS
        self._wait_for_learners_to_end(_END_SECONDS)
        for host_id in record.learner_places:
            if host_id not in self._followed.away_since:
                try:
                    # Until none is left: they hold the port that the new ones need.
                    while self._hosts.call(host_id, "kill", lost_only=True):
                        if time.monotonic() > until:
                            break
                        time.sleep(0.1)
                    self._hosts.call(host_id, "kill_learners", start=record.id)
                except (HostUnavailable, OperationFailed) as error:
                    self._say(f"could not end the learners of a host: {error}")

    def _wait_for_learners_to_end(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._run.states()[LEARNERS]["state"] in (*FINAL_STATES, "lost", "away"):
                return
            time.sleep(0.1)

    def _provide_checkpoints(self, record: Record, first: Installation) -> tuple[str, bool]:
        """Copy the run's folder to the host of the new first learner, unless it is shared.

        Return the folder's path there, and whether it is shared with this machine; an empty path
        if there is no copy of the checkpoints.
        """
        local_folder = Path(record.logdir)
        if not first.host_id:
            return str(local_folder), True
        installations = [
            self._followed.installation_of(worker) for worker in self._followed.workers
        ]
        old_first = next(
            (g for g in installations if g.host_id == record.host_id_of(LEARNERS)), first
        )
        folder = Path(record.flags["logdir"])
        remote_folder = str(folder)
        if folder.is_relative_to(old_first.workdir):  # the same path within the new workdir
            remote_folder = first.absolute_path(str(folder.relative_to(old_first.workdir)))
        if connect.is_shared_folder(
            self._hosts, first.host_id, str(local_folder), local_folder, "is-shared"
        ):
            return str(local_folder), True
        if not self._config.mirror_logdir:
            self._followed.say_once(
                "the checkpoints are only on the unreachable host, so the run waits for it; "
                "--mirror_logdir copies checkpoints to this machine while a run is running"
            )
            return "", False
        if not has_checkpoint(local_folder):
            self._say(
                f"no checkpoint was copied to {local_folder} before "
                f"{record.host_id_of(LEARNERS)} became unreachable: training starts over; a "
                f"smaller --save_checkpoint_secs saves earlier"
            )
        fetch.push_folder(
            self._hosts, first.host_id, local_folder, remote_folder, self._followed.say
        )
        return remote_folder, False
