"""What --mode=test prints of the games that were played: a table for each level, and for all."""

from collections.abc import Sequence

from impala_mm.evaluation import statistics
from impala_mm.evaluation.games import Evaluation


def level_table(result: Evaluation) -> str:
    """What came of a level, as a table."""
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
    how = "the most likely actions" if result.deterministic else "actions drawn from the policy"
    lines = [
        statistics.table(head, rows),
        f"whole games: {len(result.returns)}, {result.num_envs} at a time; {how}; seed "
        f"{result.seed}; checkpoint of {result.frames:,.0f} frames",
    ]
    if result.idle:
        limit = result.options["no_reward_steps"]
        lines.append(f"games cut: {result.idle}, after {limit:,} steps without reward")
    return "\n".join(lines)


def overview_table(results: Sequence[Evaluation]) -> str:
    """All levels, and what papers say of many games."""
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
