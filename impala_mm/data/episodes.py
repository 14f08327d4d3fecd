"""Finished episodes, as actors send them and learners count them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from impala_mm.environments.types import Episode

FIELDS = len(Episode._fields)


def to_rows(episodes: Iterable[Episode], first: int = 0) -> np.ndarray:
    """Return episodes as float32 [K, FIELDS], a row for each with the fields of `Episode`.

    The environments are numbered from `first` on.
    """
    numbered = [e._replace(environment=first + e.environment) for e in episodes]
    return np.array(numbered, np.float32).reshape([-1, FIELDS])


class ReportedEpisodes(NamedTuple):
    """Episodes that an actor has reported together."""

    level: str
    actor: int
    version: int  # the oldest policy version that acted in the unrolls in which they ended
    rows: np.ndarray  # as `to_rows` returns them; `environment` is the number in the run
    # More than all numbers of environments in the run, as `EnvironmentNumber.count`.
    environments: int

    def episodes(self) -> list[Episode]:
        """Return the episodes, one by one."""
        return [
            Episode(int(i), bool(whole_game), episode_return, int(length), int(opponent), score)
            for i, whole_game, episode_return, length, opponent, score in self.rows.tolist()
        ]

    def describe(self, game: Episode) -> dict[str, Any]:
        """Return what games.jsonl says of one of the episodes, a complete game."""
        return {
            "level": self.level,
            "return": game.episode_return,
            "length": game.length,
            "actor": self.actor,
            "environment": game.environment,
            "policy_version": self.version,
        }
