"""The statistics of a run's replay for `report.py`: those that it draws, and a table of all.

A key of a row may end in /KIND, a kind of replay, or /learnerN; otherwise it is the mean over all
learners.
"""

import numpy as np
from run_series import RunSeries

from impala_mm.records.metric_descriptions import GROUPS, MetricDescription
from impala_mm.records.run_contents import Panel

_METRICS = GROUPS["Replay"]
# The statistics that are drawn, with their titles.
_DRAWN = {
    "replay_age": "Age of replayed unrolls",
    "replay_uses": "Earlier draws of replayed unrolls",
    "replay_unrolls": "Unrolls held",
    "replay_priority_spread": "Spread of priorities",
    "replay_distance": "Distance of drawn unrolls",
    "replay_cached_share": "Distances that were known",
}


def make_panels(run: RunSeries) -> list[Panel]:
    """Return a panel for each statistic that is drawn and that the run has."""
    panels = []
    for key in _keys(run):
        name, _, part = key.partition("/")
        if name in _DRAWN and not part.startswith("learner"):
            title = f"{_DRAWN[name]}, {part}" if part else _DRAWN[name]
            found = _METRICS[name]
            panels.append(Panel(key, key, title, found.unit, share=found.unit == "share"))
    return panels


def list_rows(run: RunSeries) -> list[list[str]]:
    """Return a row for each statistic: key, mean of the run's second half, last, unit, meaning."""
    late = run.columns["frames"] >= (run.last("frames") or 0.0) / 2
    rows = []
    for key in _keys(run):
        column, found = run.columns[key], _find(key)
        known = np.isfinite(column)
        mean = column[late & known].mean() if (late & known).any() else np.nan
        rows.append([key, f"{mean:.4g}", f"{column[known][-1]:.4g}", found.unit, found.meaning])
    return rows


def _keys(run: RunSeries) -> list[str]:
    """Return the keys of the statistics that the run has, those of one name together."""
    names = list(_METRICS)
    keys = [key for key in run.columns if key in _METRICS or key.partition("/")[0] in _METRICS]
    keys = [key for key in keys if run.last(key) is not None and "replay_share" in run.columns]
    return sorted(keys, key=lambda key: (names.index(_name(key)), key))


def _name(key: str) -> str:
    return key if key in _METRICS else key.partition("/")[0]


def _find(key: str) -> MetricDescription:
    return _METRICS[_name(key)]
