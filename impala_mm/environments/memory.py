"""A memory task: what the first observation showed is asked for ten steps later.

    entry  0        1 .. 7    8         9          10
           cue      blank     "clear"   "answer"   blank, terminated; reward 1 or 0

The reward is 1 if the action at "answer" equals the cue (0 or 1) and the action at "clear" was 0.
The latter is there because networks also read their last action: one without memory could carry the
cue through its own actions. Whoever clears cannot, so without memory the mean is at most 0.5.
"""

from typing import Any

import gymnasium
import numpy as np

_CLEAR, _ANSWER = 8, 9


class Memory(gymnasium.Env):
    """Observation float32 [4], one-hot or all zeros: cue 0, cue 1, clear, answer. Actions: 0, 1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._cue = self._time = 0
        self._cleared = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """A new cue."""
        super().reset(seed=seed)
        self._cue, self._time = int(self.np_random.integers(2)), 0
        return self._show(self._cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Time passes; only two of the actions matter."""
        asked, self._time = self._time, self._time + 1
        if asked == _CLEAR:
            self._cleared = action == 0
        if asked == _ANSWER:
            return self._show(), float(self._cleared and action == self._cue), True, False, {}
        return self._show({_CLEAR: 2, _ANSWER: 3}.get(self._time)), 0.0, False, False, {}

    def _show(self, sign: int | None = None) -> np.ndarray:
        observation = np.zeros(4, np.float32)
        if sign is not None:
            observation[sign] = 1
        return observation
