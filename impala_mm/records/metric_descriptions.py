"""The descriptions of all metrics, by their keys in metrics.jsonl.

`metrics_writer` shows the descriptions in TensorBoard, and `sandbox/metrics.md` is this table as a
page. After a change here, write the page again:

    python -m impala_mm.records.metric_descriptions > sandbox/metrics.md
"""

from impala_mm.records.learning_metrics import (
    LEARNING_GROUPS,
    VALUES,
    MetricDescription,
    MetricGroup,
)

_M = MetricDescription
_SHARE = "share of time, 0 to 1"

GROUPS = (
    MetricGroup(
        "Progress",
        {
            "frames": _M(
                "environment frames",
                "Frames that all learners have trained on since the run began, resumes included: "
                "steps times the action repeats. TensorBoard's step.",
            ),
            "steps": _M(
                "environment steps",
                "Steps that all learners have trained on. A learner's own count begins at 0 with "
                "each start of the process.",
                parts="learner",
            ),
            "updates": _M("updates", "Updates of the parameters; all learners make the same ones."),
            "seconds": _M(
                "s",
                "Training time with the wait for the first unroll, which `--max_seconds` does not "
                "count, including the time before a resume.",
            ),
            "frames_per_second": _M(
                "frames/s",
                "Throughput of all learners together, from the end of the last update of an "
                "earlier row to the end of the last one in this row. Until the next update ends, "
                "it stays the same; it is 0 once that takes three times as long as usual.",
                "high; `verdict` says what limits it",
            ),
            "steps_per_second": _M("steps/s", "The same in environment steps.", "high"),
            "updates_per_second": _M("updates/s", "The same in updates.", "high"),
        },
    ),
    MetricGroup(
        "Episodes",
        {
            "episode_return": _M(
                "raw reward",
                "Mean return of the last 100 complete games (fewer at the start, see `games`), "
                "with rewards as the environment gives them. With several levels there is also one "
                "for each.",
                "high",
                parts="level",
            ),
            "episode_length": _M("steps", "Mean length of the same games."),
            "games": _M("games", "How many games these means are over.", "100 is the most"),
            "shaped_return": _M(
                "raw reward",
                "Mean return of the last 100 training episodes. They differ from games where a "
                "lost life ends an episode (Atari).",
                "high",
            ),
            "human_normalised": _M(
                "share, 0 to 1 and above",
                "The return on a scale where 0 is a random policy and 1 a human; of several games "
                "the median, and the value of each. Only for games whose scores are known.",
                "high",
                parts="level",
            ),
        },
    ),
    *LEARNING_GROUPS,
    VALUES,
    MetricGroup(
        "Where time goes",
        {
            "wait_share": _M(
                _SHARE,
                "Time in which the learners wait for unrolls from their actors.",
                "below 0.1, else add actors",
                parts="learner",
            ),
            "exchange_share": _M(
                _SHARE,
                "Time in which the learners wait for each other: for the slowest one's batch, and "
                "for the all-reduce of gradients.",
                "below 0.3",
                parts="learner",
            ),
            "train_share": _M(_SHARE, "Time in which the learners train.", "high", parts="learner"),
            "rest_share": _M(
                _SHARE, "The rest of the learners' time: bookkeeping.", "near 0", parts="learner"
            ),
            "queue_fill": _M(
                "share, 0 to 1",
                "How full the queue of unrolls is when an update has been made.",
                "near 1 if learners are to be busy; near 0 means that they wait for actors",
                parts="learner",
            ),
            "actor/acting_share": _M(
                _SHARE,
                "Time in which the actors compute actions, or wait for the actions that the "
                "learner computes.",
            ),
            "actor/stepping_share": _M(
                _SHARE, "Time in which the actors step their environments.", "high"
            ),
            "actor/waiting_share": _M(
                _SHARE,
                "Time in which the actors wait until the learner has taken their previous unrolls.",
                "below 0.3, else the learner or the network is too slow for this number of actors",
            ),
            "actor/policy_wait_share": _M(
                _SHARE,
                "Time in which the actors of an algorithm with rounds wait for the next policy.",
                "as small as the updates allow",
            ),
            "inference_batch": _M(
                "environments",
                "With `--inference=learner`: environments per forward pass, on average.",
                "high",
            ),
            "actors": _M("actors", "Actors that are connected to the learners."),
            "actors_elsewhere": _M(
                "actors", "Connected actors that run on another host than their learner."
            ),
            "idle_cores": _M(
                "cores",
                "Idle CPU cores of the learners' host; with several hosts, the largest number "
                "among them.",
                "near 0 if the actors run on the same host",
            ),
            "verdict": _M(
                "text",
                "The bottleneck, the evidence for it, and advice, as in the progress line. Only in "
                "metrics.jsonl.",
            ),
        },
    ),
    MetricGroup(
        "Health",
        {
            "unrolls_dropped": _M(
                "unrolls", "Unrolls that were lost since the learners started.", "0 without crashes"
            ),
            "unrolls_padded": _M(
                "unrolls",
                "Columns of rounds that were filled with unrolls of weight 0 since the learners "
                "started, because an actor did not send its unrolls in time; only in an algorithm "
                "with rounds.",
                "0 without crashes",
            ),
            "offline_updates": _M(
                "updates",
                "Updates from recorded games that were made, while no actor plays "
                "(`--offline_updates`).",
            ),
            "environment_faults": _M(
                "faults",
                "Errors of environments since the learners started: each was replaced by a new "
                "one, and its unroll was lost. The actors' logs have the tracebacks.",
                "0",
            ),
            "sync_checks": _M(
                "checks",
                "With several learners and `--check_sync_every`: how often their parameters were "
                "compared.",
            ),
            "sync_repairs": _M(
                "variables", "Variables that differed and were set to learner 0's.", "0"
            ),
        },
    ),
)
METRICS = {key: found for group in GROUPS for key, found in group.metrics.items()}
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
    found = METRICS.get(name)
    if found and part and found.parts == "learner":
        return found if part.removeprefix("learner").isdecimal() else None
    return found if found and part and found.parts in {"level", "kind"} else None


def format_description(key: str) -> str:
    """Return a key's description as a line of text, or nothing where there is none."""
    found = find_description(key)
    if not found:
        return ""
    return f"{found.meaning} Unit: {found.unit}." + (f" Good: {found.good}." if found.good else "")


def render_page() -> str:
    """Return the table as a page of Markdown."""
    lines = [_INTRODUCTION]
    for group in GROUPS:
        lines += [f"## {group.heading}", "", "| key | unit | meaning | good |", "|---|---|---|---|"]
        for key, found in group.metrics.items():
            suffix = {"learner": ", also `/learnerN`", "level": ", also `/LEVEL`"}
            name = f"`{key}/KIND`" if found.parts == "kind" else f"`{key}`"
            name += suffix.get(found.parts, "")
            lines.append(f"| {name} | {found.unit} | {found.meaning} | {found.good} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_page(), end="")
