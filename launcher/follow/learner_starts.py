"""Starts the learners of a run again on hosts that `learner_recovery` has chosen.

They begin from the last checkpoint, which is copied to the first learner's host if that is another
one.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.follow import connect, mpirun_daemons, start
from launcher.follow.followed_run import FAILURES, SETTLE_SECONDS, FollowedRun
from launcher.hosts import fetch
from launcher.hosts.checkpoints import has_checkpoint
from launcher.hosts.hosts import host_id_of
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.process_plan import Process
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.supervise.run_registry import Record
from launcher.supervise.task import LEARNERS, with_learner_hosts

_END_SECONDS = 20.0  # timeout for learners to exit before they are restarted on other hosts


class LearnerStarts:
    """The starts of one run's learners after its first one."""

    def __init__(self, followed: FollowedRun):
        self._followed = followed
        self._run, self._hosts, self._config = followed.run, followed.hosts, followed.config
        self._say = followed.say

    def start_daemon_supervisors(self, record: Record) -> None:
        """Start those on which the learners wait, after their host was rebooted for example."""
        host_ids = record.learner_places
        if not (learners := self._rows_of(host_ids)):
            return
        try:
            for host_id in host_ids:
                if host_id and not self._followed.is_away(host_id):
                    self._followed.begin_if_unknown(record, host_id)
            self._followed.find_installations(self._followed.workers)
            mpirun_daemons.start_supervisors(
                self._followed,
                self._followed.installation_of(learners[0]),
                process_plan.other_installations(learners, self._followed.installation_of),
                record.id,
                replace=False,
            )
        except FAILURES as error:
            self._followed.say_once(f"could not start the supervisor of mpirun's daemon: {error}")

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the learners have ended, for at most `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._followed.learners.has_ended or self._followed.learners.state == "away":
                return
            time.sleep(0.1)

    def start_on(self, left: Sequence[Worker], record: Record) -> bool:
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
        learners, addresses = self._make_learners(rows, flags)
        flags = process_plan.join_common_flags(rows, flags, self._followed.installation_of)
        # Actors that are running know the learners' ports, so they remain, also those of learners
        # on lost hosts, which may return.
        known = record.flags["learner_hosts"].split(",")
        of_actors = list(dict.fromkeys([*addresses, *known]))
        changes: dict[str, Any] = {
            "flags": flags | {"learner_hosts": ",".join(of_actors)},
            "learners": learners.command,
            "shared": shared,
            "learner_places": start.learner_host_ids(learners),
        }
        learners = dataclasses.replace(
            learners, command=with_learner_hosts(learners.command, addresses)
        )
        entry = start.record_entry(learners, first.host_id, dataclasses.replace(record, **changes))
        if (new_record := self._followed.change_record(entry, **changes)) is None:
            return False
        self._followed.workers = rows
        start.start_processes(self._followed, new_record, [learners])
        self._followed.mirror.follow_files(connect.mirrored_files(new_record))
        # The actors on that host ended with its learners.
        self._followed.restore_times[first.host_id] = time.monotonic() + SETTLE_SECONDS
        return True

    def _end_learners(self, record: Record) -> None:
        """End all learners that are still running, on every host that is connected."""
        self._followed.request_stop("now", LEARNERS)
        until = time.monotonic() + _END_SECONDS
        self.wait_for_end(_END_SECONDS)
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

    def _make_learners(
        self, rows: Sequence[Worker], flags: dict[str, str]
    ) -> tuple[Process, list[str]]:
        """Return the learners of these rows, and their addresses with the ports that are known."""
        installation_of = self._followed.installation_of
        learners = process_plan.make_processes(rows, self._config, flags, installation_of)[0]
        planned = process_plan.join_common_flags(rows, flags, installation_of)["learner_hosts"]
        known = process_plan.known_addresses(planned, flags["learner_hosts"]).split(",")
        return learners, known

    def _rows_of(self, places: Sequence[str]) -> list[Worker]:
        """Return the learners' rows of these hosts, in this order; empty if the CSV has changed."""
        rows = [
            worker
            for worker in self._followed.workers
            if worker.job == "learner" and host_id_of(worker) in places
        ]
        rows.sort(key=lambda worker: places.index(host_id_of(worker)))
        return rows if {host_id_of(worker) for worker in rows} == set(places) else []
