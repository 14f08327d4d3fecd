"""Environments whose agents act at the same time: each agent is a column of the batch.

All agents have one policy. An agent that has ended while others play on, or that has not joined
yet, has entries of zeros with `first` set, the transitions to which are nobody's steps. When all
have ended, the next step resets the environment, which is an entry of its own for each of them.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from impala_mm.environments import nests
from impala_mm.environments.agents import AgentSpaces, SeveralAgents
from impala_mm.environments.faults import FAILURES
from impala_mm.environments.gym_vector import BROKEN, ENDED, RUNNING, GymVector
from impala_mm.environments.types import Episode, Step

_PARTS = ("observation", "reward", "termination", "truncation")


class ParallelGame(SeveralAgents):
    """An environment of PettingZoo's parallel API, which `ParallelVector` plays agent by agent.

    `reset` and `step` are for the check of environments: they have a part for each agent.
    """

    def __init__(self, environment: Any, spaces: AgentSpaces):
        super().__init__(environment, spaces)
        self.columns = {"agents": len(self.agents), "is_parallel": True}
        self.observation_space, self.action_space = (
            gymnasium.spaces.Dict(dict.fromkeys(self.agents, space))
            for space in (spaces.observation_space, spaces.action_space)
        )
        self.over = True  # whether no agent plays any more
        # For `step`: the agents that play, and the newest observation of each.
        self._playing: list[str] = []
        self._last: dict[str, Any] = {}

    def begin(self, seed: int | None) -> list[Any]:
        """Reset the environment; return (observation, info) for each agent, None if it is absent.

        Absent agents may join later.
        """
        seen, infos = self.environment.reset(seed=seed)
        self.over = not seen
        return [
            self.spaces.split(seen[agent], infos.get(agent, {})) if agent in seen else None
            for agent in self.agents
        ]

    def play(self, actions: dict[str, Any]) -> list[Any]:
        """Let agents act; return the five values of a step for each agent, None if it is absent.

        An agent without an action that is not absent has joined.
        """
        *returned, infos = self.environment.step(actions)
        _, _, terminated, truncated = returned
        present = self.environment.agents
        live = {a for a in present if not (terminated.get(a) or truncated.get(a))}
        self.over = not live
        endless = [a for a in actions if self.over and not (terminated.get(a) or truncated.get(a))]
        if endless:
            raise ValueError(
                f"after step no agent is left, and neither termination nor truncation of the agent "
                f"{endless[0]!r} is set"
            )
        return [
            self._values_of(agent, returned, infos) if agent in actions or agent in live else None
            for agent in self.agents
        ]

    def _values_of(self, agent: str, returned: list[Any], infos: Any) -> tuple[Any, ...]:
        for name, by_agent in zip(_PARTS, returned, strict=True):
            if agent not in by_agent:
                raise ValueError(f"step returned no {name} of the agent {agent!r}")
        seen, reward, terminated, truncated = (by_agent[agent] for by_agent in returned)
        observation, info = self.spaces.split(seen, infos.get(agent, {}))
        return observation, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Return the observations and masks of all agents."""
        space = self.spaces.observation_space
        space.seed(0)  # two resets with one seed shall be equal
        self._last = dict.fromkeys(self.agents, space.sample())
        return self._together([result and (*result,) for result in self.begin(seed)])

    def step(self, action: Any) -> Any:
        """Let all agents act that play; an absent one has its last observation."""
        played = self.play({agent: action[agent] for agent in self._playing})
        observations, info = self._together([r and (r[0], r[4]) for r in played])
        self._playing = [
            agent for agent, r in zip(self.agents, played, strict=True) if r and not (r[2] or r[3])
        ]
        return observations, sum(float(r[1]) for r in played if r), self.over, False, info

    def _together(self, seen: list[Any]) -> Any:
        """Return the observations by agent, and an info with the masks if there are any."""
        present = {a: pair for a, pair in zip(self.agents, seen, strict=True) if pair}
        self._playing = list(present)
        self._last |= {agent: observation for agent, (observation, _) in present.items()}
        masks = {a: i["action_mask"] for a, (_, i) in present.items() if "action_mask" in i}
        return dict(self._last), {"action_mask": masks} if masks else {}


class ParallelVector(GymVector):
    """Environments of several agents; those of an environment are consecutive columns.

    If an environment is broken, all of its columns are. They are rebuilt together, with the first
    one.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        # Of the games that run: (return, length) of the agents' episodes that have ended.
        self._ended: list[list[tuple[float, int]]] = [[] for _ in self._firsts]
        self._resets: dict[int, list[Any]] = {}  # of rebuilt environments, by their first columns

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

    def rebuild(self, environment: int) -> Step:
        """Replace the environment of a column by a new one, once its first column is rebuilt."""
        row = super().rebuild(environment)
        if self._reset_of(environment) is None:
            self._states[environment] = ENDED
            for array in nests.flatten(row.observation):
                array.fill(0)
        return row

    def _open(self, i: int) -> Any:
        first = self._columns(i)[0]
        return super()._open(i) if i == first else self._environments[first]

    def _reset(self, i: int) -> tuple[Any, Any]:
        """Return the reset of a rebuilt environment as a column's observation and info."""
        first = self._columns(i)[0]
        if i == first:
            self._resets.pop(first, None)
            self._resets[first] = self._begin(first)
        elif first not in self._resets:
            raise RuntimeError("the environment of this agent could not be rebuilt")
        return self._reset_of(i) or next(filter(None, self._resets[first]))

    def _reset_of(self, i: int) -> Any:
        """Return what a column got when its environment was rebuilt; None if it is absent."""
        return self._resets[self._columns(i)[0]][i % self._conversion.agents]

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
            self._states[k] = BROKEN
            self._returns[k] = self._lengths[k] = 0
            self._blank(k)
        self._ended[i // self._conversion.agents].clear()
