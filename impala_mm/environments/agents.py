"""Environments of several agents, by PettingZoo's two APIs, with the API of gymnasium.

    parallel      all agents act at the same time: `reset` and `step` take and return dicts by agent
                  (`parallel`)
    turn-taking   one agent acts after the other: `agent_selection`, `last` and `step` (`turns`)

An environment has one of these APIs if it has its methods; PettingZoo itself is not imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from impala_mm.config.messages import join_lines
from impala_mm.environments.types import BadLevel, Options

_OBSERVATION, _MASK = "observation", "action_mask"  # parts of an observation with a mask
_PARTS = ("observation", "reward", "termination", "truncation")


def has_several_agents(made: Any) -> bool:
    """Return whether an object has spaces by agent, as PettingZoo's environments have."""
    return callable(getattr(made, "action_space", None))


class AgentSpaces:
    """The spaces of one agent, which all agents share, without the mask in the observations."""

    def __init__(self, level_name: str, environment: Any):
        """Read the spaces of all agents; raise BadLevel if they differ."""
        agents: Sequence[str] = list(getattr(environment, "possible_agents", None) or ())
        if not agents:
            raise BadLevel(
                f"{level_name} has several agents, and no list possible_agents of them: its "
                f"environment must name all that may ever play"
            )
        self.agents, first = agents, agents[0]
        for kind in ("observation", "action"):
            of_agent = getattr(environment, f"{kind}_space")
            space = of_agent(first)
            for other in agents[1:]:
                if of_agent(other) != space:
                    raise BadLevel(
                        f"{level_name}: one policy plays for all agents, and the {kind}s of "
                        f"{first} and {other} differ ({join_lines(space)} and "
                        f"{join_lines(of_agent(other))}): make them equal in a wrapper, such as "
                        f"--env_wrappers=supersuit:pad_{kind}{'s' * (kind == 'observation')}"
                        f"{'_space' * (kind == 'action')}_v0"
                    )
        self.action_space = environment.action_space(first)
        self.observation_space = environment.observation_space(first)
        parts = getattr(self.observation_space, "spaces", None)
        # PettingZoo's games of boards observe a Dict of these two parts.
        self._has_mask = isinstance(parts, Mapping) and parts.keys() == {_OBSERVATION, _MASK}
        if self._has_mask:
            self.observation_space = self.observation_space[_OBSERVATION]

    def split(self, observation: Any, info: Any) -> tuple[Any, Any]:
        """Return an agent's observation and info; a mask in the observation is in the info then."""
        if not self._has_mask:
            return observation, info
        return observation[_OBSERVATION], {**info, _MASK: observation[_MASK]}


class SeveralAgents(gymnasium.Env):
    """An environment of several agents, for a vector of its kind and for the check."""

    columns: dict[str, Any]  # what an `EnvironmentSpec` and a `SpaceConversion` say of its agents

    def __init__(self, environment: Any, spaces: AgentSpaces):
        """Play an environment whose agents have these spaces."""
        self.environment, self.spaces, self.agents = environment, spaces, spaces.agents
        self.adapted = getattr(environment, "unwrapped", environment)  # whom faults name
        self.metadata = dict(getattr(environment, "metadata", None) or {})
        self.render_mode = getattr(environment, "render_mode", None)

    def render(self) -> Any:
        """Return the picture that the environment draws."""
        return self.environment.render()

    def close(self) -> None:
        """Close the environment, if it has a method for that."""
        if hasattr(self.environment, "close"):
            self.environment.close()


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


