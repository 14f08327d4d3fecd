"""Progress of a process, from the heartbeat files that it writes and the frames in them."""

import collections
import contextlib
import time
from pathlib import Path
from typing import NamedTuple

from launcher.supervise.json_files import from_json, read_json
from launcher.supervise.task import WAITS

# The timeout of the first heartbeat, in timeouts of later ones: TensorFlow has to be loaded first.
FIRST_BEAT_FACTOR = 5


class _Beat(NamedTuple):
    """The content of a heartbeat, which `impala_mm/runtime/heartbeat.py` writes."""

    frames: float | None = None
    gave_up: str = ""
    crash: str = ""


class HeartbeatMonitor:
    """The heartbeat file of a process, or one file for each of several learners."""

    def __init__(self, path: Path):
        self._path = path
        self._beats: dict[Path, tuple[float, float]] = {}  # (time of the file, our clock then)
        self._counts: collections.deque[tuple[float, float]] = collections.deque(maxlen=6)
        self.reset()

    def reset(self) -> None:
        """Forget all heartbeats, since the process is about to start."""
        for path in [*self._files(), *self._path.parent.glob(f"{WAITS}*")]:
            with contextlib.suppress(OSError):  # the file system fails for now
                path.unlink()
        self._beats.clear()
        self._counts.clear()
        self._started = time.monotonic()

    def awaited(self) -> list[str]:
        """Return the hosts for which the process waits, as long as it takes."""
        found = self._path.parent.glob(f"{WAITS}*")
        return sorted(path.name.removeprefix(WAITS) for path in found)

    def longest_silence(self) -> tuple[float, str]:
        """Return the seconds since the oldest heartbeat, and whose it is ("learner 1" or "").

        Only our own monotonic clock counts: the files' times jump when the clock is set.
        """
        now = time.monotonic()
        if self.awaited():  # afterwards it is as if it had just been started
            self._beats.clear()
            self._started = now
            return 0.0, ""
        for path in self._files():
            with contextlib.suppress(OSError):  # the file system fails for now
                written = path.stat().st_mtime
                if self._beats.get(path, (0.0, 0.0))[0] != written:
                    self._beats[path] = written, now
        if not self._beats:
            return (now - self._started) / FIRST_BEAT_FACTOR, ""
        path, (_, seen) = min(self._beats.items(), key=lambda beat: beat[1][1])
        which = path.name.removeprefix(self._path.name).lstrip("-")
        return now - seen, f"learner {which}" if which else ""

    def frames_per_second(self) -> float | None:
        """Return the frames per second over the last calls; None if no frames are reported."""
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
        """Return the frames reported so far; None if there are none."""
        frames = [beat.frames for beat in self._beat_contents() if beat.frames is not None]
        return max(frames, default=None)

    def gave_up(self) -> str:
        """Return why the process has ended, if it reported that a restart would not help."""
        return next((beat.gave_up for beat in self._beat_contents() if beat.gave_up), "")

    def crash(self) -> str:
        """Return the crash that the process reported, if it crashed before it had worked."""
        return next((beat.crash for beat in self._beat_contents() if beat.crash), "")

    def _beat_contents(self) -> list[_Beat]:
        found = [from_json(_Beat, read_json(path)) for path in self._files()]
        return [beat for beat in found if beat]

    def _files(self) -> list[Path]:
        try:
            found = list(self._path.parent.glob(f"{self._path.name}*"))
        except OSError:  # the file system fails for now
            return []
        return [path for path in found if path.suffix != ".part"]  # still being written
