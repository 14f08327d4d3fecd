"""The progress line of a download or an upload."""

import threading

from impala_mm.runtime.timing import format_duration
from launcher.node.callbacks import Say
from launcher.remote.progress_line import ProgressLine


class TransferProgress:
    """The progress of a transfer: bytes, throughput and ETA. Several threads may call it."""

    def __init__(self, direction: str, say: Say):
        """Start the clock; `direction` begins the line: "download" or "upload"."""
        self._direction, self._line = direction, ProgressLine(say)
        self._total_bytes = self._done_bytes = 0
        self._adding = threading.Lock()

    def add(self, more: int, done: int) -> None:
        """Add `more` bytes to the total and `done` bytes to those that were transferred."""
        with self._adding:
            self._total_bytes += more
            self._done_bytes += done
            self._line.update(self._describe)

    def _describe(self, seconds: float) -> str:
        done, total = self._done_bytes, self._total_bytes
        line = f"{self._direction}: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
        if not done or seconds <= 0:
            return line
        rate = done / seconds
        return f"{line}, {rate / 1e6:.1f} MB/s, ETA {format_duration((total - done) / rate)}"

    def clear(self) -> None:
        """Clear the line on a terminal, before something else is printed."""
        self._line.clear()
