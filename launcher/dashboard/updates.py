"""Reads runs at regular times, and tells the pages that are open what has changed.

A thread reads a run every two seconds while a page shows it, and less often otherwise, for its
events. A page that does not read what it is told is dropped, and connects again.
"""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from impala_mm.records.run_contents import PANELS
from impala_mm.runtime.safe_files import to_json
from launcher.dashboard.host_links import HostLinks
from launcher.dashboard.row_history import Row, RowHistory
from launcher.dashboard.run_finder import FoundRun, RunFinder, describe_settings
from launcher.dashboard.run_status import describe_error, state_of_folder
from launcher.dashboard.watched_run import WatchedRun
from launcher.follow import status
from launcher.supervise.task import FINAL_STATES

PERIOD_SECONDS = 2.0
_UNSEEN_SECONDS = 10.0  # between two looks at a run that is running and that no page shows
_LIST_SECONDS = 4.0  # between two looks at all runs, while a page is open
_MOST_PAGES = 32
_MOST_MESSAGES = 32  # that wait for a page before it is dropped
_MOST_WATCHED = 4  # folders without processes that are kept although no page shows them
_BRIEF_KEYS = ("frames", "seconds", *(panel.key for panel in PANELS))
_BRIEF_NUMBERS = ("frames", "seconds", "frames_per_second", "policy_lag")  # of the last row
_ALWAYS_SHOWN = ("level_name", "algorithm")  # settings that the list names of each run
_BRIEF_BINS, _BRIEF_BYTES = 60, 1 << 18


class TooManyPages(Exception):
    """An error: more pages are open than are served."""


class _Page:
    """An open page: which run it shows, and the messages that it has not read yet."""

    def __init__(self, key: str):
        self.key, self.is_dropped = key, False
        self.known: dict[str, str] = {}  # what it was told last, by event, as JSON
        self.processes: dict[str, str] = {}  # the states that it was told last, by process
        self._messages: queue.Queue[str] = queue.Queue(_MOST_MESSAGES)

    def tell(self, event: str, content: Any) -> None:
        """Tell it what has changed."""
        self._put(event, to_json(content))

    def _put(self, event: str, text: str) -> None:
        try:
            self._messages.put_nowait(f"event: {event}\ndata: {text}\n\n")
        except queue.Full:
            self.is_dropped = True

    def tell_if_changed(self, event: str, text: str) -> None:
        """Tell it this JSON, unless it knows it already."""
        if self.known.get(event) != text:
            self.known[event] = text
            self._put(event, text)

    def tell_processes(self, states: dict[str, tuple[str, str]]) -> None:
        """Tell it the states that it does not know: by name, without and with their uptime."""
        changed = [
            text for name, (state, text) in states.items() if self.processes.get(name) != state
        ]
        self.processes = {name: state for name, (state, _) in states.items()}
        order = to_json(list(states))
        self._put("processes", f'{{"order": {order}, "changed": [{", ".join(changed)}]}}')

    def beat(self) -> None:
        """Tell it that the thread which reads runs is alive, unless other messages do."""
        if self._messages.empty():
            self._put("beat", "{}")

    def messages(self) -> Iterator[str]:
        """Yield messages as they come, until the page is dropped."""
        while not self.is_dropped:
            try:
                yield self._messages.get(timeout=PERIOD_SECONDS)
            except queue.Empty:
                yield ":\n\n"  # no event: it finds out whether the page is still there


