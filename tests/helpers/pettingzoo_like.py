"""Small environments with PettingZoo's APIs, which need no package."""

import numpy as np
from gymnasium.spaces import Box, Discrete


class Meeting:
    """Three agents, of which agent k ends after k+2 steps; the last one joins after the first step.

    An agent observes its number and its steps. Its reward is its action.
    """

    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    metadata = {"name": "meeting"}  # noqa: RUF012

    def __init__(self, fails_at=0, truncates=False):
        self._fails_at, self._truncates = fails_at, truncates

    def observation_space(self, agent):
        """Return the same for all agents."""
        return Box(0, 9, (2,), np.float32)

    def action_space(self, agent):
        """Return the same for all agents."""
        return Discrete(3)

    def reset(self, seed=None, options=None):
        """Begin with the first two agents."""
        self.agents, self._steps, self.actions = ["a", "b"], 0, []
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions):
        """Let the agents act that are there."""
        assert set(actions) == set(self.agents)
        self.actions.append(actions)
        self._steps += 1
        if self._steps == self._fails_at:
            raise RuntimeError("the meeting is cancelled")
        ended = {a: self._steps >= 2 + self.possible_agents.index(a) for a in self.agents}
        no = dict.fromkeys(ended, False)
        ends = (no, ended) if self._truncates else (ended, no)
        self.agents = [a for a in self.agents if not ended[a]] + ["c"] * (self._steps == 1)
        present = [*ended, "c"] if self._steps == 1 else ended
        rewards = {a: float(actions[a]) for a in actions}
        return (
            self._look(present),
            rewards | {"c": 0.0} if self._steps == 1 else rewards,
            *(each | {"c": False} if self._steps == 1 else each for each in ends),
            {},
        )

    def _look(self, agents=None):
        numbers = {a: self.possible_agents.index(a) for a in agents or self.agents}
        return {a: np.array([n, self._steps], np.float32) for a, n in numbers.items()}


class Unequal(Meeting):
    """Agents with spaces of their own."""

    def action_space(self, agent):
        """Return more choices for the last one."""
        return Discrete(3 + (agent == "c"))