class TurnGame(SeveralAgents):
    """An environment of PettingZoo's turn-taking API, which `TurnVector` plays move by move.

    `reset` and `step` play random moves for the other agents: they are for the check.
    """

    def __init__(self, environment: Any, spaces: AgentSpaces):
        super().__init__(environment, spaces)
        self.columns = {"seats": len(self.agents)}
        self.observation_space, self.action_space = spaces.observation_space, spaces.action_space
        self.seat = 0  # the number of the policy's agent
        self.over = self._is_cut = False  # whether it has ended, and whether it was truncated
        self._turn = 0  # the number of the agent whose turn it is
        self._owed: dict[str, float] = {}  # rewards since the agent's last observation
        self._totals: dict[str, float] = {}  # rewards of the game

    def begin(self, seed: int | None) -> None:
        """Begin a game, in which the policy plays the next agent."""
        self.environment.reset(seed=seed)
        self.seat = (self.seat + 1) % len(self.agents)
        self._owed, self._totals = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self._find_turn()

    def move(self, action: Any) -> None:
        """Let the agent act whose turn it is."""
        self.environment.step(action)
        for agent, reward in self.environment.rewards.items():
            self._owed[agent] += reward
            self._totals[agent] += reward
        self._find_turn()

    @property
    def opponent(self) -> int | None:
        """The number of the opponent's agent whose turn it is; None: it is the policy's, or over.

        The agents are numbered from the one after the policy's on.
        """
        if self.over or self._turn == self.seat:
            return None
        return (self._turn - self.seat - 1) % len(self.agents)

    @property
    def score(self) -> float:
        """The result for the policy: 1 for more reward than any other agent's, 0.5 for as much."""
        own = self._totals[self.agents[self.seat]]
        best = max(r for agent, r in self._totals.items() if agent != self.agents[self.seat])
        return 0.5 * (own > best) + 0.5 * (own >= best)

    def look(self) -> tuple[Any, float, Any]:
        """Return (observation, reward, info) of the agent whose turn it is, or of the policy's."""
        if self.over:
            agent = self.agents[self.seat]
            observation, info = self.environment.observe(agent), {}
        else:
            agent = self.agents[self._turn]
            observation, *_, info = self.environment.last()
        observation, info = self.spaces.split(observation, info)
        reward, self._owed[agent] = self._owed[agent], 0.0
        return observation, reward, info

    def result(self) -> tuple[Any, float, bool, bool, Any]:
        """Return the five values of the policy's step."""
        observation, reward, info = self.look()
        cut = self.over and self._is_cut
        return observation, reward, self.over and not cut, cut, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin a game, up to the policy's turn."""
        if seed is not None:
            self.action_space.seed(seed)
            self.seat = 0
        self.begin(seed)
        self._play_others()
        observation, _, info = self.look()
        return observation, info

    def step(self, action: Any) -> Any:
        """Play the policy's move, and the others' up to its next turn."""
        self.move(action)
        self._play_others()
        return self.result()

    def _play_others(self) -> None:
        while self.opponent is not None:
            mask = self.look()[2].get("action_mask")
            mask = None if mask is None else np.asarray(mask, np.int8)
            self.move(self.action_space.sample(mask))

    def _find_turn(self) -> None:
        """Read whose turn it is; take those of agents that have ended, which do nothing.

        Each attribute is read once: through several wrappers that takes some microseconds.
        """
        game, own = self.environment, self.agents[self.seat]
        while True:
            present, ended, cut = game.agents, game.terminations, game.truncations
            self._is_cut = bool(cut.get(own))
            self.over = not present or bool(ended.get(own, True)) or self._is_cut
            agent = game.agent_selection
            if self.over or not (ended.get(agent, True) or cut.get(agent, True)):
                self._turn = self.agents.index(agent)
                return
            game.step(None)


def refuse_options(level_name: str, options: Options) -> None:
    """Raise BadLevel for options that do not work with several agents."""
    if options.discretization != "none":
        raise BadLevel(
            f"{level_name} has several agents, and --discretization={options.discretization} makes "
            f"choices of one agent's numbers: leave it out"
        )
    if options.num_action_repeats > 1:
        raise BadLevel(
            f"num_action_repeats is {options.num_action_repeats}, and {level_name} has several "
            f"agents: leave it 0, or repeat actions in a wrapper such as "
            f"--env_wrappers='supersuit:frame_skip_v0{{\"num_frames\": 4}}'"
        )


def adapt(level_name: str, environment: Any) -> SeveralAgents:
    """Return an environment of several agents with gymnasium's API; raise BadLevel if it has none.

    It is a `ParallelGame` or a `TurnGame`.
    """
    spaces = AgentSpaces(level_name, environment)
    if not callable(getattr(environment, "last", None)):
        return ParallelGame(environment, spaces)
    if len(spaces.agents) < 2:
        raise BadLevel(
            f"{level_name}: its agents take turns, and possible_agents names {spaces.agents[0]} "
            f"alone: use a gymnasium.Env for a single agent"
        )
    return TurnGame(environment, spaces)
