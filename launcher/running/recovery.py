"""Recovers a run from lost hosts and supervisors while a frontend follows the run.

Actors and evaluators whose supervisor was killed are restarted, and with `--restart_learners` also
learners, from the last checkpoint; on any machine.

`remote_node` keeps trying to reconnect to an unreachable host. Once it is connected again, its
processes that are not running are restarted. If a learner's host stays unreachable and the
learners make no progress without it, `--restart_learners` restarts them on the remaining learner
hosts from the last checkpoint. Once it has answered for `--rejoin_secs`, they save, and are
restarted with it (`returning`).
"""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.node import file_lock
from launcher.node.callbacks import Say
from launcher.node.run_registry import Record
from launcher.node.task import FINAL_STATES, LEARNERS, with_learner_hosts
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation, InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.remote.hosts import host_id_of
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.remote.state_mirror import StateMirror
from launcher.running import connect, mpirun_daemons, start
from launcher.running.returning import ReturningHosts
from launcher.running.run_control import RunControl
from launcher.transfer import fetch
from launcher.transfer.checkpoints import has_checkpoint

# A file in the run's state folder, by which `--status` asks a connected frontend to open windows.
WINDOWS_REQUEST = "open-windows"
# Another one, which exists while learners that stop or fail are restarted, for all frontends.
_RESTARTING = "restarting-learners"
_CHECK_SECONDS = 1.0
# Seconds before an unreachable host is reported: perhaps another frontend has just disconnected.
_AWAY_SECONDS = 4.0
# Seconds without a heartbeat after which learners count as stuck: a learner whose peers are gone
# waits in its all-reduce.
_STUCK_SECONDS = 20.0
_RETRY_SECONDS = 30.0  # seconds between attempts to restart learners, or a lost process
_STARTING_SECONDS = 120.0  # timeout for the learners' first heartbeat
_END_SECONDS = 20.0  # timeout for learners to exit before they are restarted on other hosts
_DAEMONS_SECONDS = 5.0  # seconds between attempts to start supervisors that learners wait for
_SAVE_SECONDS = 10.0  # timeout for learners to exit, in addition to that for saving
_SETTLE_SECONDS = 3.0  # seconds that a reconnected host has to report the states of its processes


