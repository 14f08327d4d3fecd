"""The tables that --mode=test prints: one for each level, and one for all levels."""

from collections.abc import Sequence

from impala_mm.evaluation import statistics
from impala_mm.evaluation.games import Evaluation


def level_table(result: Evaluation) -> str:
    """Return the results of a level as a table."""
    quantities: dict[str, Sequence[float]] = {
        "return": result.returns,
        "length in steps": result.lengths,
    }
    if result.scores:
        quantities["human-normalised"] = result.human_normalised
    rows = [
        [name, *map(statistics.number, statistics.summarise(values))]
        for name, values in quantities.items()
    ]
    head = [result.level, "mean", "median", "deviation", "least", "most"]
    how = "most likely actions" if result.deterministic else "actions sampled from the policy"
    lines = [
        statistics.table(head, rows),
        f"complete games: {len(result.returns)}, {result.num_envs} at a time; {how}; seed "
        f"{result.seed}; checkpoint of {result.frames:,.0f} frames",
    ]
    if result.idle:
        limit = result.options["no_reward_steps"]
        lines.append(f"games ended after {limit:,} steps without reward: {result.idle}")
    return "\n".join(lines)


def overview_table(results: Sequence[Evaluation]) -> str:
    """Return a table of all levels, and the statistics that papers report over many games."""
    rows, scores, pooled = [], [], []
    for result in results:
        score = float("nan")
        if result.scores:
            (score,) = statistics.normalised([result.mean], result.scores)
            scores.append(score)
            pooled += result.human_normalised
        rows.append([result.level, statistics.number(result.mean), statistics.number(score)])
    lines = [statistics.table(["level", "mean return", "human-normalised"], rows)]
    if scores:
        of, number = statistics.summarise(scores), statistics.number
        lines.append(
            f"human-normalised over {len(scores)} games: median {number(of.median)}, mean "
            f"{number(of.mean)}, interquartile mean "
            f"{number(statistics.interquartile_mean(pooled))} (of all {len(pooled)} games played, "
            f"pooled)"
        )
    return "\n".join(lines)
