"""Results against opponents: the score against each kind, and Elo ratings of the policies.

An actor reports each game with its opponent's number (`config.environment_flags`). The
ratings are those of the whole run: all actors' past policies are known by their versions.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from impala_mm.config.environment_flags import NO_OPPONENT, PAST, RANDOM

_GAMES = 100  # over which the scores are averaged
_STEP = 8.0  # K: the most by which a game changes a rating
_SCALE = 400.0  # a policy that is rated this much higher scores 10 times as much


class OpponentRatings:
    """The results of a run's newest policy against its opponents.

    Random opponents are rated 0, or else the first past policy is. A past policy enters with the
    rating that the newest one has then; both change with each game between them.
    """

    def __init__(self, names: Sequence[str]):
        """Know opponents by their places in --opponents."""
        self._names = names
        self._scores = {name: deque[float](maxlen=_GAMES) for name in names}
        self._newest = 0.0
        self._past: dict[int, float] = {}  # by version
        self._fixed = RANDOM if RANDOM in names else None

    def saved(self) -> dict[str, float]:
        """Return the ratings for a checkpoint: the newest policy's, and past ones' by version."""
        past = {str(version): rating for version, rating in self._past.items()}
        return {"newest": self._newest} | past if past or self._newest else {}

    def restore(self, saved: Mapping[str, float]) -> None:
        """Continue with what `saved` returned."""
        self._newest = saved.get("newest", 0.0)
        self._past = {int(v): rating for v, rating in saved.items() if v.isdigit()}

    def add(self, number: int, score: float) -> None:
        """Add a game against the opponent of this number; none changes nothing."""
        name = self._name(number)
        if name not in self._scores:
            return
        self._scores[name].append(score)
        if name == PAST and number >= 0:
            rated = self._past.setdefault(number, self._newest)
            is_fixed = not self._fixed and number == next(iter(self._past))
            change = self._change(score, rated)
            self._past[number] = rated if is_fixed else rated - change
        elif name == RANDOM:
            self._change(score, 0.0)

    def describe(self, number: int, score: float) -> dict[str, str | float]:
        """Return what games.jsonl says of a game's opponent; nothing without one."""
        if number == NO_OPPONENT:
            return {}
        version = f" {number}" if number >= 0 else ""
        return {"opponent": f"{self._name(number)}{version}", "score": score}

    def row(self) -> dict[str, float]:
        """Return the metrics of the results until now."""
        row: dict[str, float] = {}
        for name, scores in self._scores.items():
            if scores:
                row[f"score/{name}"] = float(np.mean(scores))
                row[f"lost/{name}"] = float(np.mean([score == 0 for score in scores]))
        if self._past or (self._fixed and row):
            row["elo"] = self._newest
        if self._past:
            row["elo_past"] = float(np.mean([*self._past.values()]))
            row["elo_past_best"] = max(self._past.values())
        return row

    def _name(self, number: int) -> str:
        k = NO_OPPONENT - 1 - number
        return PAST if number >= 0 else self._names[k] if 0 <= k < len(self._names) else ""

    def _change(self, score: float, rated: float) -> float:
        """Change the newest policy's rating by a score against one of this rating."""
        expected = 1 / (1 + 10 ** ((rated - self._newest) / _SCALE))
        change = _STEP * (score - expected)
        self._newest += change
        return change
