"""What a frontend mends while it follows a run: hosts that come back, learners' hosts that do not.

A host that is away is asked again and again (`there`). Once it answers, what it should run and
does not is started again. Where a learner's host stays away and the learners do not get on without
it, they start again on the hosts that are left, from the last checkpoint, if --restart_learners
says so.
"""

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.node.run_registry import Record
from launcher.node.task import FINAL, LEARNERS
from launcher.plan import process_plan
from launcher.plan.host_environment import Grounds
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import place
from launcher.remote.remote_node import Failed, Lost
from launcher.remote.state_mirror import Mirror
from launcher.running import connect, start
from launcher.running.run_control import Everywhere
from launcher.transfer import fetch

_LOOK_SECONDS = 1.0
_DOUBT_SECONDS = 4.0  # that a host may be away without a word: another frontend left, perhaps
_STUCK_SECONDS = 20.0  # without a beat: a learner whose others are gone waits in its all-reduce
_AGAIN_SECONDS = 30.0  # between attempts to start learners elsewhere
_STARTING_SECONDS = 120.0  # that learners may take until their first beat
_END_SECONDS = 20.0  # that learners have to end before others take their place
_SETTLE_SECONDS = 3.0  # until a host that is back has said how all its processes are
Say = Callable[[str], None]


class Recovery:
    """Of one run."""

    def __init__(
        self,
        everywhere: Everywhere,
        mirror: Mirror,
        config: LauncherConfig,
        workers: Sequence[Worker],
        grounds: Grounds,
        log_max_mb: float,
        say: Say,
    ):
        self._everywhere, self._mirror, self._config = everywhere, mirror, config
        self._run, self._hosts = everywhere.run, everywhere.hosts
        self._workers, self._grounds, self._log_max_mb = list(workers), grounds, log_max_mb
        self._say = say
        self._looked = 0.0
        self._away: dict[str, float] = {}  # since when, of places that do not answer
        self._said: set[str] = set()  # those of them that were spoken of
        self._back: dict[str, float] = {}  # when its processes are to be looked at
        self._told = ""
        self._not_before = 0.0
        self._lock: int | None = None

    @property
    def starts_learners_again(self) -> bool:
        """Whether learners whose supervisor is gone are no reason to end."""
        record = self._run.record
        where = record.place(LEARNERS) if record else ""
        return self._config.restart_learners and where != "" and self._is_ours()

    def look(self) -> None:
        """Mends what there is to mend; called again and again."""
        record = self._run.record
        now = time.monotonic()
        if not self._hosts.there or record is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        with contextlib.suppress(OSError):  # for processes here whose learners are elsewhere
            (self._run.folder / "news").touch(mode=0o600)
        if new := set(record.targets) - set(self._hosts.there):
            self._join(record, new)
        self._look_at_hosts(record, now)
        if not self._is_ours():
            self._back.clear()
            return
        for where in [p for p, due in self._back.items() if due < now]:
            del self._back[where]
            self._restore(where)
        self._look_at_learners(record, now)

    def _is_ours(self) -> bool:
        """One frontend of those that follow a run mends it."""
        if self._lock is None:
            try:
                lock = os.open(self._run.folder / "mends", os.O_CREAT | os.O_RDWR, 0o600)
            except OSError:
                return False
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock  # to the end of this process
        return True

    # -- hosts

    def _join(self, record: Record, new: set[str]) -> None:
        """Hosts that another frontend added."""
        known = connect.targets_of(record)
        self._hosts.targets |= {where: known[where] for where in new}
        self._hosts.reach(self._say, lambda where: record.pythons.get(where, []), new)
        for where in new:
            self._run.see(where, self._hosts.there[where].why)
            self._hosts.there[where].keep(self._mirror)

    def _look_at_hosts(self, record: Record, now: float) -> None:
        for where in self._hosts.there:
            why = self._run.away(where)
            if not why:
                since = self._away.pop(where, now)
                if where in self._said:
                    self._said.remove(where)
                    self._say(f"{where} answers again, after {now - since:.0f} s")
                    self._back[where] = now + _SETTLE_SECONDS
                continue
            silent = now - self._away.setdefault(where, now)
            if silent > _DOUBT_SECONDS and where not in self._said:
                self._said.add(where)
                there = [p["name"] for p in record.processes if p["place"] == where]
                there += ["a learner"] * (where in record.learner_places[1:])
                self._say(f"{where} is away, with {_some(there)} ({why}); it is asked again")

    def _restore(self, where: str) -> None:
        """What should run on a host that is back, and does not."""
        record = self._run.record
        assert record
        states = self._run.states()
        ordered = {n for n in states if (self._run.folder / n / "stop").exists()}
        there = {
            name: state["state"]
            for name, state in states.items()
            if (state.get("place") or "") == where and name not in {*ordered, LEARNERS}
        }
        if {"ending", "saving"} & set(there.values()):  # because the learners ended
            self._back[where] = time.monotonic() + _SETTLE_SECONDS
            return
        gone = {n for n, state in there.items() if state in ("lost", "starting", "stopped")}
        try:
            for name in ordered & {p["name"] for p in record.processes if p["place"] == where}:
                self._hosts.call(where, "order", what="save", name=name)  # it did not hear it
            if not self._hosts.call(where, "knows", start=record.id):
                start.begin(self._run, self._hosts, record, [where], self._say)
                self._mirror.found(where)
            if where != record.place(LEARNERS):  # of before it was away
                self._hosts.call(where, "order", what="now", name=LEARNERS)
            if where not in record.learner_places:
                self._hosts.call(where, "end_learners", start=record.id)
            if processes := self._again(record, gone):
                start.add(self._run, self._hosts, processes, self._config, record, self._log_max_mb)
                names = [process.name for process in processes]
                self._say(f"{where}: started again: {_some(names)}")
        except (Lost, Failed) as error:
            self._say(str(error))

    def _again(self, record: Record, names: set[str]) -> list[Process]:
        """As they were started, on what their hosts are now; those of rows that are there no more
        stay away."""
        rows = [*self._workers, *connect.rows_of(record)]  # --apply may have added some
        self._grounds = connect.survey(rows, self._hosts, self._config.deploy, self._say)
        found = []
        for entry in record.processes:
            alike = [w for w in rows if process_plan.kind(w) == entry["kind"]]
            if entry["name"] in names and alike:
                row = dataclasses.replace(alike[0], job=entry["job"])
                found.append(
                    process_plan.again(
                        entry["name"], row, self._config, record.flags, self._grounds
                    )
                )
        return found

    # -- learners

    def _look_at_learners(self, record: Record, now: float) -> None:
        if now < self._not_before:
            return
        where, places = record.place(LEARNERS), record.learner_places
        lost = self._run.states()[LEARNERS]["state"] == "lost"
        back = where != "" and lost and not self._run.away(where)
        gone = {p for p in places if now - self._away.get(p, now) > self._config.lost_secs}
        if not back and not (gone and self._are_stuck(record)):
            return
        if not self._config.restart_learners:
            if where in gone:
                self._tell_once(
                    f"{where} stays away, with the learners: the run waits for it; with "
                    f"--restart_learners they would start again on others"
                )
            return
        learners = [worker for worker in self._workers if worker.job == "learner"]
        left = [w for w in learners if not self._is_away(place(w)) and place(w) in places]
        if not left:
            self._tell_once("no learner's host answers: the run waits for one of them")
            return
        names = [worker.ip for worker in left]
        why = f"{_some(sorted(gone))} stays away"
        if back:
            why = f"{where} is back without its learners"
        self._say(f"{why}: learners start again on {_some(names)}, from what was saved")
        try:
            self._start_learners_on(left, record)
        except (Lost, Failed, OSError) as error:
            self._not_before = now + _AGAIN_SECONDS
            self._say(f"{error}; it is tried again in {_AGAIN_SECONDS:g} s")

    def _is_away(self, where: str) -> bool:
        return where != "" and (where in self._away or self._run.away(where) != "")

    def _are_stuck(self, record: Record) -> bool:
        """Whether the learners do not get on; a host that is away from us may serve them well."""
        state = self._run.states()[LEARNERS]
        where = record.place(LEARNERS)
        if where in self._away:
            others = [w for w in record.learner_places if w != where and w not in self._away]
            return not any(self._ranks_get_on(other, record) for other in others)
        if state["state"] in ("running", "saving", "ending"):
            return state.get("silent", 0.0) > _STUCK_SECONDS
        return state["state"] not in ("ended", "stopped")

    def _ranks_get_on(self, where: str, record: Record) -> bool:
        try:
            silent = self._hosts.call(where, "ranks_silent")
        except (Lost, Failed):
            return False
        if silent is None:  # they may be starting
            return time.time() - record.time < _STARTING_SECONDS
        return silent < _STUCK_SECONDS

    def _start_learners_on(self, left: Sequence[Worker], record: Record) -> None:
        """From the last checkpoint."""
        self._end_learners(record)
        for where in {place(worker) for worker in left} - {""}:
            if not self._hosts.call(where, "knows", start=record.id):  # it was booted meanwhile
                start.begin(self._run, self._hosts, record, [where], self._say)
                self._mirror.found(where)
        others = [worker for worker in self._workers if worker.job != "learner"]
        rows = [*left, *[dataclasses.replace(worker, learner=-1) for worker in others]]
        first = self._grounds(left[0])
        was = record.place(LEARNERS)
        logdir = record.flags["logdir"]
        shared = record.shared
        if first.place != was:
            logdir, shared = self._bring_what_was_saved(record, first)
            if not logdir:
                self._not_before = time.monotonic() + _AGAIN_SECONDS
                return
        elif first.place and not shared:
            fetch.give_back(self._hosts, first.place, Path(record.logdir), logdir)
        flags = record.flags | {"logdir": logdir}
        learners = process_plan.make(rows, self._config, flags, self._grounds)[0]
        now = dataclasses.replace(
            record,
            flags=process_plan.of_all(rows, flags, self._grounds),
            learners=learners.command,
            shared=shared,
            learner_places=start.learner_places(learners),
        )
        described = start.describe(learners, first.place, now)
        now.processes[0] = described
        self._run.write(now)
        self._workers = rows
        start.add(
            self._run, self._hosts, [learners], self._config, now, self._log_max_mb, self._say
        )
        self._mirror.copy(connect.copies(now))
        self._back[first.place] = time.monotonic() + _SETTLE_SECONDS  # actors ended with them

    def _end_learners(self, record: Record) -> None:
        """All that is left of them, on every host that answers."""
        self._everywhere.order("now", LEARNERS)
        until = time.monotonic() + _END_SECONDS
        while time.monotonic() < until:
            if self._run.states()[LEARNERS]["state"] in (*FINAL, "lost", "away"):
                break
            time.sleep(0.1)
        for where in record.learner_places:
            if where not in self._away:
                self._call(where, "end_learners", start=record.id)

    def _bring_what_was_saved(self, record: Record, first: Any) -> tuple[str, bool]:
        """To the new first host: its folder there, and whether that is ours; empty: it cannot."""
        here = Path(record.logdir)
        if not first.place:
            return str(here), True
        grounds = [self._grounds(worker) for worker in self._workers]
        was = next((g for g in grounds if g.place == record.place(LEARNERS)), first)
        folder = Path(record.flags["logdir"])
        there = str(folder)
        if folder.is_relative_to(was.workdir):  # as it was named there
            there = first.path(str(folder.relative_to(was.workdir)))
        if connect.is_shared(self._hosts, first.place, str(here), here, "is-shared"):
            return str(here), True
        if not self._config.mirror_logdir:
            self._tell_once(
                "what was saved is on the host that is away: with --mirror_logdir it would be "
                "here, too; the run waits for that host"
            )
            return "", False
        fetch.push(self._hosts, first.place, here, there)
        return there, False

    def _call(self, where: str, op: str, **said: Any) -> None:
        try:
            self._hosts.call(where, op, **said)
        except (Lost, Failed) as error:
            self._say(str(error))

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._say(sentence)


def _some(names: Sequence[str]) -> str:
    """In a sentence."""
    return (
        ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"
    )
