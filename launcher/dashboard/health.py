"""The health of runs, for programs that watch them: whether each is alive, and whether it learns.

A run is alive while its learners have not ended and are reachable. It learns while its number of
updates grows.
"""

import time
from collections.abc import Iterable
from typing import Any

from launcher.dashboard.run_finder import FoundRun
from launcher.dashboard.run_status import Status, is_live

DEFAULT_SECONDS = 120.0  # without an update after which a run does not learn


def describe_health(
    runs: Iterable[tuple[FoundRun, Status, dict[str, Any]]], name: str, seconds: float
) -> tuple[int, dict[str, Any]]:
    """Return the status code and the content of the answer about all live runs, or about one.

    The code is 200 if each of them learns, or if no run is asked for and none is running; otherwise
    503, and 404 if there is no run of this name.
    """
    found = {}
    for run, known, row in runs:
        if name in ("", run.name):
            found[run.name] = _describe(run, known, row, seconds)
    if name and not found:
        return 404, {"runs": {}, "error": "there is no run of this name whose processes are known"}
    asked = found.values() if name else [each for each in found.values() if each["alive"]]
    is_well = all(each["learning"] for each in asked)
    return 200 if is_well else 503, {"runs": found}


def _describe(run: FoundRun, known: Status, row: dict[str, Any], seconds: float) -> dict[str, Any]:
    alive = is_live(known) and known["state"] != "away"
    silent = None
    if row:
        try:
            silent = time.time() - (run.logdir / "metrics.jsonl").stat().st_mtime
        except OSError:
            silent = None
    updates = row.get("updates_per_second")
    learning = bool(alive and silent is not None and silent < seconds and updates != 0)
    return {
        "state": known["state"],
        "alive": alive,
        "learning": learning,
        "seconds_since_row": None if silent is None else round(silent, 1),
        "updates": row.get("updates"),
        "updates_per_second": updates,
    }
