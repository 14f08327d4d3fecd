"""The descriptions of all metrics, by their keys in metrics.jsonl: those of `metrics.toml`.

`metrics_writer` shows the descriptions in TensorBoard, and `sandbox/metrics.md` is this table as a
page. After a change of the table, write the page again:

    python -m impala_mm.records.metric_descriptions > sandbox/metrics.md
"""

import tomllib
from pathlib import Path
from typing import NamedTuple


class MetricDescription(NamedTuple):
    """One metric, as `metrics.toml` explains it."""

    unit: str
    meaning: str
    good: str = ""
    parts: str = ""


# By heading of the page, and by key.
GROUPS = {
    heading: {key: MetricDescription(**values) for key, values in group.items()}
    for heading, group in tomllib.loads(
        Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8")
    ).items()
}
METRICS = {key: described for group in GROUPS.values() for key, described in group.items()}
_INTRODUCTION = """\
# Metrics

Learner 0 writes a row of metrics every 2 s: to `metrics.jsonl` in the run's folder, as one JSON
object per line, and to TensorBoard's event files, with `frames` as the step. A value that is not
known yet, or that no update measured since the previous row, is absent. Values are averages over
all updates and all learners since the previous row, unless the table says otherwise. `/learnerN`
after a key is learner N's own value, in runs of several learners; `/LEVEL` is that of one level, in
runs of several levels; `/KIND` that of one kind of replay, such as `/uniform`. An algorithm of your
own adds the metrics that its `update` returns; name its losses as here and they appear in plots.
Updates that did not measure a metric, and return NaN for it, are left out of its average.
Evaluators write their results to `evaluations.jsonl` and, as `evaluation/...`, to TensorBoard.

This page is generated: `python -m impala_mm.records.metric_descriptions > sandbox/metrics.md`.
"""


def find_description(key: str) -> MetricDescription | None:
    """Return the description of a key as it stands in a row, or None where there is none."""
    if key in METRICS:
        return METRICS[key]
    name, _, part = key.partition("/")
    described = METRICS.get(name)
    if not (described and part):
        return None
    if described.parts == "learner":
        return described if part.removeprefix("learner").isdecimal() else None
    return described if described.parts else None


def format_description(key: str) -> str:
    """Return a key's description as a line of text, or nothing where there is none."""
    described = find_description(key)
    if not described:
        return ""
    good = f" Good: {described.good}." if described.good else ""
    return f"{described.meaning} Unit: {described.unit}.{good}"


def render_page() -> str:
    """Return the table as a page of Markdown."""
    lines = [_INTRODUCTION]
    suffixes = {"learner": ", also `/learnerN`", "level": ", also `/LEVEL`"}
    for heading, group in GROUPS.items():
        lines += [f"## {heading}", "", "| key | unit | meaning | good |", "|---|---|---|---|"]
        for key, (unit, meaning, good, parts) in group.items():
            name = f"`{key}/KIND`" if parts == "kind" else f"`{key}`"
            name += suffixes.get(parts, "")
            lines.append(f"| {name} | {unit} | {meaning} | {good} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_page(), end="")
