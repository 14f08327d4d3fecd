"""Runs an experiment: starts trials where there is room, follows them, stops them, resumes them.

The process that runs this may be killed: the trials keep running, and the same command follows them
again. What it must know is in `journal`, in the record of each trial's run, and in its folder.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence, Set
from pathlib import Path

from impala_mm.config import flags
from impala_mm.config.messages import program
from launcher.experiments import file, pool, table
from launcher.experiments.file import Experiment, describe
from launcher.experiments.journal import FINAL, Journal
from launcher.experiments.pool import Pool
from launcher.experiments.search import PAUSE, PRUNE, SEARCHES, Search
from launcher.experiments.trial import ROWS, Trial, is_trial
from launcher.follow import connect
from launcher.follow.console import say
from launcher.hosts.hosts import Hosts, find_targets, host_id_of
from launcher.plan import workers_csv
from launcher.plan.request import (
    Request,
    UserError,
    check_flags,
    read_workers,
    refuse_passwords,
)
from launcher.plan.workers_csv import Worker
from launcher.supervise import file_lock
from launcher.supervise.run_registry import check_runs_folder, is_same_folder, runs_folder
from launcher.supervise.task import FINAL_STATES

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 60.0  # seconds between two attempts to reach a host that was lost
_LOST_STOP_SECONDS = 5  # for which a stop waits for a host that was lost
# Flags that each trial gets from the experiment, or that say what is done with the experiment.
_OWN_FLAGS = "experiment workers_csv_path hosts_from tmux_sess dry_run restart_learners".split()
_NOT_WITH_MANY = {
    "tmux_sess": "each trial has a name of its own, from --logdir",
    "check": "give the CSV without it",
    "detach": "its trials keep running if this command is ended by SIGTERM, and it resumes them",
}
LOCK = "experiment.lock"


def run_experiment(request: Request) -> int:
    """Run the experiment of --experiment to its end, and return the exit code."""
    check_flags(request)
    for name, instead in _NOT_WITH_MANY.items():
        if name in request.given and getattr(request.launcher, name):
            raise UserError(f"--{name} is about one run, and not for --experiment: {instead}")
    experiment = _read_file(request)
    written, chosen = _read_journal(experiment)
    rows = _read_rows(request, experiment, chosen.together)
    places = Pool(rows, experiment.needs)
    if not chosen.together:  # such trials share the cores that there are
        places.cores = {"": len(os.sched_getaffinity(0))}
    if wrong := places.why_too_small():
        raise UserError(f"{experiment.path}: {wrong}")
    _check_together(experiment, chosen.together, places)
    if request.launcher.dry_run:
        return _print_plan(experiment, chosen, places, written, request)
    check_runs_folder()
    with _locks(experiment, places.host_ids):
        return Controller(request, experiment, rows, places, chosen, written).run()


def _read_file(request: Request) -> Experiment:
    experiment = file.read(request, {name: SEARCHES[name].OPTIONS for name in SEARCHES.names})
    if (experiment.folder / "starts.jsonl").exists():
        raise UserError(f"--logdir={experiment.folder} is the folder of a run: give another one")
    return experiment


def _read_journal(experiment: Experiment) -> tuple[Journal, Search]:
    """Return the journal and the search, which knows the trials so far."""
    written = Journal(experiment.folder)
    written.refuse_changes(experiment)
    return written, SEARCHES[experiment.kind](experiment, written.asked)


def begin_array(request: Request) -> tuple[Experiment, list[Worker], list[int]]:
    """Write the settings of all trials that have not ended, for jobs that Slurm starts.

    Return the experiment, the rows of one trial and the trials' numbers.
    """
    experiment = _read_file(request)
    with _locks(experiment, []):
        written, chosen = _read_journal(experiment)
        if not chosen.CHOOSES_AHEAD:
            raise UserError(
                f"{experiment.path}: kind = {experiment.kind!r} chooses values by the returns of "
                f"earlier trials, and a Slurm array has all of them at once: use grid or random"
            )
        rows = pool.rows_here(experiment.needs, 1)
        if "workers_csv_path" in request.given or request.launcher.hosts_from:
            places = Pool(_read_rows(request, experiment, 1), experiment.needs)
            if wrong := places.why_too_small():
                raise UserError(f"{experiment.path}: {wrong}")
            rows = places.take([])
            refuse_passwords(rows, request.launcher)
        if not written.rows or written.rows[-1]["event"] != "begun":
            written.write("begun", experiment=experiment.fixed)
        trials = written.trials(experiment)
        for trial in _ask_all(experiment, chosen, len(trials)):
            written.write("asked", trial=trial.number, values=trial.values)
            trials.append(trial)
        trials = [trial for trial in trials if trial.state not in FINAL]
        for trial in trials:
            trial.rows = rows
            trial.write_files()
    return experiment, rows, [trial.number for trial in trials]


def _check_together(experiment: Experiment, together: int, places: Pool) -> None:
    """Refuse a search whose trials must run together if there is room for fewer."""
    taken: list[list[Worker]] = []
    for _ in range(together):
        taken.append(places.take(taken))
    room = min(sum(map(bool, taken)), experiment.at_once or together)
    if room < together:
        raise UserError(
            f"{experiment.path}: {together} trials must run together, and there is room for {room}"
        )


def _read_rows(request: Request, experiment: Experiment, together: int) -> list[Worker]:
    """Return the rows of the CSV; without one, those of as many trials as this machine fits."""
    if request.launcher.hosts_from:
        return read_workers(request)
    if "workers_csv_path" in request.given:
        return workers_csv.read(request.launcher.workers_csv_path)[0]
    cores = len(os.sched_getaffinity(0))
    room = max(1, cores // max(1, experiment.needs.cores))
    return pool.rows_here(experiment.needs, experiment.at_once or together or room)


def _print_plan(
    experiment: Experiment, chosen: Search, places: Pool, written: Journal, request: Request
) -> int:
    """Print the trials, where each goes and by which command; nothing is connected or written."""
    trials = written.trials(experiment)
    if chosen.CHOOSES_AHEAD:
        trials += _ask_all(experiment, chosen, len(trials))
    has_room = True
    for trial in trials:
        if trial.state in FINAL:
            say(f"# trial {trial.number}: {describe(trial.values)}: {trial.state}")
            continue
        trial.rows = places.take(t.rows for t in trials) if has_room else []
        has_room = bool(trial.rows)
        hosts = ", ".join(dict.fromkeys(row.ip for row in trial.rows))
        where = f"on {hosts}" if hosts else "on the first hosts that are free"
        say(f"# trial {trial.number}: {describe(trial.values)}: {where}")
        say(" ".join(trial.command([program(frontend=True)], trial_flags(request))))
    if not chosen.CHOOSES_AHEAD:
        say("# the values of further trials follow from the returns of those before")
    return 0


def _ask_all(experiment: Experiment, chosen: Search, first: int) -> Iterator[Trial]:
    """Yield all trials that a search has at once."""
    number = first
    while not experiment.trials or number < experiment.trials:
        if (values := chosen.ask(number)) is None:
            return
        yield Trial(experiment, number, values)
        number += 1


def trial_flags(request: Request) -> list[str]:
    """Return the frontend's flags that each trial gets: those of this command, and its own."""
    known = {f.name for f in dataclasses.fields(request.launcher)}
    given = [name for name in request.given if name in known and name not in _OWN_FLAGS]
    own = ["--restart_learners", "--mirror_logdir"]
    if request.experiment.track:
        own.append(f"--env=WANDB_RUN_GROUP={Path(request.launcher.experiment).stem}")
    # One that may be repeated is given as often as it has values.
    repeated = [n for n in given if isinstance(getattr(request.launcher, n), tuple)]
    for name in repeated:
        own += [f"--{name}={value}" for value in getattr(request.launcher, name)]
    rest = [name for name in given if name not in repeated]
    return [*flags.arguments(request.launcher, rest), *own]


