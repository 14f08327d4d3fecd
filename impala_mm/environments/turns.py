"""Environments whose agents take turns: the policy plays one of them, opponents play the others.

An environment is one column of the batch. A step is the policy's move and the opponents' moves
after it, up to the policy's next turn or the end of the game; the rewards of these moves are added
up. The policy plays another agent in each game. What an environment's opponents observe are entries
of their own, [R, ...] for R = environments x the other agents, and the opponents choose the actions
of several environments at once (`opponents`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from impala_mm.config.environment_flags import RANDOM
from impala_mm.environments import nests
from impala_mm.environments.faults import FAILURES
from impala_mm.environments.gym_vector import BROKEN, ENDED, RUNNING, GymVector, blank_step
from impala_mm.environments.opponents import DrawnOpponents, Player, RandomPlayer
from impala_mm.environments.types import Episode


class TurnVector(GymVector):
    """Environments in which opponents play the other agents; until some are set, at random."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._others = self._conversion.seats - 1
        rows = len(self._states) * self._others
        self.asked = blank_step(rows, self._conversion)  # the newest entries of the others
        self._answers = self.spec.actions.zeros(rows)  # their last actions
        self._has_begun = np.zeros(rows, bool)  # they have observed something in this game
        # Vectors of one actor differ in their seeds, and the parts of one vector in `first`.
        self.random = RandomPlayer(self.spec.actions, [self._seed, self._first])
        self.let_play({RANDOM: 1.0}, lambda name, rows: self.random, seed=0)

    def let_play(
        self, weights: Mapping[str, float], load: Callable[[str, int], Player], seed: Any
    ) -> None:
        """Set opponents by name; `load` takes a name, not `random`, and the number of entries."""
        rows = len(self.asked.reward)
        players = {name: self.random if name == RANDOM else load(name, rows) for name in weights}
        self.opponents = DrawnOpponents(weights, players, seed, others=self._others)

    def _open(self, i: int) -> Any:
        game = super()._open(i)
        game.seat = (self._first + i) % self._conversion.seats
        return game

    def _play(self, actions: Sequence[Any]) -> None:
        """Play the policy's moves and begin new games, then let opponents play."""
        playing = [i for i, state in enumerate(self._states) if state != BROKEN]
        for i in playing:
            try:
                if self._states[i] == RUNNING:
                    self._environments[i].move(actions[i])
                else:
                    self._now.first[i] = True
                    self._begin(i)
            except FAILURES as error:
                self._break(i, error)
        self._play_others(playing)
        for i in playing:
            try:
                if self._states[i] == RUNNING:
                    self._results[i] = self._environments[i].result()
                elif self._states[i] == ENDED:
                    self._results[i] = self._first_look(i)
            except FAILURES as error:
                self._break(i, error)

    def _begin(self, i: int) -> None:
        seed, self._seeds[i] = self._seeds[i], None
        self._environments[i].begin(seed)
        self._has_begun[i * self._others : (i + 1) * self._others] = False
        self.opponents.begin(i)

    def _first_look(self, i: int) -> tuple[Any, Any]:
        game = self._environments[i]
        if game.over:
            raise ValueError("a game ended before the first turn of the policy's agent")
        observation, _, info = game.look()
        return observation, info

    def _play_others(self, playing: list[int]) -> None:
        """Let opponents move in these environments, until it is the policy's turn or over."""
        while True:
            asking: dict[int, int] = {}  # the rows of the entries by environment
            for i in playing:
                try:
                    game = self._environments[i]
                    if self._states[i] != BROKEN and (number := game.opponent) is not None:
                        asking[i] = i * self._others + number
                        self._ask(i, asking[i])
                except FAILURES as error:
                    asking.pop(i, None)
                    self._break(i, error)
            if not asking:
                return
            rows = np.array([*asking.values()])
            chosen = self.opponents.act(self.asked, self._answers, rows)
            for array, part in zip(
                nests.flatten(self._answers), nests.flatten(chosen), strict=True
            ):
                array[rows] = part[rows]
            moves = self.spec.actions.to_environments(self._answers)
            for i, row in asking.items():
                try:
                    self._environments[i].move(moves[row])
                except FAILURES as error:
                    self._break(i, error)

    def _ask(self, i: int, row: int) -> None:
        """Write what the opponent of environment i sees whose turn it is."""
        asked, conversion = self.asked, self._conversion
        observation, reward, info = self._environments[i].look()
        conversion.observation.write(observation, nests.flatten(asked.observation), row)
        asked.first[row] = not self._has_begun[row]
        asked.reward[row] = reward * self._has_begun[row]
        self._has_begun[row] = True
        if conversion.masks:
            raw = self._raw_masks[i](observation, info)
            mask = conversion.masks.read_one(raw, "an opponent's turn")
            for array, part in zip(nests.flatten(asked.mask), mask, strict=True):
                array[row] = part

    def _end_episode(self, i: int, episode_return: float, length: int) -> None:
        """Count a game, and against whom it was."""
        score = self._environments[i].score
        against = self.opponents.end(i, score)
        for whole in (False, True):
            self._finished.append(Episode(i, whole, episode_return, length, against, score))
