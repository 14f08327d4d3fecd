"""What a frontend mends while it follows a run: hosts that come back, learners' hosts that do not.

A host that is away is asked again and again (`there`). Once it answers, what it should run and does
not is started again. Where a learner's host stays away and the learners do not get on without it,
they start again on the hosts that are left, from the last checkpoint, if --restart_learners says so.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher import plan, start, touch
from launcher.config import LauncherConfig
from launcher.everywhere import Everywhere
from launcher.ground import Grounds
from launcher.host.registry import Record
from launcher.host.task import FINAL, LEARNERS
from launcher.hosts import place
from launcher.mirror import Mirror
from launcher.plan import Process
from launcher.there import Failed, Lost
from launcher.workers import Worker

_LOOK_SECONDS = 1.0
_STUCK_SECONDS = 20.0  # without a beat: a learner whose others are gone waits in its all-reduce
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
        self._back: dict[str, float] = {}  # when its processes are to be looked at
        self._told = ""

    def look(self) -> None:
        """Mends what there is to mend; called again and again."""
        record = self._run.record
        now = time.monotonic()
        if not self._hosts.there or record is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        self._look_at_hosts(record, now)
        for where in [p for p, due in self._back.items() if due < now]:
            del self._back[where]
            self._restore(where)
        if self._config.restart_learners:
            self._look_at_learners(record, now)

    # -- hosts

    def _look_at_hosts(self, record: Record, now: float) -> None:
        for where in self._hosts.there:
            why = self._run.away(where)
            if why and where not in self._away:
                self._away[where] = now
                names = [p["name"] for p in record.processes if p["place"] == where]
                what = f"{names[0]} goes" if len(names) == 1 else f"its {len(names)} processes go"
                self._say(f"{why}; if it lives, {what} on; it is asked again and again")
            elif not why and where in self._away:
                seconds = now - self._away.pop(where)
                self._say(f"{where} answers again, after {seconds:.0f} s")
                self._back[where] = now + _SETTLE_SECONDS

    def _restore(self, where: str) -> None:
        """What should run on a host that is back, and does not."""
        record = self._run.record
        assert record
        states = self._run.states()
        ordered = {n for n in states if (self._run.folder / n / "stop").exists()}
        gone = {
            name
            for name, state in states.items()
            if state.get("place") == where
            and state["state"] in ("lost", "starting", "stopped")
            and name not in ordered
            and name != LEARNERS
        }
        try:
            if not self._hosts.call(where, "knows", start=record.id):
                start.begin(self._run, self._hosts, record, [where], self._say)
                self._mirror.found(where)
            if where != record.place(LEARNERS):  # of before it was away
                self._hosts.call(where, "order", what="now", name=LEARNERS)
            processes = [p for p in self._planned(record) if p.name in gone]
            if processes:
                start.add(
                    self._run, self._hosts, processes, self._config, record, self._log_max_mb
                )
                self._say(f"{where}: {len(processes)} processes started again")
        except (Lost, Failed) as error:
            self._say(str(error))

    def _planned(self, record: Record) -> list[Process]:
        """All but the learners, as a record names them."""
        hosts_now = touch.survey(self._workers, self._hosts, self._config.deploy, self._say)
        self._grounds = hosts_now
        made = plan.make(self._workers, self._config, record.flags, hosts_now)[1:]
        names = iter([p["name"] for p in record.processes if p["name"] != LEARNERS])
        return [dataclasses.replace(process, name=name) for process, name in zip(made, names)]

    # -- learners

    def _look_at_learners(self, record: Record, now: float) -> None:
        learners = [worker for worker in self._workers if worker.job == "learner"]
        there = set(record.learner_places)
        gone = {w for w in there if now - self._away.get(w, now) > self._config.lost_secs}
        if not gone or not self._are_stuck(record):
            return
        left = [w for w in learners if place(w) not in self._away and place(w) in there]
        if not left:
            self._tell_once("no learner's host answers: the run waits for one of them")
            return
        self._start_learners_on(left, record, gone)

    def _are_stuck(self, record: Record) -> bool:
        """Whether the learners do not get on; a host that is away from us may serve them well."""
        state = self._run.states()[LEARNERS]
        where = record.place(LEARNERS)
        if where in self._away:
            others = [w for w in record.learner_places if w != where and w not in self._away]
            return not any(self._ranks_get_on(other) for other in others)
        if state["state"] in ("running", "saving", "ending"):
            return state.get("silent", 0.0) > _STUCK_SECONDS
        return state["state"] not in ("ended", "stopped")

    def _ranks_get_on(self, where: str) -> bool:
        try:
            silent = self._hosts.call(where, "ranks_silent")
        except (Lost, Failed):
            return False
        return silent is not None and silent < _STUCK_SECONDS

    def _start_learners_on(self, left: Sequence[Worker], record: Record, gone: set[str]) -> None:
        """From the last checkpoint."""
        names = ", ".join(sorted(gone))
        hosts = "a learner" if len(left) == 1 else f"{len(left)} learners"
        self._say(f"{names} stays away: {hosts} of the others start again, from what was saved")
        self._end_learners(record)
        others = [worker for worker in self._workers if worker.job != "learner"]
        rows = [*left, *[dataclasses.replace(worker, learner=-1) for worker in others]]
        first = self._grounds(left[0])
        was = record.place(LEARNERS)
        logdir = record.flags["logdir"]
        shared = record.shared
        if first.place != was:
            logdir, shared = self._bring_what_was_saved(record, first)
            if not logdir:
                return
        flags = record.flags | {"logdir": logdir}
        learners = plan.make(rows, self._config, flags, self._grounds)[0]
        now = dataclasses.replace(
            record,
            flags=plan.of_all(rows, flags, self._grounds),
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
        self._mirror.copies(touch.copies(now))
        self._back[first.place] = time.monotonic() + _SETTLE_SECONDS  # actors ended with them
        self._back.pop("", None)

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
        """To the new first host; its folder there, and whether that is ours. Empty: it cannot be."""
        here = Path(record.logdir)
        if not first.place:
            return str(here), True
        there = first.path(f"runs/{here.name}")
        if touch.is_shared(self._hosts, first.place, str(here), here, "is-shared"):
            return str(here), True
        if not self._config.mirror_logdir:
            self._tell_once(
                "what was saved is on the host that is away: with --mirror_logdir it would be "
                "here, too; the run waits for that host"
            )
            return "", False
        from launcher import fetch  # noqa: PLC0415

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
