"""Whether a process gets on: the files that it touches while it does, and the frames they count."""

import collections
import contextlib
import time
from pathlib import Path

from launcher.node.task import read_json

_FIRST_BEAT_FACTOR = 5  # times as long as later ones: TensorFlow is loaded, networks are made


class HeartbeatMonitor:
    """The file that a process touches while it gets on, one for each of several learners."""

    def __init__(self, path: Path):
        self._path = path
        self._beats: dict[Path, tuple[float, float]] = {}  # (time of the file, when we saw it)
        self._counts: collections.deque[tuple[float, float]] = collections.deque(maxlen=6)
        self.reset()

    def reset(self) -> None:
        """Of a process that is about to start."""
        for path in self._files():
            with contextlib.suppress(OSError):
                path.unlink()
        self._beats.clear()
        self._counts.clear()
        self._started = time.monotonic()

    def longest_silence(self) -> tuple[float, str]:
        """Seconds since the longest silence began, and whose it is; of our clock alone.

        The files' own times jump when somebody sets the clock, or the machine slept.
        """
        now = time.monotonic()
        for path in self._files():
            with contextlib.suppress(OSError):
                written = path.stat().st_mtime
                if self._beats.get(path, (0.0, 0.0))[0] != written:
                    self._beats[path] = written, now
        if not self._beats:
            return (now - self._started) / _FIRST_BEAT_FACTOR, ""
        path, (_, seen) = min(self._beats.items(), key=lambda beat: beat[1][1])
        which = path.name.removeprefix(self._path.name).lstrip("-")
        return now - seen, f"learner {which}" if which else ""

    def frames_per_second(self) -> float | None:
        """Over the last calls; None where it says nothing of frames."""
        frames = self.frames()
        if frames is None:
            return None
        self._counts.append((time.monotonic(), frames))
        (first_time, first_count), (last_time, last_count) = self._counts[0], self._counts[-1]
        return (
            max(last_count - first_count, 0.0) / (last_time - first_time)
            if last_time > first_time
            else 0.0
        )

    def frames(self) -> float | None:
        """So far."""
        frames = [read_json(path).get("frames") for path in self._files()]
        return max((float(count) for count in frames if count is not None), default=None)

    def _files(self) -> list[Path]:
        found = self._path.parent.glob(f"{self._path.name}*")
        return [path for path in found if path.suffix != ".part"]  # is being written
