"""Environments whose agents act at the same time: each agent is a column of the batch.

All agents have one policy. An agent that has ended while others play on, or that has not joined
yet, has entries of zeros with `first` set, the transitions to which are nobody's steps. When all
have ended, the next step resets the environment, which is an entry of its own for each of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from impala_mm.environments.faults import FAILURES
from impala_mm.environments.gym_vector import BROKEN, RUNNING, GymVector
from impala_mm.environments.types import Episode, Step


class ParallelVector(GymVector):
    """Environments of several agents; those of an environment are consecutive columns.

    If an environment is broken, all of its columns are.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        # Of the games that run: (return, length) of the agents' episodes that have ended.
        self._ended: list[list[tuple[float, int]]] = [[] for _ in self._firsts]

    @property
    def _firsts(self) -> range:
        """The first column of each environment."""
        return range(0, len(self._states), self._conversion.agents)

    def _columns(self, i: int) -> range:
        """Return the columns of the environment that has column i."""
        first = i - i % self._conversion.agents
        return range(first, first + self._conversion.agents)

    def reset(self) -> Step:
        """Reset all environments and drop their running games."""
        for game in self._environments:
            game.over = True
        self._ended = [[] for _ in self._firsts]
        return super().reset()

    def _replace(self, i: int) -> None:
        """Replace the environment of column i, with its first one."""
        if i == self._columns(i)[0]:
            super()._replace(i)

    def _begin(self, i: int) -> list[Any]:
        seed, self._seeds[i] = self._seeds[i], None
        return self._environments[i].begin(seed)

    def _play(self, actions: Sequence[Any]) -> None:
        """Step or reset each environment that is not broken, and keep what its agents get."""
        for i in self._firsts:
            if self._states[i] != BROKEN:
                try:
                    self._play_one(i, actions)
                except FAILURES as error:
                    self._break(i, error)

    def _play_one(self, i: int, actions: Sequence[Any]) -> None:
        """Play the environment whose first column is i."""
        game, columns = self._environments[i], self._columns(i)
        if game.over:
            self._now.first[columns.start : columns.stop] = True
            self._results[columns.start : columns.stop] = self._begin(i)
            return
        plays = {k: self._states[k] == RUNNING for k in columns}
        acting = {
            agent: actions[k] for agent, k in zip(game.agents, columns, strict=True) if plays[k]
        }
        for k, values in zip(columns, game.play(acting), strict=True):
            self._results[k] = values
            if not plays[k]:
                self._now.first[k] = True
                self._results[k] = values and (values[0], values[4])

    def _count(self) -> None:
        """Count the agents' episodes, and the games in which all have ended."""
        super()._count()
        for number, ended in enumerate(self._ended):
            first = number * self._conversion.agents
            if ended and self._environments[first].over:
                returns, lengths = zip(*ended, strict=True)
                self._finished.append(Episode(first, True, float(np.mean(returns)), max(lengths)))
                ended.clear()

    def _end_episode(self, i: int, episode_return: float, length: int) -> None:
        self._finished.append(Episode(i, False, episode_return, length))
        self._ended[i // self._conversion.agents].append((episode_return, length))

    def _break(self, i: int, error: BaseException) -> None:
        """Break all columns of the environment of column i."""
        if self._states[i] == BROKEN:
            return
        super()._break(i, error)
        for k in self._columns(i):
            if k != i:
                self._lose(k)
                self._blank(k)
        self._ended[i // self._conversion.agents].clear()
