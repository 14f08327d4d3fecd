"""The verdict of a row of metrics: the bottleneck, with advice once the figures have settled.

The first rows of a run are unlike the later ones: actors join, caches fill, other processes of the
machine still start. `learner.row_writer` asks for the verdict of each row.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from impala_mm.records.bottleneck import describe_bottleneck, describe_without_actors

_ROWS = 4  # measured rows, one every 2 s, that must name the same bottleneck before advice is given
_ADVICE = "); "  # what separates the evidence of a verdict from its advice


class VerdictWriter:
    """The verdicts of the rows of one run."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=_ROWS)  # those with shares of time

    def update(
        self,
        row: dict[str, Any],
        actors: int | None,
        without_actors: bool = False,
        round_progress: Sequence[tuple[int, int]] = (),
        filling: tuple[int, int] = (0, 0),
    ) -> str:
        """Take the next row of metrics; return "bottleneck: NAME (evidence); advice".

        The figures are means over the last rows. Without `_ROWS` rows that agree there is no
        advice. `actors` is the number of connected actors, or None if it is not known;
        `without_actors`: none is needed, since the algorithm's own source returns all batches.
        `round_progress` holds, for each learner, the unrolls that have arrived of the round that
        its actors play, and the round's columns. For `filling` see `describe_bottleneck`.
        """
        if without_actors:
            return describe_without_actors(row)
        if "wait_share" not in row or not row["frames_per_second"] or actors == 0:
            arrived, columns = map(sum, zip(*round_progress, (0, 0), strict=True))
            return describe_bottleneck(row, actors, (arrived, columns), filling)
        self._rows.append(row)
        verdict = describe_bottleneck(self._mean(row), actors)
        names = {describe_bottleneck(each, actors).partition(" (")[0] for each in self._rows}
        if len(self._rows) == _ROWS and len(names) == 1:
            return verdict
        evidence, separator, _ = verdict.partition(_ADVICE)
        return f"{evidence})" if separator else verdict

    def _mean(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the newest row with the mean of each share of time, as far as rows have it."""
        means = {}
        for name in (each for each in row if "_share" in each):
            values = [each[name] for each in self._rows if name in each]
            means[name] = sum(values) / len(values)
        return row | means
