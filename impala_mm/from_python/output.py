"""The lines that a run prints, shown where it was started: its progress in one line.

All others are printed below each other.
"""

import re
import shutil
import sys
from collections import deque
from collections.abc import Callable
from typing import IO

_PROGRESS = re.compile(r"\[learner(?: 0)?\] [\d,]+ frames \|")
_PREFIX = re.compile(r"\[[a-z]+(?: \d+)?\] ")
_KEPT_LINES = 1000


class Output:
    """The lines of a run: kept, and printed if `shows`."""

    def __init__(self, shows: bool):
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._shows, self._width = shows, 0  # the width of the progress line on the screen

    def read(self, stream: IO[str]) -> None:
        """Read and show lines until the stream ends."""
        for line in stream:
            self.lines.append(line.rstrip("\n"))
            self._try(self._show, self.lines[-1])
        self._try(self._end_progress)

    def _try(self, shows: Callable[..., None], *line: str) -> None:
        """Show something, unless the reader of what this process prints is gone."""
        if self._shows:
            try:
                shows(*line)
            except Exception:
                self._shows = False

    def _show(self, line: str) -> None:
        if not (_PROGRESS.match(line) and _overwrites()):
            self._end_progress()
            print(line, flush=True)
            return
        shown = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r{shown.ljust(self._width)}", end="", flush=True)
        self._width = len(shown)

    def _end_progress(self) -> None:
        if self._width:
            print(flush=True)
        self._width = 0

    def first_error(self) -> str:
        """Return the first error among the lines, and below it its traceback if there is one."""
        lines = list(self.lines)
        texts = [_PREFIX.sub("", line) for line in lines]
        for is_error in (_is_final, _is_of_actor):
            for i, text in enumerate(texts):
                if is_error(text) and text.startswith("Traceback "):
                    said = [each for each in texts[i:] if each.startswith("error: ")][:1]
                    return "\n".join([*said, *_traceback(texts[i:])]).removeprefix("error: ")
                if is_error(text):
                    return text.removeprefix("error: ")
        return "\n".join(lines[-5:])


def _is_final(text: str) -> bool:
    """Return whether a line is an error that ends a run."""
    return text.startswith(("error: ", "Traceback "))


def _is_of_actor(text: str) -> bool:
    """Return whether a line is the failure of an actor, which may have been restarted."""
    return " failed: " in text


def _traceback(texts: list[str]) -> list[str]:
    """Return the lines of the traceback that begins with the first one."""
    ends = (n for n, text in enumerate(texts[1:], 2) if not text.startswith(" "))
    return texts[: next(ends, len(texts))]


def _overwrites() -> bool:
    """Return whether a line can be overwritten: in a terminal, and in a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules
