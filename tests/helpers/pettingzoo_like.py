"""Small environments with PettingZoo's APIs, which need no package."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


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


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class TicTacToe:
    """Tic-tac-toe by the turn-taking API; an agent sees its marks as 1 and the other's as -1."""

    possible_agents = ["x", "o"]  # noqa: RUF012
    metadata = {"name": "tictactoe"}  # noqa: RUF012

    def observation_space(self, agent):
        """Return a board and a mask."""
        return Dict(observation=Box(-1, 1, (9,), np.float32), action_mask=Box(0, 1, (9,), np.int8))

    def action_space(self, agent):
        """Return a choice among the squares."""
        return Discrete(9)

    def reset(self, seed=None, options=None):
        """Clear the board."""
        self.agents, self.agent_selection = ["x", "o"], "x"
        self.board = np.zeros(9, np.float32)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        """Return the board as this agent sees it."""
        own = self.board * (1 if agent == "x" else -1)
        return {"observation": own, "action_mask": (self.board == 0).astype(np.int8)}

    def last(self):
        """Return what the agent needs whose turn it is."""
        agent = self.agent_selection
        ends = self.terminations[agent], self.truncations[agent]
        return self.observe(agent), self._cumulative[agent], *ends, self.infos[agent]

    def agent_iter(self):
        """Return the agents in turn."""
        while self.agents:
            yield self.agent_selection

    def step(self, action):
        """Set a mark, or let an agent go that has ended."""
        agent = self.agent_selection
        if self.terminations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.rewards = dict.fromkeys(self.possible_agents, 0.0)
            self.agent_selection = self.agents[0] if self.agents else agent
            return
        assert self.board[action] == 0, "the square is free"
        self.board[action] = mark = 1 if agent == "x" else -1
        other = "o" if agent == "x" else "x"
        won = any((self.board[list(line)] == mark).all() for line in LINES)
        self.rewards = {agent: float(won), other: -float(won)}
        if won or (self.board != 0).all():
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other


class NoMasks(TicTacToe):
    """Tic-tac-toe that plays the lowest free square in place of one that is taken."""

    def observation_space(self, agent):
        """Return a board."""
        return Box(-1, 1, (9,), np.float32)

    def observe(self, agent):
        """Return the board as this agent sees it."""
        return super().observe(agent)["observation"]

    def step(self, action):
        """Set a mark."""
        taken = action is not None and self.board[action] != 0
        super().step(int(np.flatnonzero(self.board == 0)[0]) if taken else action)


class Bidding:
    """Three agents bid 0 to 4 in turn, twice; the highest sum wins 1, and the others lose 1.

    An agent sees its own number, the last bid of any agent and the turns so far.
    """

    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    metadata = {"name": "bidding"}  # noqa: RUF012

    def __init__(self, fails_at=0):
        self._fails_at = fails_at

    def observation_space(self, agent):
        """Return three numbers."""
        return Box(0, 9, (3,), np.float32)

    def action_space(self, agent):
        """Return the bids."""
        return Discrete(5)

    def reset(self, seed=None, options=None):
        """Let the first agent bid."""
        self.agents, self.agent_selection = [*self.possible_agents], "a"
        self.bids = []
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.rewards, self.infos = dict.fromkeys(self.agents, 0.0), {a: {} for a in self.agents}

    def observe(self, agent):
        """Return what an agent sees."""
        numbers = self.possible_agents.index(agent), [0, *self.bids][-1], len(self.bids)
        return np.array(numbers, np.float32)

    def last(self):
        """Return what the agent needs whose turn it is."""
        agent = self.agent_selection
        ended = self.terminations[agent]
        return self.observe(agent), 0.0, ended, False, self.infos[agent]

    def step(self, action):
        """Take a bid."""
        if len(self.bids) == self._fails_at - 1:
            raise RuntimeError("the auction is cancelled")
        self.bids.append(int(action))
        self.agent_selection = self.possible_agents[len(self.bids) % 3]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if len(self.bids) == 6:
            sums = [self.bids[k] + self.bids[k + 3] for k in range(3)]
            won = [total == max(sums) for total in sums]
            self.rewards = {a: 1.0 if w else -1.0 for a, w in zip(self.agents, won, strict=True)}
            self.terminations = dict.fromkeys(self.agents, True)