class Recovery:
    """Restores the processes of one run after its hosts were unreachable."""

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
        self._control, self._mirror, self._config = control, mirror, config
        self._run, self._hosts = control.run, control.hosts
        self._workers, self._installation_of, self._log_max_mb = (
            list(workers),
            installation_of,
            log_max_mb,
        )
        self._say = say
        self._checked = 0.0
        self._away_since: dict[str, float] = {}  # unreachable hosts, and since when
        self._reported_away: set[str] = set()  # unreachable hosts that a message was printed for
        self._restore_times: dict[str, float] = {}  # when to check a reconnected host's processes
        self._lost_retry_times: dict[str, float] = {}  # by process that was lost and restarted
        self._last_sentence = ""
        self._retry_time = 0.0
        self._daemons_time = 0.0  # when supervisors that the learners wait for may be started
        self._learner_rows = [worker for worker in workers if worker.job == "learner"]
        self._returning = ReturningHosts(config.rejoin_secs)
        self._restarting = control.run.folder / _RESTARTING
        self._lock: int | None = None

    @property
    def can_restart_learners(self) -> bool:
        """Whether learners whose supervisor is lost can be restarted, so that the run continues."""
        return self._config.restart_learners and self._holds_lock()

    @property
    def is_restarting_learners(self) -> bool:
        """Whether learners that stopped or failed are being restarted: the run continues."""
        if not self._restarting.exists() or (self._run.folder / "stop").exists():
            return False
        return self._config.restart_learners or not self._holds_lock()

    def recover(self) -> None:
        """Check the hosts and the learners, and restart what has to be; call it repeatedly."""
        record = self._run.record
        now = time.monotonic()
        if record is None or now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        if self._hosts.remote_nodes:  # local processes of remote learners wait for this
            with contextlib.suppress(OSError):
                (self._run.folder / "news").touch(mode=0o600)
        if new := set(record.targets) - set(self._hosts.remote_nodes):
            self._connect_new_hosts(record, new)
        self._check_hosts(record, now)
        if (self._run.folder / WINDOWS_REQUEST).exists():
            (self._run.folder / WINDOWS_REQUEST).unlink(missing_ok=True)
            self._control.open_windows(self._say)
        if not self._holds_lock():
            self._restore_times.clear()
            return
        for host_id in [p for p, due in self._restore_times.items() if due < now]:
            del self._restore_times[host_id]
            self._restore_host(host_id)
        self._restart_lost(record, now)
        self._check_learners(record, now)

    def _holds_lock(self) -> bool:
        """Return whether this frontend is the one that recovers the run: several may follow it."""
        if self._lock is None:
            with contextlib.suppress(OSError):
                self._lock = file_lock.acquire(self._run.folder / "mends")
        return self._lock is not None  # held until this process exits

    # -- hosts

    def _connect_new_hosts(self, record: Record, new: set[str]) -> None:
        """Connect to hosts that another frontend added with `--apply`."""
        known = connect.targets_of(record)
        self._hosts.targets |= {host_id: known[host_id] for host_id in new}
        self._hosts.connect(self._say, lambda host_id: record.pythons.get(host_id, []), new)
        for host_id in new:
            self._run.record_contact(host_id, self._hosts.remote_nodes[host_id].error)
            self._hosts.remote_nodes[host_id].stay_connected(self._mirror)

    def _check_hosts(self, record: Record, now: float) -> None:
        for host_id in self._hosts.remote_nodes:
            why = self._run.why_away(host_id)
            if not why:
                since = self._away_since.pop(host_id, now)
                if host_id in self._reported_away:
                    self._reported_away.remove(host_id)
                    self._say(f"{host_id} is connected again after {now - since:.0f} s")
                    self._restore_times[host_id] = now + _SETTLE_SECONDS
                continue
            silent = now - self._away_since.setdefault(host_id, now)
            if silent > _AWAY_SECONDS and host_id not in self._reported_away:
                self._reported_away.add(host_id)
                names = [p["name"] for p in record.processes if p["place"] == host_id]
                names += ["a learner"] * (host_id in record.learner_places[1:])
                self._say(
                    f"{host_id} is unreachable ({why}); processes on it: {_join_names(names)}; "
                    f"trying to reconnect"
                )

    def _restore_host(self, host_id: str) -> None:
        """Restart the processes that should run on a reconnected host and do not."""
        record = self._run.record
        assert record
        states = self._run.states()
        stopping = {n for n in states if (self._run.folder / n / "stop").exists()}
        state_of = {
            name: state["state"]
            for name, state in states.items()
            if (state.get("place") or "") == host_id and name not in {*stopping, LEARNERS}
        }
        if {"ending", "saving"} & set(state_of.values()):  # because the learners have ended
            self._restore_times[host_id] = time.monotonic() + _SETTLE_SECONDS
            return
        gone = {n for n, state in state_of.items() if state in ("lost", "starting", "stopped")}
        try:
            for name in stopping & {p["name"] for p in record.processes if p["place"] == host_id}:
                # The host was unreachable when the stop was requested.
                self._hosts.call(host_id, "request_stop", mode="save", name=name)
            self._begin_if_unknown(record, host_id)
            # Learners that ran on this host before have moved to another.
            if host_id != record.host_id_of(LEARNERS):
                self._hosts.call(host_id, "request_stop", mode="now", name=LEARNERS)
            if host_id not in record.learner_places:
                self._hosts.call(host_id, "kill_learners", start=record.id)
            if processes := self._plan_restarts(record, gone):
                start.start_processes(
                    self._run, self._hosts, processes, self._config, record, self._log_max_mb
                )
                names = [process.name for process in processes]
                self._say(f"{host_id or 'this machine'}: restarted {_join_names(names)}")
        except (HostUnavailable, OperationFailed) as error:
            self._say(f"could not restart the processes of a host: {error}")

    def _restart_lost(self, record: Record, now: float) -> None:
        """Restart actors and evaluators whose supervisor was killed, while the learners run."""
        states, folder = self._run.states(), self._run.folder
        if states[LEARNERS]["state"] != "running" or (folder / "stop").exists():
            return
        lost: dict[str, set[str]] = {}  # by host
        for name, state in states.items():
            host_id = state.get("place") or ""
            if state["state"] != "lost" or name == LEARNERS or (folder / name / "stop").exists():
                continue
            if self._is_away(host_id) or host_id in self._restore_times:  # restored as a whole
                continue
            if now >= self._lost_retry_times.get(name, 0.0):
                lost.setdefault(host_id, set()).add(name)
                self._lost_retry_times[name] = now + _RETRY_SECONDS
        for host_id, names in lost.items():
            where = host_id or "this machine"
            try:
                self._hosts.call(host_id, "kill", lost_only=True)  # what they left
                processes = self._plan_restarts(record, names)
                start.start_processes(
                    self._run, self._hosts, processes, self._config, record, self._log_max_mb
                )
            except (HostUnavailable, OperationFailed) as error:
                self._say(f"could not restart the processes of a host: {error}")
            else:
                restarted = [process.name for process in processes]
                if restarted:
                    self._say(
                        f"{where}: restarted {_join_names(restarted)}, whose supervisor was killed"
                    )

    def _plan_restarts(self, record: Record, names: set[str]) -> list[Process]:
        """Return the processes of these names, with their hosts' present installations.

        Processes whose row was removed from the CSV are left out.
        """
        rows = [*self._workers, *connect.rows_of(record)]  # --apply may have added rows
        self._find_installations(rows)
        found = []
        for entry in record.processes:
            rows_alike = [w for w in rows if process_plan.row_signature(w) == entry["kind"]]
            if entry["name"] in names and rows_alike:
                row = dataclasses.replace(rows_alike[0], job=entry["job"])
                found.append(
                    process_plan.make_process(
                        entry["name"], row, self._config, record.flags, self._installation_of
                    )
                )
        return found

    def _find_installations(self, rows: Sequence[Worker]) -> None:
        self._installation_of = connect.find_installations(
            rows, self._hosts, self._config.deploy, self._say
        )

    def _begin_if_unknown(self, record: Record, host_id: str) -> None:
        """Begin the run on a host that does not know it, such as one that was rebooted."""
        if not self._hosts.call(host_id, "has_start", start=record.id):
            start.begin_on_hosts(self._run, self._hosts, record, [host_id], self._say)
            self._mirror.on_connected(host_id)

    # -- learners

    def _check_learners(self, record: Record, now: float) -> None:
        if now < self._retry_time:
            return
        awaits = self._run.states()[LEARNERS].get("awaits")
        if awaits and now > self._daemons_time:
            self._daemons_time = now + _DAEMONS_SECONDS
            self._start_daemon_supervisors(record)
        host_id, host_ids = record.host_id_of(LEARNERS), record.learner_places
        learners = self._run.states()[LEARNERS]
        state, crashed = learners["state"], bool(learners.get("failure"))
        stopped = state == "stopped" and self.is_restarting_learners
        lost = (state == "lost" or stopped) and not self._is_away(host_id)
        gone = {p for p in host_ids if now - self._away_since.get(p, now) > self._config.lost_secs}
        failed = self._returning.failed(crashed, lambda: self._are_learners_stuck(record), now)
        if state in ("running", "failed") and not failed and not self._returning.has_trial:
            self._restarting.unlink(missing_ok=True)
        if not lost and not failed and not (gone and self._are_learners_stuck(record)):
            if state == "running":
                self._take_back_hosts(record, now)
            return
        if not self._config.restart_learners:
            if host_id in gone:
                self._say_once(
                    f"the learners' host {host_id} stays unreachable: the run waits for it; "
                    f"`--attach --restart_learners` restarts the learners on the other hosts"
                )
            return
        rows = [worker for worker in self._workers if worker.job == "learner"]
        left = [
            worker
            for worker in rows
            if (place := host_id_of(worker)) in host_ids
            and place not in failed
            and not self._is_away(place)
        ]
        if not left:
            self._say_once("all learner hosts are unreachable: the run waits for one of them")
            return
        names = [worker.ip for worker in left]
        why = f"{_join_names(sorted(gone))} stays unreachable"
        if failed:
            why = f"the learners do not work with {_join_names(sorted(failed))}"
        elif lost:
            why = f"the learners on {host_id or 'this machine'} are not running any more"
        self._say(
            f"{why}: restarting the learners on {_join_names(names)} from the last checkpoint"
        )
        self._returning.end_trials()
        self._restart_learners_on(left, record)

    def _take_back_hosts(self, record: Record, now: float) -> None:
        """Restart running learners with the lost hosts that have answered for a while."""
        config, used = self._config, set(record.learner_places)
        if not config.restart_learners or (self._run.folder / "stop").exists():
            return
        lost = {host_id_of(worker) for worker in self._learner_rows} - used
        answering = {host_id for host_id in lost if not self._is_away(host_id)}
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
        names = _join_names([worker.ip for worker in rows])
        self._say(f"saving, to restart the learners on {names} from this checkpoint")
        self._restarting.touch(mode=0o600)
        self._control.request_stop("save", LEARNERS)
        self._wait_for_learners_to_end(config.stop_secs + _SAVE_SECONDS)
        self._find_installations([*self._workers, *rows])
        self._restart_learners_on(rows, record)

    def _restart_learners_on(self, rows: Sequence[Worker], record: Record) -> None:
        """Restart the learners on the hosts of these rows; if that fails, try again later."""
        self._restarting.touch(mode=0o600)
        try:
            self._start_learners_on(rows, record)
        except (HostUnavailable, OperationFailed, OSError) as error:
            self._retry_time = time.monotonic() + _RETRY_SECONDS
            self._say(f"could not restart the learners: {error}; retry in {_RETRY_SECONDS:g} s")

    def _start_daemon_supervisors(self, record: Record) -> None:
        """Start those on which the learners wait, after their host was rebooted for example."""
        host_ids = record.learner_places
        learners = [w for w in self._workers if w.job == "learner" and host_id_of(w) in host_ids]
        learners.sort(key=lambda worker: host_ids.index(host_id_of(worker)))
        if {host_id_of(worker) for worker in learners} != set(host_ids):
            return  # the CSV has changed
        try:
            for host_id in host_ids:
                if host_id and not self._is_away(host_id):
                    self._begin_if_unknown(record, host_id)
            self._find_installations(self._workers)
            mpirun_daemons.start_supervisors(
                *(self._run, self._hosts, self._installation_of(learners[0])),
                process_plan.other_installations(learners, self._installation_of),
                *(self._config, record.id, False),
            )
        except (HostUnavailable, OperationFailed, OSError) as error:
            self._say_once(f"could not start the supervisor of mpirun's daemon: {error}")

    def _is_away(self, host_id: str) -> bool:
        return host_id != "" and (host_id in self._away_since or self._run.why_away(host_id) != "")

    def _are_learners_stuck(self, record: Record) -> bool:
        """Return whether the learners make no progress.

        They may well make progress on a host that only this machine cannot reach.
        """
        state = self._run.states()[LEARNERS]
        host_id = record.host_id_of(LEARNERS)
        if host_id in self._away_since:
            others = [
                w for w in record.learner_places if w != host_id and w not in self._away_since
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
            self._begin_if_unknown(record, host_id)
        others = [worker for worker in self._workers if worker.job != "learner"]
        rows = [*left, *[dataclasses.replace(worker, learner=ANY_LEARNER) for worker in others]]
        first = self._installation_of(left[0])
        old_host_id = record.host_id_of(LEARNERS)
        logdir = record.flags["logdir"]
        shared = record.shared
        if first.host_id != old_host_id:
            logdir, shared = self._provide_checkpoints(record, first)
            if not logdir:
                self._retry_time = time.monotonic() + _RETRY_SECONDS
                return
        elif first.host_id and not shared:
            fetch.restore_if_missing(
                self._hosts, first.host_id, Path(record.logdir), logdir, self._say
            )
        flags = record.flags | {"logdir": logdir}
        learners = process_plan.make_processes(rows, self._config, flags, self._installation_of)[0]
        flags = process_plan.join_common_flags(rows, flags, self._installation_of)
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
        self._workers = rows
        start.start_processes(
            self._run,
            self._hosts,
            [learners],
            self._config,
            new_record,
            self._log_max_mb,
            self._say,
        )
        self._mirror.follow_files(connect.mirrored_files(new_record))
        # The actors on that host ended with its learners.
        self._restore_times[first.host_id] = time.monotonic() + _SETTLE_SECONDS

    def _end_learners(self, record: Record) -> None:
        """End all learners that are still running, on every host that is connected."""
        self._control.request_stop("now", LEARNERS)
        until = time.monotonic() + _END_SECONDS
        self._wait_for_learners_to_end(_END_SECONDS)
        for host_id in record.learner_places:
            if host_id not in self._away_since:
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
        installations = [self._installation_of(worker) for worker in self._workers]
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
            self._say_once(
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
        fetch.push_folder(self._hosts, first.host_id, local_folder, remote_folder, self._say)
        return remote_folder, False

    def _say_once(self, sentence: str) -> None:
        if sentence != self._last_sentence:
            self._last_sentence = sentence
            self._say(sentence)


def _join_names(names: Sequence[str]) -> str:
    """Return the names as a list for a sentence; only the first three of five or more."""
    return (
        ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"
    )
