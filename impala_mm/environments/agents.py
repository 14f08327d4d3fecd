"""What environments of several agents have in common: PettingZoo's two APIs, and spaces by agent.

    parallel      all agents act at the same time: `reset` and `step` take and return dicts by agent
                  (`parallel`)
    turn-taking   one agent acts after the other: `agent_selection`, `last` and `step` (`turns`)

An environment has one of these APIs if it has its methods; PettingZoo itself is not imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from impala_mm.config.messages import join_lines
from impala_mm.environments.types import BadLevel, Options

_OBSERVATION, _MASK = "observation", "action_mask"  # parts of an observation with a mask


def has_several_agents(made: Any) -> bool:
    """Return whether an object has spaces by agent, as PettingZoo's environments have."""
    return callable(getattr(made, "action_space", None))


def adapt(level_name: str, environment: Any, options: Options) -> "SeveralAgents":
    """Return an environment of several agents with gymnasium's API; raise BadLevel if it has none.

    It is a `ParallelGame` or a `TurnGame`.
    """
    from impala_mm.environments.parallel import ParallelGame  # noqa: PLC0415
    from impala_mm.environments.turns import TurnGame  # noqa: PLC0415

    takes_turns = callable(getattr(environment, "last", None))
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
    spaces = AgentSpaces(level_name, environment)
    if not takes_turns:
        return ParallelGame(environment, spaces)
    if len(spaces.agents) < 2:
        raise BadLevel(
            f"{level_name}: its agents take turns, and possible_agents names {spaces.agents[0]} "
            f"alone: use a gymnasium.Env for a single agent"
        )
    return TurnGame(environment, spaces)


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
        self.metadata = dict(getattr(environment, "metadata", None) or {})
        self.render_mode = getattr(environment, "render_mode", None)

    def render(self) -> Any:
        """Return the picture that the environment draws."""
        return self.environment.render()

    def close(self) -> None:
        """Close the environment, if it has a method for that."""
        if hasattr(self.environment, "close"):
            self.environment.close()
