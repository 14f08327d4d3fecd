"""A run on all of its machines: orders, and its end, reach every one that is in touch."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from launcher.node import tmux as windows
from launcher.node.run_registry import Record, Run
from launcher.node.task import FINAL, LEARNERS, write_json
from launcher.remote.hosts import Hosts, tmux
from launcher.remote.remote_node import Failed, Lost
from launcher.running.pending_stops import Unfinished

_GOODBYE_SECONDS = 20.0  # that actors have to end once the learners have
Say = Callable[[str], None]


class Everywhere:
    """One run."""

    def __init__(self, run: Run, hosts: Hosts):
        self.run, self.hosts = run, hosts

    def order(self, what: str, name: str = "") -> None:
        """ "save" or "now", to one process or to all; who does not hear it is asked again later."""
        record = self.run.record
        place = record.place(name) if record and name else ""
        if place:
            (self.run.folder / name).mkdir(exist_ok=True, mode=0o700)
        self.run.order(what, name)
        places = [place] if name else list(self.hosts.there)
        self._each("order", [p for p in places if p], what=what, name=name)

    def finish(self, say: Say) -> list[str]:
        """Ends what does not end with the learners; places that did not answer are left over."""
        record = self.run.record
        if record is None:
            return []
        self.run.kill(lost=True)
        learners = record.place(LEARNERS)
        if learners:
            self.run.order("now")
        self._each("order", [p for p in self.hosts.there if p != learners], what="now", name="")
        self._each("kill", list(self.hosts.there), lost=True)
        until = time.monotonic() + _GOODBYE_SECONDS
        while self._somebody_answers_and_goes_on() and time.monotonic() < until:
            time.sleep(0.1)
        killed = self.run.kill() if self.run.goes_on() else 0
        if self._somebody_answers_and_goes_on():
            killed += sum(self._each("kill", list(self.hosts.there)).values())
        if record.targets:
            self._each("end_learners", list(self.hosts.there), start=record.id)
            self.hosts.here.end_learners(record.id)
        if killed:
            say(f"{killed} processes did not end when they were told to, and were killed")
        return self.leave_unfinished(record)

    def undo(self, record: Record) -> None:
        """A start that failed half way."""
        self.run.order("now")
        self._each("finish", list(self.hosts.there), over=[record.id], within=_GOODBYE_SECONDS)
        until = time.monotonic() + _GOODBYE_SECONDS
        while any(s["state"] in ("running", "ending") for s in self.run.states().values()):
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        self.run.kill()
        self.forget(record)

    def leave_unfinished(self, record: Record) -> list[str]:
        """Places that do not answer: what goes on there ends when they do."""
        states = list(self.run.states().values())
        left = {s["place"] for s in states if s.get("place") and s["state"] == "away"}
        for place in left:
            Unfinished().add(place, record.id)
        for state in states:  # whatever it does there: this run is over
            if state["state"] == "away":
                folder = self.run.folder / state["name"]
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "state.json", state | {"state": "lost", "supervisor": None})
        return sorted(left)

    def forget(self, record: Record, stale: bool = False) -> None:
        """That it ever was, its windows included."""
        self._each("forget", list(self.hosts.there), start=record.id)
        self.run.forget()
        if record.socket and not stale:
            windows.Session(self.run.name, tmux(record.socket)).close()

    def end_leftovers(self, say: Say) -> None:
        """Of earlier starts, on hosts that did not answer then and do now."""
        unfinished = Unfinished()
        for place in unfinished.places():
            there = self.hosts.there.get(place)
            if there is None or there.why:
                continue
            with contextlib.suppress(Lost, Failed):
                there.call("finish", over=unfinished.of(place), within=60)
                unfinished.done(place)
                say(f"{place} answers again: what an earlier run had left there has ended")

    def _somebody_answers_and_goes_on(self) -> bool:
        return any(self._answers_and_goes_on(state) for state in self.run.states().values())

    def _answers_and_goes_on(self, state: dict[str, Any]) -> bool:
        if state["state"] != "away":
            return state["state"] not in (*FINAL, "lost")
        there = self.hosts.there.get(state["place"])
        return there is not None and not there.why  # another frontend left it: it speaks to us soon

    def _each(self, op: str, places: list[str], **arguments: Any) -> dict[str, int]:
        """Of those that are in touch: what they returned, if it is a number."""
        found = self.hosts.each(lambda place: self.hosts.call(place, op, **arguments), places)
        return {place: result for place, result in found.items() if isinstance(result, int)}
