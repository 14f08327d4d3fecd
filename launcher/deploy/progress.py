"""What many hosts do at the same time, shown while it goes on: `deploy` fills it.

In a terminal a line for each of a few hosts, one for all of many; elsewhere plain lines.
"""

import threading
import time
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

_FEW = 16  # that each have a line
_SAY_SECONDS = 5.0  # between two lines about many, where there is no terminal


class Progress:
    """Of some hosts, from `with` to the end of it. Their threads call it."""

    def __init__(self, names: Sequence[str], console: Console | None = None):
        self._console = console or Console(soft_wrap=True)
        self._news = dict.fromkeys(names, "")
        self._ended: dict[str, bool] = {}  # and whether all is well
        self._newest = ""
        self._counted: dict[str, float] = {}  # when
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()
        self._few = len(names) <= _FEW
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._shown,
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def tell(self, name: str, news: str, counts: bool = False) -> None:
        """What one of them does now; `counts`: what was told last has just got on a little."""
        with self._lock:
            if self._news[name] == news:
                return
            self._news[name], self._newest = news, f"{name}: {news}"
            now = time.monotonic()
            if counts and now - self._counted.get(name, 0.0) < _SAY_SECONDS:
                return
            self._counted[name] = now
            if not self._live and self._few:
                self._print(self._newest)
            self._say_now_and_then()

    def end(self, name: str, why_not: str) -> None:
        """One of them is done; or it failed."""
        with self._lock:
            self._ended[name] = not why_not
            if why_not:
                self._print(f"{name} FAILED: {why_not}")
            elif not self._live and self._few:
                self._print(f"{name}: ready")
            self._say_now_and_then()

    def note(self, text: str) -> None:
        """What is to be read afterwards, too."""
        with self._lock:
            self._print(text)

    def _say_now_and_then(self) -> None:
        now = time.monotonic()
        if not self._live and not self._few and now - self._said > _SAY_SECONDS:
            self._said = now
            self._print(self._line())

    def _print(self, text: str) -> None:
        self._console.print(Text(text))

    def _line(self) -> str:
        failed = sum(not well for well in self._ended.values())
        done, going = len(self._ended) - failed, len(self._news) - len(self._ended)
        failures = f", {failed} failed" if failed else ""
        seconds = time.monotonic() - self._began
        return f"ready: {done}{failures}, {going} to go ({seconds:.0f} s); {self._newest}"

    def _shown(self) -> RenderableType:
        if not self._few:
            return Text(self._line(), no_wrap=True, overflow="ellipsis")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        words = {True: ("ready", "green"), False: ("FAILED", "bold red")}
        for name, news in list(self._news.items()):
            word, style = words.get(self._ended.get(name), (news or "...", ""))  # type: ignore[arg-type]
            table.add_row(name, Text(word, style=style))
        return table
