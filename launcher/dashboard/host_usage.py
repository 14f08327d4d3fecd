"""The use of cores and memory by a run's processes on each host, over time.

Supervisors measure it, and no file records it, so that the history begins with the dashboard. When
it gets too long, every second point is left out.
"""

import time
from typing import Any

from launcher.dashboard.run_status import Status, sum_by_host

_MOST_POINTS = 600
_FIELDS = ("cores", "memory", "frames_per_second")


class HostUsage:
    """The history of one run."""

    def __init__(self) -> None:
        self._points: list[tuple[float, dict[str, Any]]] = []  # (time, by host)
        self._seconds = 0.0  # between two points

    def add(self, known: Status) -> None:
        """Add the present use, unless the last point is too new."""
        now = time.time()
        if self._points and now - self._points[-1][0] < self._seconds:
            return
        hosts: dict[str, Any] = {
            host: tuple(round(values[name], 2) for name in _FIELDS)
            for host, values in sum_by_host(known).items()
        }
        gpus = {f"GPU {gpu['index']}": (gpu["used"], gpu["memory"]) for gpu in known["gpus"]}
        self._points.append((now, {"hosts": hosts, "gpus": gpus}))
        if len(self._points) > _MOST_POINTS:
            del self._points[1::2]
            span = self._points[-1][0] - self._points[0][0]
            self._seconds = 2 * span / _MOST_POINTS

    def last(self) -> dict[str, Any]:
        """Return the newest point, in the format of `describe`."""
        return _columns(self._points[-1:])

    def describe(self) -> dict[str, Any]:
        """Return times, and by host and GPU the lists of what was used."""
        return _columns(self._points)


def _columns(points: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"times": [round(at, 1) for at, _ in points]}
    for kind, fields in (("hosts", _FIELDS), ("gpus", ("busy", "memory"))):
        names = dict.fromkeys(name for _, point in points for name in point[kind])
        found[kind] = {
            name: {
                field: [
                    _number(point[kind][name][i]) if name in point[kind] else None
                    for _, point in points
                ]
                for i, field in enumerate(fields)
            }
            for name in names
        }
    return found


def _number(value: Any) -> float | None:
    """Return a number that nvidia-smi printed; None for `[N/A]`."""
    try:
        return float(value)
    except ValueError:
        return None
