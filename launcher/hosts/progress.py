"""A live display of what many hosts do at the same time; `deploy` updates it.

A terminal shows one line per host if there are few, and one line for all if there are many. If the
output is not a terminal, lines are printed.
"""

import threading
import time
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from impala_mm.config.messages import escape, log_line

_MAX_LINES = 16  # hosts; with more, one line shows all
_PRINT_SECONDS = 5.0  # between two printed lines about many hosts, or about one count


class HostsProgress:
    """The progress of some hosts, shown within a `with` block; the hosts' threads update it."""

    def __init__(self, names: Sequence[str], console: Console | None = None):
        self._console = console or Console(soft_wrap=True)
        self._lines = dict.fromkeys(names, "")
        self._succeeded: dict[str, bool] = {}  # of hosts that are done: whether they are ready
        self._last_line = ""
        self._last_count_time: dict[str, float] = {}  # of the last count that was printed, by host
        self._started = self._printed = time.monotonic()
        self._lock = threading.Lock()
        self._is_line_per_host = len(names) <= _MAX_LINES
        self._live: Live | None = None

    def __enter__(self) -> "HostsProgress":
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, name: str, line: str, is_count: bool = False) -> None:
        """Show what a host does now; `is_count`: only a count has changed since the last call."""
        with self._lock:
            if self._lines[name] == line:
                return
            self._lines[name], self._last_line = line, f"{name}: {line}"
            now = time.monotonic()
            if is_count and now - self._last_count_time.get(name, 0.0) < _PRINT_SECONDS:
                return
            self._last_count_time[name] = now
            if not self._live and self._is_line_per_host:
                self._print(self._last_line)
            self._print_summary_if_due()

    def finish(self, name: str, error: str) -> None:
        """Show that a host is ready, or the error if it failed."""
        with self._lock:
            self._succeeded[name] = not error
            if error:
                self._print(f"{name} FAILED: {error}")
            elif not self._live and self._is_line_per_host:
                self._print(f"{name}: ready")
            self._print_summary_if_due()

    def note(self, text: str) -> None:
        """Print a line that stays on the screen after the display ends."""
        with self._lock:
            self._print(text)

    def _print_summary_if_due(self) -> None:
        now = time.monotonic()
        if not self._live and not self._is_line_per_host and now - self._printed > _PRINT_SECONDS:
            self._printed = now
            self._print(self._summary())

    def _print(self, text: str) -> None:
        self._console.print(Text(escape(text)))

    def _summary(self) -> str:
        failed = sum(not succeeded for succeeded in self._succeeded.values())
        done, left = len(self._succeeded) - failed, len(self._lines) - len(self._succeeded)
        failures = f", {failed} failed" if failed else ""
        seconds = time.monotonic() - self._started
        return f"ready: {done}{failures}, {left} left ({seconds:.0f} s); {self._last_line}"

    def _render(self) -> RenderableType:
        if not self._is_line_per_host:
            return Text(escape(self._summary()), no_wrap=True, overflow="ellipsis")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        words = {True: ("ready", "green"), False: ("FAILED", "bold red")}
        for name, news in list(self._lines.items()):
            word, style = words.get(self._succeeded.get(name), (news or "...", ""))  # type: ignore[arg-type]
            table.add_row(name, Text(log_line(word), style=style))
        return table
