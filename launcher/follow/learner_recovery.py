"""Restarts the learners of a run, on all of their hosts or on those that are left.

If a learner's host stays unreachable and the learners make no progress without it,
`--restart_learners` restarts them on the remaining learner hosts from the last checkpoint, which is
copied to the first learner's host if that is another one. Once the lost host has answered for
`--rejoin_secs`, they save, and are restarted with it.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from launcher.follow import connect, start
from launcher.follow.followed_run import FAILURES, RETRY_SECONDS, FollowedRun
from launcher.hosts import fetch
from launcher.hosts.checkpoints import has_checkpoint
from launcher.hosts.hosts import host_id_of
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.supervise.errors import join_names
from launcher.supervise.process_state import State
from launcher.supervise.run_registry import Record
from launcher.supervise.task import FINAL_STATES, LEARNERS, with_learner_hosts

# A file in the run's state folder, which exists while learners that stop or fail are restarted, for
# all frontends.
RESTARTING = "restarting-learners"
# Seconds without a heartbeat after which learners count as stuck: a learner whose peers are gone
# waits in its all-reduce.
_STUCK_SECONDS = 20.0
_SAVE_SECONDS = 10.0  # timeout for learners to exit, in addition to that for saving
_END_SECONDS = 20.0  # timeout for learners to exit before they are restarted on other hosts
RETURNS = 5  # of one lost host, while a frontend follows the run
# Seconds for the first update with a returned host; its compilation sends heartbeats for 180 s.
TRIAL_SECONDS = 300.0


class LearnerRecovery:
    """Restarts the learners of one run."""

    def __init__(self, followed: FollowedRun):
        self._followed = followed
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say
        self._retry_time = 0.0
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
        self._wait_for_end([LEARNERS], config.stop_secs + _SAVE_SECONDS)
        if self._run.record is None or (self._run.folder / "stop").exists():
            return  # meanwhile somebody has stopped the run
        self._restart_learners_on(rows, record)

    def _restart_learners_on(self, rows: Sequence[Worker], record: Record) -> None:
        """Restart the learners on the hosts of these rows; if that fails, try again later."""
        workers = self._followed.workers
        try:
            self._restarting.touch(mode=0o600)
            if not self._start_on(rows, record):
                self._retry_time = time.monotonic() + RETRY_SECONDS
        except FAILURES as error:
            if self._returning.has_trial:  # the next attempt is made without the returned hosts
                self._followed.change_record(
                    record.learner_processes,
                    flags=record.flags,
                    learners=record.learners,
                    shared=record.shared,
                )
                self._followed.workers = workers
            self._retry_time = time.monotonic() + RETRY_SECONDS
            self._say(f"could not restart the learners: {error}; retry in {RETRY_SECONDS:g} s")

    def _are_learners_stuck(self, record: Record) -> bool:
        """Return whether the learners make no progress.

        They may well make progress on a host that only this machine cannot reach.
        """
        away = self._followed.away_since
        if record.host_id_of(LEARNERS) in away:
            others = [
                self._run.state_of(process.name)
                for process in record.learner_processes
                if process.place not in away
            ]
            return not any(map(_make_progress, others))
        state = self._followed.learners
        return state.state not in ("ended", "stopped") and not _make_progress(state)

    def _start_on(self, left: Sequence[Worker], record: Record) -> bool:
        """Restart the learners on the hosts of these rows, from the last checkpoint.

        Return whether they were: not if no copy of the checkpoints is reachable, or somebody has
        stopped the run. Raises `FAILURES`.
        """
        self._end_learners(record)
        for host_id in {host_id_of(worker) for worker in left} - {""}:
            self._followed.begin_if_unknown(record, host_id)
        self._followed.find_installations([*self._followed.workers, *left])
        others = [worker for worker in self._followed.workers if worker.job != "learner"]
        rows = [*left, *[dataclasses.replace(worker, learner=ANY_LEARNER) for worker in others]]
        first = self._followed.installation_of(left[0])
        old_host_id = record.host_id_of(LEARNERS)
        logdir = record.flags["logdir"]
        shared = record.shared
        if first.host_id != old_host_id:
            logdir, shared = self._provide_checkpoints(record, first)
            if not logdir:
                return False
        elif first.host_id and not shared:
            fetch.restore_if_missing(
                self._hosts, first.host_id, Path(record.logdir), logdir, self._followed.say
            )
        flags = record.flags | {"logdir": logdir}
        installation_of = self._followed.installation_of
        planned = process_plan.join_common_flags(rows, flags, installation_of)
        addresses = process_plan.known_addresses(
            planned["learner_hosts"], flags["learner_hosts"]
        ).split(",")
        ports = start.find_ports(self._followed, left)
        processes = process_plan.make_processes(rows, self._config, flags, installation_of, ports)
        learners, *others_hosts = [each for each in processes if each.job == "learner"]
        # Actors that are running know the learners' ports, so they remain, also those of learners
        # on lost hosts, which may return.
        known = record.flags["learner_hosts"].split(",")
        of_actors = list(dict.fromkeys([*addresses, *known]))
        changes: dict[str, Any] = {
            "flags": planned | {"learner_hosts": ",".join(of_actors)},
            "learners": learners.command,
            "shared": shared,
        }
        learners = dataclasses.replace(
            learners, command=with_learner_hosts(learners.command, addresses)
        )
        started = [learners, *others_hosts]
        entries = [start.record_entry(each, first.host_id, record) for each in started]
        if (new_record := self._followed.change_record(entries, **changes)) is None:
            return False
        self._followed.workers = rows
        start.start_processes(self._followed, new_record, started)
        self._followed.mirror.follow_files(connect.mirrored_files(new_record))
        return True

    def _end_learners(self, record: Record) -> None:
        """End all learners that are still running, on every host that is connected."""
        names = [process.name for process in record.learner_processes]
        for name in names:
            self._followed.request_stop("now", name)
        until = time.monotonic() + _END_SECONDS
        self._wait_for_end(names, _END_SECONDS)
        for host_id in record.learner_places:
            if host_id not in self._followed.away_since:
                try:
                    # Until none is left: they hold the port that the new ones need.
                    while self._hosts.call(host_id, "kill", lost_only=True):
                        if time.monotonic() > until:
                            break
                        time.sleep(0.1)
                except (HostUnavailable, OperationFailed) as error:
                    self._say(f"could not end the learners of a host: {error}")

    def _wait_for_end(self, names: Sequence[str], seconds: float) -> None:
        """Wait until these processes have ended, for at most `seconds`."""
        until, ended = time.monotonic() + seconds, {*FINAL_STATES, "lost", "away"}
        while time.monotonic() < until:
            states = self._run.states()
            if {states[name].state for name in names if name in states} <= ended:
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
        if connect.is_shared_folder(self._hosts, first.host_id, str(local_folder), local_folder):
            return str(local_folder), True
        if record.flags.get("mirror"):  # the learners download from there
            return remote_folder, False
        if not self._config.mirror_logdir:
            self._followed.say_once(
                "the checkpoints are only on the unreachable host, so the run waits for it; "
                "--mirror_logdir copies checkpoints to this machine while a run is running, and "
                "--mirror to object storage"
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


def _make_progress(state: State) -> bool:
    """Return whether the learners of a process make progress, or are starting."""
    is_running = state.state in ("running", "saving", "ending") and not state.awaits
    return is_running and (state.silent or 0.0) <= _STUCK_SECONDS


class ReturningHosts:
    """The lost hosts of one run's learners, by id: when each is used again, and how often.

    A host waits twice as long before each further return. At first it is on trial: if the learners
    do not work with it, they continue without it.
    """

    def __init__(self, seconds: float):
        """Let a host answer for `seconds` before it returns for the first time; 0: none returns."""
        self._seconds = seconds
        self._answers_since: dict[str, float] = {}
        self._returns: dict[str, int] = {}  # so far
        self._on_trial: dict[str, float] = {}  # since when

    def wait(self, host_id: str) -> float:
        """Return the seconds for which a host must answer before it returns; 0: it does not."""
        returns = self._returns.get(host_id, 0)
        return self._seconds * 2**returns if returns < RETURNS else 0.0

    def update(self, answering: Set[str], now: float) -> Set[str]:
        """Take the lost hosts that answer now; return those that have just begun to."""
        new = answering - self._answers_since.keys()
        self._answers_since = {each: self._answers_since.get(each, now) for each in answering}
        return {host_id for host_id in new if self.wait(host_id)}

    def due(self, now: float) -> set[str]:
        """Return the hosts that have answered for long enough."""
        return {
            host_id
            for host_id, since in self._answers_since.items()
            if (wait := self.wait(host_id)) and now - since >= wait
        }

    def begin_trial(self, host_ids: Set[str], now: float) -> None:
        """Count a return of these hosts: the learners are being restarted with them."""
        for host_id in host_ids:
            self._returns[host_id] = self._returns.get(host_id, 0) + 1
            self._answers_since.pop(host_id, None)
            self._on_trial[host_id] = now

    @property
    def has_trial(self) -> bool:
        """Whether a returned host is on trial."""
        return bool(self._on_trial)

    def end_trials(self) -> None:
        """End all trials: the learners are being restarted on fewer hosts."""
        self._on_trial = {}

    def failed(self, crashed: bool, are_stuck: Callable[[], bool], now: float) -> set[str]:
        """Return the hosts whose trial has failed, and end the trials that are over.

        They have failed as soon as the learners have crashed since their restart, or if these make
        no progress at the end of the trial.
        """
        over = {each for each, since in self._on_trial.items() if now - since > TRIAL_SECONDS}
        if not self._on_trial or not (crashed or over):
            return set()
        failed = set(self._on_trial) if crashed or are_stuck() else set()
        self._on_trial = (
            {} if failed else {h: t for h, t in self._on_trial.items() if h not in over}
        )
        return failed
