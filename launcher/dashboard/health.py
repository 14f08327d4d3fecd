"""The health of runs, for programs that watch them: whether each is alive, and whether it learns.

A run is alive while its learners have not ended and are reachable. It learns while its number of
updates grows.
"""

import time
from collections.abc import Iterable
from typing import Any

from launcher.dashboard.run_status import KnownRun, is_live

DEFAULT_SECONDS = 120.0  # without an update after which a run does not learn


def describe_health(
    runs: Iterable[KnownRun], name: str, seconds: float
) -> tuple[int, dict[str, Any]]:
    """Return the status code and the content of the answer about all live runs, or about one.

    The code is 200 if each of them learns, or if no run is asked for and none is running; otherwise
    503, and 404 if there is no run of this name.
    """
    found = {
        run.name: _describe(run, seconds) for run in runs if name in ("", run.name, run.found.name)
    }
    if name and not found:
        return 404, {"runs": {}, "error": "there is no run of this name whose processes are known"}
    asked = found.values() if name else [each for each in found.values() if each["alive"]]
    is_well = all(each["learning"] for each in asked)
    return 200 if is_well else 503, {"runs": found}


def _describe(run: KnownRun, seconds: float) -> dict[str, Any]:
    alive, silent = is_live(run.status) and run.status["state"] != "away", _since(run.update_time)
    return {
        "state": run.status["state"],
        "alive": alive,
        "learning": alive and silent is not None and silent < seconds,
        "seconds_since_row": _since(run.row_time),
        "seconds_since_update": silent,
        "updates": run.row.get("updates"),
        "updates_per_second": run.row.get("updates_per_second"),
    }


def _since(at: float | None) -> float | None:
    return None if at is None else round(time.time() - at, 1)