@contextlib.contextmanager
def _locks(experiment: Experiment, host_ids: Sequence[str]) -> Iterator[None]:
    """Keep other experiments out of this one's folder and hosts for the time of a `with` block."""
    experiment.folder.mkdir(parents=True, exist_ok=True)
    folder = runs_folder().parent / "experiments"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths = {experiment.folder / LOCK: str(experiment.folder)}
    paths |= {
        folder / f"{host_id or 'here'}.lock": host_id or "this machine" for host_id in host_ids
    }
    locks: list[int] = []
    try:
        for path, what in paths.items():
            lock = file_lock.acquire(path)
            if lock is None:
                other = path.read_text().strip()
                raise UserError(
                    f"another experiment is running on {what}, in {other}: wait for its end, or "
                    f"give this one other hosts"
                )
            os.ftruncate(lock, 0)
            os.pwrite(lock, os.fsencode(experiment.folder.resolve()), 0)
            locks.append(lock)
        yield
    finally:
        for lock in locks:
            os.close(lock)


class Controller:
    """The process that runs one experiment."""

    def __init__(
        self,
        request: Request,
        experiment: Experiment,
        rows: Sequence[Worker],
        places: Pool,
        chosen: Search,
        written: Journal,
    ):
        """Resume from the journal: trials that are running keep their places."""
        self._request, self._experiment, self._rows = request, experiment, rows
        self._pool, self._search, self._journal = places, chosen, written
        self._flags = trial_flags(request)
        self._signals: list[int] = []
        self._away: dict[int, float] = {}  # since when trials' hosts are unreachable, by trial
        self._others: dict[str, str] = {}  # other experiments, by ids of hosts that they use
        self._looked_for = 0.0  # time.monotonic() of the last attempt to reach these
        self._looking: threading.Thread | None = None
        self._checked: set[str] = set()  # addresses at which a trial has been started
        if not written.rows or written.rows[-1]["event"] != "begun":
            written.write("begun", experiment=experiment.fixed)
        self.trials = written.trials(experiment)

    # -- the loop

    def run(self) -> int:
        """Run the experiment, and return the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._ask_hosts(self._pool.host_ids)
        for trial in self.trials:
            if trial.state == "starting":
                self._adopt(trial)
        with table.shown(self._experiment, self.trials) as update:
            while True:
                for trial in self.trials:
                    self._advance(trial)
                if set(self._signals) & {signal.SIGTERM, signal.SIGHUP}:
                    say("the trials keep running; the same command follows them again")
                    return 0
                if signal.SIGINT in self._signals:
                    if not self._stop_all():
                        break
                elif not self._fill():
                    break
                update()
                time.sleep(_LOOK_SECONDS)
        return self._report_end()

    def _fill(self) -> bool:
        """Start trials where there is room; return whether the experiment has anything to do."""
        self._look_for_lost_hosts()
        while True:
            active = [trial for trial in self.trials if trial.state in _ACTIVE]
            limit = self._experiment.at_once
            if limit and len(active) >= limit:
                return True
            trial = self._next()
            if trial is None:
                return bool(active)
            rows = self._pool.take(trial.rows for trial in self.trials)
            if not rows:
                return True
            trial.rows = rows
            self._start(trial)

    def _next(self) -> Trial | None:
        """Return the trial to start next: one that is queued, or a new one."""
        if queued := [trial for trial in self.trials if trial.state == "queued"]:
            return queued[0]
        number, most = len(self.trials), self._experiment.trials
        if most and number >= most:
            return None
        values = self._search.ask(number)
        if values is None:
            return None
        trial = Trial(self._experiment, number, values)
        self._journal.write("asked", trial=number, values=values)
        self.trials.append(trial)
        return trial

    def _start(self, trial: Trial) -> None:
        trial.values = self._search.starts(trial.number, trial.values)
        trial.host = trial.rows[0].ip
        trial.write_files()
        addresses = {row.ip for row in trial.rows}
        is_known = addresses <= self._checked  # one trial checks a host for all others
        self._checked |= addresses
        trial.start(trial.command(self._program, self._flags, *["--skip_check"] * is_known))
        trial.state, trial.has_run, trial.why = "starting", False, ""
        trial.starts += 1
        self._journal.write_trial(
            "started", trial, values=trial.values, host=trial.host, frontend=trial.frontend
        )
        again = " again" * (trial.starts > 1)
        say(f"trial {trial.number} starts{again} on {trial.host}: {describe(trial.values)}")

    def _adopt(self, trial: Trial) -> None:
        """Follow a trial again that an earlier process has started, if there is anything left."""
        if trial.look() == "elsewhere" and (record := trial.record):
            raise UserError(trial.run.started_on(record.elsewhere))
        if not trial.has_run and not trial.has_frontend:
            trial.state = "queued"
            trial.take_last_row()
            if trial.outcome in FINAL:
                self._finish(trial)
            return
        with contextlib.suppress(workers_csv.BadCsv):
            trial.rows = workers_csv.read(str(trial.folder / ROWS))[0]
        trial.rows = [
            dataclasses.replace(row, count=1) for row in trial.rows for _ in range(row.count)
        ]
        if trial.outcome:  # one that was saved and stopped for Ctrl-C goes on
            self._stop(trial, "paused" if trial.outcome == "stopped" else trial.outcome)

    # -- one trial

    def _advance(self, trial: Trial) -> None:
        """See how a trial is, and do what follows from it."""
        if trial.state == "stopping":
            self._advance_stop(trial)
            return
        if trial.state not in _ACTIVE:
            return
        state = trial.look()
        if state == "away":
            since = self._away.setdefault(trial.number, time.monotonic())
            if time.monotonic() - since > self._request.launcher.lost_secs:
                self._lose_hosts(trial.away)
                trial.end_frontend()
                self._stop(trial, "lost", f"--stop_secs={_LOST_STOP_SECONDS}")
                return
        else:
            self._away.pop(trial.number, None)
        if trial.has_frontend:
            self._tell(trial, state)
        elif state in FINAL_STATES or state in ("lost", "stale"):
            self._stop(trial, self._outcome_of(trial, state))
        elif state:  # its frontend was killed
            trial.start(trial.command(self._program, self._flags, "--attach"))
        elif trial.has_run:  # its user has stopped it
            self._stop(trial, "stopped")
        else:
            self._note_no_start(trial)

    def _advance_stop(self, trial: Trial) -> None:
        """See whether a trial that is being stopped has ended."""
        if trial.stopper is None:
            if not trial.has_frontend:  # it may have started the run before it ended
                self._stop(trial, trial.outcome)
        elif trial.stopper.poll() is not None:
            trial.end_frontend()  # what it still copies from a host must not arrive later
            if not trial.has_frontend:
                self._finish(trial)

    def _tell(self, trial: Trial, state: str) -> None:
        """Tell the search how a running trial is, and do what it answers."""
        if state != "running":
            return
        trial.state = "running"
        if trial.score is not None:
            answer = self._search.tell(trial.number, trial.frames, trial.score)
            if answer in (PRUNE, PAUSE):
                self._stop(trial, "pruned" if answer == PRUNE else "paused")

    def _outcome_of(self, trial: Trial, state: str) -> str:
        """Return what follows from the end of a trial's run."""
        if state == "ended":
            return "ended"
        if state == "failed":
            states = trial.run.states().values()
            failures = [each.failure for each in states if each.failure]
            lines = [line for each in failures for line in each.lines if "error" in line.lower()]
            trial.why = (lines or [each.why for each in failures] or [trial.first_error()])[-1]
            return "failed"
        return "lost"

    def _note_no_start(self, trial: Trial) -> None:
        """Find out why a trial's run was not started: its host is lost, or the trial is wrong."""
        trial.why = trial.first_error()
        host_ids = {host_id_of(row) for row in trial.rows}
        if lost := host_ids - self._reach(host_ids):
            self._lose_hosts(lost)
            self._stop(trial, "lost")
        else:
            self._stop(trial, "failed")

    def _stop(self, trial: Trial, outcome: str, *others: str) -> None:
        """Save and stop a trial's run, if there is one, and remove its record."""
        if trial.record is None:
            trial.outcome = outcome
            if trial.has_frontend:  # which is starting the run
                trial.state = "stopping"
                trial.end_frontend(signal.SIGINT)
            else:
                self._finish(trial)
            return
        self._journal.write_trial("stopping", trial, outcome=outcome)
        trial.begin_stop(trial.command(self._program, self._flags, "--stop", *others), outcome)

    def _finish(self, trial: Trial) -> None:
        """Give a trial's places back and record how it ended, or that it waits for a start."""
        trial.end_frontend()
        trial.take_last_row()
        event = trial.outcome
        self._journal.write_trial(event, trial, **{"why": trial.why} if trial.why else {})
        trial.state = event if event in (*FINAL, "stopped") else "queued"
        if event in FINAL and self._search.ended(trial.number, trial.score, event):
            trial.state = "queued"
        trial.rows = ()
        shown = "" if trial.score is None else f", return {trial.score:.2f}"
        why = f": {trial.why}" * (event == "failed")
        say(f"trial {trial.number} {event} after {trial.frames:,.0f} frames{shown}{why}")

    # -- hosts

    def _lose_hosts(self, host_ids: Set[str]) -> None:
        for host_id in sorted(host_ids - self._pool.lost - {""}):
            say(f"{host_id} cannot be reached: its trials go back to the queue")
        self._pool.lost |= host_ids - {""}

    def _ask_hosts(self, host_ids: Sequence[str]) -> None:
        """Find out which hosts can be reached and how many cores they have."""
        self._pool.lost = set(host_ids) - self._reach(host_ids)
        for host_id in sorted(self._pool.lost):
            say(f"note: {host_id} cannot be reached now: it gets trials once it can be")
        for host_id, other in self._others.items():
            raise UserError(
                f"{host_id} has running trials of another experiment, {other}: wait for its end, "
                f"or give this one other hosts"
            )
        if wrong := self._pool.why_too_small():
            raise UserError(f"{self._experiment.path}: {wrong}")

    def _reach(self, host_ids: Collection[str]) -> set[str]:
        """Return those of these hosts that can be reached; the pool learns their cores."""
        cores = self._read_cores(host_ids)
        if not self._search.together:  # such trials share the cores that there are
            self._pool.cores |= cores
        return set(cores)

    def _read_cores(self, host_ids: Collection[str]) -> dict[str, int]:
        """Return the number of cores of those of these hosts that can be reached."""
        found: dict[str, int] = {
            host_id: len(os.sched_getaffinity(0)) for host_id in host_ids if not host_id
        }
        others = [row for row in self._rows if host_id_of(row) and host_id_of(row) in host_ids]
        if not others:
            return found
        hosts = Hosts("experiment", find_targets(others), self._request.ssh_settings)
        try:
            pythons = connect.candidate_pythons(others, self._request.launcher.deploy)
            lost = hosts.connect(lambda _: None, pythons)
            reached = [host_id for host_id in hosts.remote_nodes if host_id not in lost]
            facts = hosts.for_each(lambda h: hosts.call(h, "facts", roots=[], pythons=[]), reached)
            known = {h: f for h, f in facts.items() if isinstance(f, dict)}
            self._others = {h: other for h, f in known.items() if (other := self._other(f["runs"]))}
            return found | {h: f["cores"] for h, f in known.items()}
        finally:
            hosts.close()

    def _other(self, runs: Sequence[Sequence[str]]) -> str:
        """Return which other experiment a host has trials of, by its runs; empty if of none."""
        for machine, logdir in runs:
            folder = Path(logdir).parent.parent
            is_here = machine == socket.gethostname()
            is_own = is_here and is_same_folder(str(folder), str(self._experiment.folder))
            if is_trial(Path(logdir)) and not is_own:
                return f"{folder} of {machine}"
        return ""

    def _look_for_lost_hosts(self) -> None:
        """Try, now and then, to reach the hosts that are lost: in a thread, since it may hang."""
        now = time.monotonic()
        is_looking = self._looking is not None and self._looking.is_alive()
        if not self._pool.lost or is_looking or now - self._looked_for < _RETRY_SECONDS:
            return
        self._looked_for = now

        def look() -> None:
            self._pool.lost -= self._reach(sorted(self._pool.lost))

        self._looking = threading.Thread(target=look, daemon=True)
        self._looking.start()

    # -- the end

    @property
    def _program(self) -> list[str]:
        return list(self._request.command[:2])

    def _stop_all(self) -> bool:
        """Save and stop all trials after Ctrl-C; return whether any is left."""
        if self._signals.count(signal.SIGINT) > 1:
            return False
        for trial in self.trials:
            if trial.state in ("starting", "running"):
                say(f"saving and stopping trial {trial.number}")
                self._stop(trial, "stopped")
        return any(trial.state == "stopping" for trial in self.trials)

    def _report_end(self) -> int:
        """Print what came out, and return the exit code."""
        say(table.describe(self._experiment, self.trials))
        if signal.SIGINT in self._signals:
            rest = any(trial.state == "stopping" for trial in self.trials)  # Ctrl-C came twice
            more = ", when trials that are stopping have ended by themselves" * rest
            say(f"stopped{more}; the same command goes on; results: {self._experiment.folder}")
            return 130
        return int(any(trial.state == "failed" for trial in self.trials))


_ACTIVE = ("starting", "running", "stopping")
