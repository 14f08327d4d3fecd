"""The use of cores and memory by a run's processes on each host, over time.

Supervisors measure it, and no file records it, so that the history begins with the dashboard. When
it gets too long, every second point is left out. Hosts beyond the first ones are added up.
"""

import copy
import math
import time
from array import array
from collections.abc import Sequence
from typing import Any

from launcher.dashboard.run_status import Status, sum_by_host

_MOST_POINTS = 600
_MOST_HOSTS = 32  # that have a history of their own
_OTHER_HOSTS = "other hosts"
_FIELDS = {"hosts": ("cores", "memory", "frames_per_second"), "gpus": ("busy", "memory")}


class HostUsage:
    """The history of one run."""

    def __init__(self) -> None:
        self._times = array("d")
        # By kind and name: an array for each field, with NaN where nothing is known.
        self._columns: dict[str, dict[str, list[array[float]]]] = {kind: {} for kind in _FIELDS}
        self._seconds = 0.0  # between two points

    def add(self, known: Status) -> None:
        """Add the present use, unless the last point is too new."""
        now = time.time()
        if self._times and now - self._times[-1] < self._seconds:
            return
        hosts: dict[str, list[float]] = {}
        named = set(self._columns["hosts"])
        for host, values in sum_by_host(known).items():
            if len(named) < _MOST_HOSTS:
                named.add(host)
            name = host if host in named else _OTHER_HOSTS
            sums = hosts.setdefault(name, [0.0] * len(_FIELDS["hosts"]))
            for i, field in enumerate(_FIELDS["hosts"]):
                sums[i] = round(sums[i] + values[field], 2)
        gpus = {
            f"GPU {gpu['index']}": [_number(gpu["used"]), _number(gpu["memory"])]
            for gpu in known["gpus"]
        }
        self._append("hosts", hosts)
        self._append("gpus", gpus)
        self._times.append(now)
        if len(self._times) > _MOST_POINTS:
            for each in (self._times, *self._arrays()):
                del each[1::2]
            span = self._times[-1] - self._times[0]
            self._seconds = 2 * span / _MOST_POINTS

    def _append(self, kind: str, news: dict[str, list[float]]) -> None:
        columns = self._columns[kind]
        for name in [each for each in news if each not in columns]:
            missing = [math.nan] * len(self._times)
            columns[name] = [array("d", missing) for _ in _FIELDS[kind]]
        for name, arrays in columns.items():
            for i, each in enumerate(arrays):
                each.append(news[name][i] if name in news else math.nan)

    def _arrays(self) -> list[array]:
        return [
            each
            for columns in self._columns.values()
            for arrays in columns.values()
            for each in arrays
        ]

    def last(self) -> dict[str, Any]:
        """Return the newest point, in the format of `describe`."""
        return self._describe(slice(-1, None))

    def copy(self) -> "HostUsage":
        """Return a copy, which does not change while it is described."""
        return copy.deepcopy(self)

    def describe(self) -> dict[str, Any]:
        """Return times, and by host and GPU the lists of what was used."""
        return self._describe(slice(None))

    def _describe(self, part: slice) -> dict[str, Any]:
        found: dict[str, Any] = {"times": [round(at, 1) for at in self._times[part]]}
        for kind, columns in self._columns.items():
            found[kind] = {
                name: {
                    field: _list(each[part])
                    for field, each in zip(_FIELDS[kind], arrays, strict=True)
                }
                for name, arrays in columns.items()
                if any(not math.isnan(value) for each in arrays for value in each[part])
            }
        return found


def _list(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _number(value: Any) -> float:
    """Return a number that nvidia-smi printed; NaN for `[N/A]`."""
    try:
        return float(value)
    except ValueError:
        return math.nan
