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

Learner 0 writes a row of metrics every 2 s, to `metrics.jsonl` in the run's folder and to
TensorBoard's event files. This page explains each key. Look first at these:

- Does it learn? `episode_return`, and `loss_per_step/entropy` (PPO and its kin, SAC: `entropy`).
- Are updates healthy? `grad_norm`, `off_policyness` (IMPALA), `approx_kl` and `clip_fraction`
  (PPO), `explained_variance`, `q/value` (DQN, R2D2, PQN, SAC).
- What limits the speed? `verdict`, and the shares of [time](#where-time-goes).
- Did anything fail? `environment_faults`, `unrolls_dropped`.

Values are averages over the updates and learners since the previous row, unless the entry says
otherwise; one that nothing measured is absent. A *share* is from 0 to 1, where nothing else is
said. `/learnerN` after a key is learner N's own value, `/LEVEL` that of a level, `/KIND` that of a
kind of replay. Your own algorithm adds what its `update` returns: losses that are named as here
appear in plots, and NaN is left out of averages. Evaluators write `evaluations.jsonl`, and
`evaluation/...` to TensorBoard.

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
        lines += [f"## {heading}", ""]
        for key, (unit, meaning, good, parts) in group.items():
            name = f"`{key}/{parts.upper()}`" if parts in {"kind", "opponent"} else f"`{key}`"
            about = f"{unit}{suffixes.get(parts, '')}"
            lines.append(f"- **{name}** ({about}): {meaning}" + f" *Good:* {good}." * bool(good))
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_page(), end="")