class Updates:
    """All runs of a dashboard, and the pages that show them."""

    def __init__(self, folder: Path, links: HostLinks | None = None):
        """Read the runs in `folder`; `links` connects to the hosts of those that pages show."""
        self.folder, self._finder, self._links = folder, RunFinder(folder), links
        self._lock = threading.RLock()
        self._watched: dict[str, WatchedRun] = {}
        self._brief: dict[str, RowHistory] = {}
        self._pages: list[_Page] = []
        self._listed = 0.0
        self._wakes = threading.Event()
        self._reported: dict[str, str] = {}  # the error that was printed last, by what failed

    def start(self) -> None:
        """Start the thread that reads runs."""
        threading.Thread(target=self._loop, name="updates", daemon=True).start()

    def find(self) -> dict[str, FoundRun]:
        """Return all runs by key."""
        with self._lock:
            return self._finder.find()

    def find_one(self, key: str) -> FoundRun:
        """Return one run. Raises NoSuchRun."""
        with self._lock:
            return self._finder.get(key)

    def open_page(self, key: str) -> Iterator[str]:
        """Return the messages for a page that shows a run, or all runs if `key` is empty.

        Raises TooManyPages.
        """
        page = _Page(key)
        with self._lock:
            if len(self._pages) >= _MOST_PAGES:
                raise TooManyPages(f"{_MOST_PAGES} pages are open already: close one")
            self._pages.append(page)
            self._listed = 0.0
        self._wakes.set()
        return self._messages(page)

    def _messages(self, page: _Page) -> Iterator[str]:
        try:
            yield "retry: 2000\n\n"
            yield from page.messages()
        finally:
            with self._lock:
                self._pages = [each for each in self._pages if each is not page]

    def with_run(self, key: str, use: Callable[[WatchedRun], Any]) -> Any:
        """Return what `use` returns for a run that was read at most some seconds ago.

        Raises NoSuchRun.
        """
        with self._lock:
            return use(self._read(key))

    def _read(self, key: str) -> WatchedRun:
        watched = self._watch(key)
        if time.monotonic() - watched.updated > PERIOD_SECONDS:
            self._update(watched)
        return watched

    def known_runs(self) -> dict[str, WatchedRun]:
        """Return the runs whose processes are known, by name; of one name, by their folders."""
        with self._lock:
            runs = {key: run for key, run in self._finder.find().items() if run.run}
            names = Counter(run.name for run in runs.values())
            return {
                run.name if names[run.name] == 1 else str(run.logdir): self._read(key)
                for key, run in runs.items()
            }

    def brief_columns(self, key: str, metric: str) -> dict[str, list[float | None]]:
        """Return the coarse curve of one of a run's metrics. Raises NoSuchRun."""
        with self._lock:
            history = self._brief_history(self._finder.get(key))
            columns = history.columns(("frames", "seconds", metric))
            return {name: column["mean"] for name, column in columns.items()}

    # -- the thread

    def _loop(self) -> None:
        while True:
            began = time.monotonic()
            try:
                with self._lock:
                    self._look()
            except Exception as error:  # pages hear nothing, and say that they reconnect
                self._report("the runs cannot be read", error)
            spent = time.monotonic() - began
            self._wakes.wait(max(PERIOD_SECONDS - spent, PERIOD_SECONDS / 2))
            self._wakes.clear()

    def _look(self) -> None:
        """Read the runs that are due, and tell pages."""
        self._pages = [page for page in self._pages if not page.is_dropped]
        found, now = self._finder.find(), time.monotonic()
        shown = {page.key for page in self._pages}
        for key, run in found.items():
            watched = self._watched.get(key)
            is_new = watched.found != run if watched else run.run
            is_due = watched and run.run and now - watched.updated > _UNSEEN_SECONDS
            if key in shown or is_new or is_due:
                self._update(self._watch(key))
        if self._links:
            self._links.keep(
                run.run_name for k, run in found.items() if k in shown and run.run_name
            )
        if self._pages and now - self._listed > _LIST_SECONDS:
            self._listed = now
            listed = to_json(self._summarise(list(found.values())))
            for page in self._pages:
                page.tell_if_changed("runs", listed)
        self._forget(found, shown)
        for page in self._pages:
            page.beat()

    def _report(self, what: str, error: Exception) -> None:
        """Print an error, once until another one follows."""
        text = describe_error(error)
        if self._reported.get(what) != text:
            self._reported[what] = text
            print(f"[dashboard] {what}: {text}", file=sys.stderr)

    def _watch(self, key: str) -> WatchedRun:
        """Return a run that is read from now on. Raises NoSuchRun."""
        run = self._finder.get(key)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = WatchedRun(run, self.folder)
        watched.found = run  # a run that ends keeps its events
        return watched

    def _update(self, watched: WatchedRun) -> None:
        """Read a run, and tell its pages; what cannot be read becomes its status."""
        pages = [page for page in self._pages if page.key == watched.found.key]
        try:
            rows, hosts = watched.update()
            if pages:
                self._tell(pages, watched, rows, hosts)
        except Exception as error:  # whatever is wrong with a run's files, others are shown
            self._report(f"{watched.found.logdir} cannot be read", error)
            watched.fail(error)
            for page in pages:
                page.tell_if_changed("about", to_json(watched.describe()))

    def _tell(
        self, pages: list[_Page], watched: WatchedRun, rows: list[Row], hosts: list[Row]
    ) -> None:
        about, events = to_json(watched.describe()), to_json(watched.describe_events())
        # The page counts a process's uptime itself.
        states = {
            p["name"]: (to_json(p | {"up": None}), to_json(p)) for p in watched.status["processes"]
        }
        for page in pages:
            is_new = "about" not in page.known
            if rows and not is_new:
                page.tell("rows", [_numbers(row) for row in rows])
            if hosts and not is_new:
                page.tell("hosts", [_numbers(row) for row in hosts])
            page.tell_if_changed("about", about)
            page.tell_if_changed("events", events)
            page.tell_processes(states)

    def _forget(self, found: dict[str, FoundRun], shown: set[str]) -> None:
        """Forget runs that are gone, and folders that no page has shown lately."""
        for key in set(self._watched) | set(self._brief):
            if key not in found:
                self._watched.pop(key, None)
                self._brief.pop(key, None)
        idle = [
            key
            for key, watched in self._watched.items()
            if key not in shown and not watched.found.run
        ]
        for key in sorted(idle, key=lambda k: self._watched[k].updated)[:-_MOST_WATCHED]:
            del self._watched[key]

    # -- the list of runs

    def _brief_history(self, run: FoundRun) -> RowHistory:
        """Return the coarse history of a run, up to its last row."""
        if run.key not in self._brief:
            path = run.logdir / "metrics.jsonl"
            self._brief[run.key] = RowHistory(path, _BRIEF_BINS, _BRIEF_KEYS, _BRIEF_BYTES)
        self._brief[run.key].read()
        return self._brief[run.key]

    def _summarise(self, runs: list[FoundRun]) -> list[dict[str, Any]]:
        """Return what the list of runs shows of each, with the settings in which they differ."""
        settings = {run.key: describe_settings(run.logdir) for run in runs}
        values = {item for each in settings.values() for item in each.items()}
        counts = Counter(name for name, _ in values)
        shown = {name for name, number in counts.items() if number > 1} | set(_ALWAYS_SHOWN)
        return [
            self._summarise_one(run)
            | {"settings": {n: v for n, v in settings[run.key].items() if n in shown}}
            for run in runs
        ]

    def _summarise_one(self, run: FoundRun) -> dict[str, Any]:
        watched, row = self._watched.get(run.key), self._brief_history(run).last
        known = watched.status if watched else {"state": state_of_folder(run)}
        over = status.describe_end(row) if known["state"] in FINAL_STATES else ""
        return {
            "key": run.key,
            "name": run.name,
            "state": known["state"],
            "logdir": str(run.logdir),
            "elsewhere": run.is_elsewhere,
            "verdict": str(known.get("verdict") or over or row.get("verdict", "")),
            **{name: row.get(name) for name in _BRIEF_NUMBERS},
        }


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not isinstance(value, str)}
