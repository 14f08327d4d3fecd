"""The players of the other agents where agents take turns: one is drawn for each game.

`--opponents=self:0.5,past:0.5` names them with their weights:

    random                 random actions, among those that a mask allows
    self                   the newest policy
    past                   policies that were the newest at some time, see `PastPolicies`
    a path, module:name    a policy of another run, a SavedModel, a function (`teachers.load`)

`TurnVector` asks for the actions of several environments at once, and each player that was drawn
for some of them chooses theirs.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from impala_mm.config.environment_flags import NO_OPPONENT, PAST, SELF
from impala_mm.environments import nests
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import Step

POOL = 16  # past policies that are kept
_MEMORY = 0.97  # weight of a game's result after one more game: some 30 games count


class Player(Protocol):
    """A player of other agents."""

    def act(self, asked: Step, actions: Any, rows: np.ndarray) -> Any:
        """Return actions, a nest of [R, ...], for the newest entries [R, ...] of the others.

        Only those of `rows`, int [K], count. `actions` are the last actions, a nest of [R, ...].
        """


class RandomPlayer:
    """A player that draws each action from those that are allowed."""

    def __init__(self, actions: ActionSpec, seed: Any):
        self._actions, self._random = actions, np.random.default_rng(seed)

    def act(self, asked: Step, actions: Any, rows: np.ndarray) -> Any:
        """Return random actions for all entries."""
        return self._actions.sample(len(asked.reward), asked.mask, self._random)


class RememberingPlayer:
    """A policy as a player, with the state of each of the other agents' games.

    `choose` takes (entries [R, ...], last actions, state) and returns (actions, state), where a
    state is a flat list of [R, ...]. The policy forgets it where an entry is the first.
    """

    def __init__(self, choose: Callable[[Step, Any, list[Any]], tuple[Any, list[Any]]], state: Any):
        """Begin with a state like `state`."""
        self.choose, self._state = choose, [np.array(part) for part in state]

    def act(self, asked: Step, actions: Any, rows: np.ndarray) -> Any:
        """Return actions for all entries, and remember what those of `rows` led to."""
        chosen, state = self.choose(asked, actions, self._state)
        for kept, part in zip(self._state, state, strict=True):
            kept[rows] = np.asarray(part)[rows]
        return chosen


class _Past(NamedTuple):
    """A past policy."""

    player: Player
    results: np.ndarray  # float64 [2]: sum of scores against it, and their number; old ones fade


class PastPolicies:
    """A pool of policies that were the newest at some time, evenly spread over the run.

    When it is full, every second one is dropped, and from then on the pool grows half as often.
    They are drawn by how hard they are, as in prioritised fictitious self-play: by (1 - p)^2, where
    p is the score against them.
    """

    def __init__(self, most: int = POOL):
        self._most, self._every, self._next = most, 1, 0
        self.members: dict[int, _Past] = {}  # by version

    def offer(self, version: int, take: Callable[[], Player]) -> None:
        """Take this policy, the newest, if it is time for another one."""
        if self.members and version < max(self.members):  # another run's learner
            self.members.clear()
            self._every, self._next = 1, 0
        if version < self._next:
            return
        # Of a policy without results, an even score is assumed.
        self.members[version] = _Past(take(), np.array([0.5, 1.0]))
        if len(self.members) > self._most:
            for old in [*self.members][1::2]:
                del self.members[old]
            self._every *= 2
        self._next = version + self._every

    def draw(self, random: np.random.Generator) -> tuple[int, Player] | None:
        """Return a policy with its version; None while there is none."""
        members = [*self.members.items()]  # another thread may offer one
        if not members:
            return None
        sums = np.array([past.results for _, past in members])
        hardness = (1 - sums[:, 0] / sums[:, 1]) ** 2 + 1e-3
        version, past = members[random.choice(len(members), p=hardness / hardness.sum())]
        return version, past.player

    def count(self, version: int, score: float) -> None:
        """Count a result against a policy, unless it was dropped."""
        if past := self.members.get(version):
            past.results[:] = _MEMORY * past.results + (score, 1)


class DrawnOpponents:
    """The opponents of a vector of environments, which are drawn for each game by their weights."""

    def __init__(
        self,
        weights: Mapping[str, float],
        players: Mapping[str, Player],
        seed: Any,
        past: PastPolicies | None = None,
        others: int = 1,
    ):
        """Draw from `players`, by name, and for the name `past` from these policies.

        `others` is the number of an environment's agents that they play.
        """
        self._names, self._players, self._past = [*weights], players, past
        self._others = others
        self._shares = np.array([*weights.values()]) / sum(weights.values())
        self._random = np.random.default_rng(seed)
        self._drawn: dict[int, tuple[int, Player]] = {}  # by environment

    def begin(self, environment: int) -> None:
        """Draw the opponent of a new game; while there is no past policy, it is the newest."""
        k = int(self._random.choice(len(self._names), p=self._shares))
        name, number = self._names[k], NO_OPPONENT - 1 - k
        drawn = self._past.draw(self._random) if name == PAST and self._past else None
        self._drawn[environment] = drawn or (number, self._players[SELF if name == PAST else name])

    def act(self, asked: Step, actions: Any, rows: np.ndarray) -> Any:
        """Return the actions that the drawn players choose."""
        by_player: dict[int, tuple[Player, list[int]]] = {}
        for row in rows.tolist():
            _, player = self._drawn[row // self._others]
            by_player.setdefault(id(player), (player, []))[1].append(row)
        leaves = [np.array(part) for part in nests.flatten(actions)]
        for player, own in by_player.values():
            chosen = player.act(asked, actions, np.array(own))
            for array, part in zip(leaves, nests.flatten(chosen), strict=True):
                array[own] = part[own]
        return nests.pack(actions, leaves)

    def end(self, environment: int, score: float) -> int:
        """Take the result of a game, 1 if the policy won; return the opponent's number."""
        number, _ = self._drawn[environment]
        if self._past and number >= 0:
            self._past.count(number, score)
        return number
