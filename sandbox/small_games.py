"""Small games, each of which shows one thing; curves.md has the curves.

`Harvest` has MultiDiscrete actions. `TicTacToe` forbids actions by a mask. Nobody finds the only
reward of `Stairs` by chance. Each is learnt within some minutes:

    python experiment.py --level_name=sandbox.small_games:Harvest-v0
    python experiment.py --level_name=sandbox.small_games:TicTacToe-v0
    python experiment.py --level_name=sandbox.small_games:Stairs-v0 --algorithm=ppo --rnd_weight=1
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

_SIDE = 7  # places along each side of the field
_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class Harvest(gymnasium.Env):
    """A field of 7x7 places, on which one fruit grows at a time; each that is picked is worth 1.

    An action has a part for each direction: 0 moves one place back, 1 not at all, 2 one place
    forward. The observation holds the picker's and the fruit's place, from -1 to 1.
    """

    observation_space = Box(-1, 1, (4,), np.float32)
    action_space = MultiDiscrete([3, 3])

    def reset(self, *, seed=None, options=None):
        """Put the picker in the middle, and a fruit somewhere."""
        super().reset(seed=seed)
        self._picker = np.full(2, _SIDE // 2)
        self._grow()
        return self._look(), {}

    def step(self, action):
        """Move the picker; a fruit that it reaches is picked, and another one grows."""
        self._picker = np.clip(self._picker + action - 1, 0, _SIDE - 1)
        picked = np.array_equal(self._picker, self._fruit)
        if picked:
            self._grow()
        return self._look(), float(picked), False, False, {}

    def _grow(self):
        """Let a fruit grow at any place but the picker's."""
        self._fruit = self._picker
        while np.array_equal(self._fruit, self._picker):
            self._fruit = self.np_random.integers(_SIDE, size=2)

    def _look(self):
        places = np.concatenate([self._picker, self._fruit])
        return (2 * places / (_SIDE - 1) - 1).astype(np.float32)


class TicTacToe(gymnasium.Env):
    """Tic-tac-toe against an opponent that plays at random; either may begin.

    An action is a square, and only free squares are allowed. The observation holds 1 for the
    agent's marks, -1 for the opponent's and 0 for free squares. A win is worth 1, a defeat -1.
    """

    observation_space = Box(-1, 1, (9,), np.float32)
    action_space = Discrete(9)

    def reset(self, *, seed=None, options=None):
        """Clear the board; in half of all games the opponent moves first."""
        super().reset(seed=seed)
        self._squares = np.zeros(9, np.float32)
        if self.np_random.random() < 0.5:
            self._answer()
        return self._squares.copy(), self._offer()

    def step(self, action):
        """Mark a free square, and let the opponent mark another one."""
        if self._squares[action]:
            raise ValueError(f"square {action} is not free: {self._squares}")
        self._squares[action] = 1
        reward = float(self._has_won(1))
        if not reward and not self._squares.all():
            self._answer()
            reward = -float(self._has_won(-1))
        over = bool(reward) or bool(self._squares.all())
        return self._squares.copy(), reward, over, False, self._offer()

    def _answer(self):
        self._squares[self.np_random.choice(np.flatnonzero(self._squares == 0))] = -1

    def _has_won(self, mark):
        return any(all(self._squares[square] == mark for square in line) for line in _LINES)

    def _offer(self):
        return {"action_mask": self._squares == 0}


class Stairs(gymnasium.Env):
    """A staircase of 20 steps: one of two actions climbs the next one, the other falls to the foot.

    Which one climbs differs from step to step, but not from game to game. The top is worth 1 and
    ends the game: random actions reach it once in a million attempts. The observation has a 1 at
    the place, from the foot to the top, and 0 elsewhere.
    """

    steps = 20
    action_space = Discrete(2)
    observation_space = Box(0, 1, (steps + 1,), np.float32)

    def __init__(self):
        self._climbs = np.random.default_rng(0).integers(2, size=self.steps)

    def reset(self, *, seed=None, options=None):
        """Begin at the foot."""
        super().reset(seed=seed)
        self._place = 0
        return self._look(), {}

    def step(self, action):
        """Climb a step, or fall."""
        self._place = self._place + 1 if action == self._climbs[self._place] else 0
        top = self._place == self.steps
        return self._look(), float(top), top, False, {}

    def _look(self):
        return np.eye(self.steps + 1, dtype=np.float32)[self._place]


gymnasium.register("Harvest-v0", Harvest, max_episode_steps=50, reward_threshold=14)
gymnasium.register("TicTacToe-v0", TicTacToe, reward_threshold=0.9)
gymnasium.register("Stairs-v0", Stairs, max_episode_steps=60)
