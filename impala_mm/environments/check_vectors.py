"""The check of a level whose environments are a vector: all rows that it returns, and its resets.

`check_process.py` runs it for levels of all kinds; `check` explains findings. The vector is played
as in a training, by `VectorEnvironments`, whose fault is an error. `_Seen` checks what the vector
returns before it is converted.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from impala_mm.environments import nests
from impala_mm.environments.check import (
    REACH,
    SEED,
    SLOW_RESET,
    STEPS,
    Finding,
    LevelCheck,
    are_equal,
    find_problems,
)
from impala_mm.environments.levels import MadeLevel
from impala_mm.environments.observations import ObservationConversion
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.environments.vectors import SAME, OpenVector, VectorEnvironments, VectorLevel

_COUNT = 3  # environments of the vector


class AnyLevelCheck(LevelCheck):
    """The check of one level, whose environments are a vector or single ones."""

    def _play(self, level: MadeLevel, until: float) -> bool:
        if not isinstance(level, VectorLevel):
            return super()._play(level, until)
        begin = time.monotonic()
        self._environment = self._call("making it", level.open, False, _COUNT, SEED)
        self._check_spaces()
        self._spaces = self._call("making one environment", level.conversion)
        sees = lambda call: self._starts(call, self._steps)  # noqa: E731
        seen = _Seen(self._environment, self._spaces.observation, sees, self._find)
        spec = EnvironmentSpec(level.name, None, self._spaces.actions, level.repeats, None)
        envs = VectorEnvironments(spec, self._spaces, lambda seed: seen, _COUNT, SEED)
        step, first, seconds = envs.reset(), seen.last, time.monotonic() - begin
        while self._steps < STEPS and not envs.faults:
            if time.monotonic() > until:
                return False
            step = envs.step(spec.actions.sample(_COUNT, step.mask, self._random, REACH))
            self._steps += 1
        for fault in envs.faults:
            reason = fault.text.partition(": ")[2]
            self._finds(Finding(True, f"{level.name}: {seen.call}: {reason}", fault.traceback))
        if not envs.faults and seconds < SLOW_RESET:
            self._check_seeds(level, first)
        return True

    def _check_seeds(self, level: VectorLevel, first: Any) -> None:
        """Compare the first observations with those of vectors of the same seed and another one."""
        begins = []
        for seed in (SEED, SEED + _COUNT):
            vector = self._call(
                f"making it again with seed={seed}", level.open, False, _COUNT, seed
            )
            begins.append(self._call(f"its reset with seed={seed}", vector.reset, seed=seed)[0])
            vector.close()
        same, other = begins
        rows = [nests.row(same, i) for i in range(_COUNT)]
        if not are_equal(first, same):
            self._find(
                "seed",
                False,
                f"two vectors with seed={SEED} began with different observations, so that runs "
                f"cannot be repeated: draw all random numbers from generators that reset(seed=...) "
                f"makes, or the maker from its seed",
            )
        elif not are_equal(same, other) and all(are_equal(rows[0], row) for row in rows):
            self._find(
                "alike",
                False,
                f"all {_COUNT} environments began with the same observation, which another seed "
                f"changes: seed environment i with seed + i",
            )


class _Seen(OpenVector):
    """A vector whose observations and resets are checked as it returns them."""

    def __init__(
        self,
        opened: OpenVector,
        conversion: ObservationConversion,
        starts: Callable[[str], None],
        finds: Callable[[str, bool, str], None],
    ):
        super().__init__(opened.vector, opened.takes_seeds)
        self._conversion, self._starts, self._finds = conversion, starts, finds
        self.call = ""  # the newest, in words
        self.last: Any = None  # the newest observations
        self._steps, self._over = 0, np.zeros(self.num_envs, bool)

    def reset(self, *, seed: int | None = None, only: np.ndarray | None = None) -> Any:
        """Reset; see whether the others are left alone."""
        self._start(
            "reset" if only is None else f"reset with a reset_mask after step {self._steps}"
        )
        raw, info = super().reset(seed=seed, only=only)
        before = self.last
        self._see(raw)
        if only is not None and not are_equal(nests.row(before, ~only), nests.row(raw, ~only)):
            self._finds(
                "reset_mask",
                True,
                f"{self.call} changed the observations of environments that the mask does not "
                f"select: reset only the others, and return the newest observations of these",
            )
        return raw, info

    def step(self, actions: Any) -> Any:
        """Step; see whether episodes end and begin as the mode says."""
        self._steps += 1
        self._start(f"step {self._steps}")
        results = super().step(actions)
        raw, reward, terminated, truncated, info = results
        self._see(raw)
        begun, self._over = self._over, np.logical_or(terminated, truncated)
        stated, final = f"its mode is {self.mode.name}", "final_obs" in info
        if self.mode is not SAME and final:
            self._find_mode(
                f'{stated}, and {self.call} returned info["final_obs"], as of SAME_STEP'
            )
        elif self.mode is SAME and self._over.any() and not final:
            self._find_mode(f'{stated}, and {self.call} ended an episode without info["final_obs"]')
        elif self.mode is not SAME and not self.resets_some and np.any(np.asarray(reward)[begun]):
            self._find_mode(
                f"{stated}, and {self.call}, by which the next episode of an environment was to "
                f"begin, brought it the reward {np.asarray(reward)[begun][0]:g}: it began before"
            )
        return results

    def _find_mode(self, sentence: str) -> None:
        self._finds("mode", False, f'{sentence}: correct metadata["autoreset_mode"], or the vector')

    def _start(self, call: str) -> None:
        self.call = call
        self._starts(call)

    def _see(self, raw: Any) -> None:
        """Keep the observations, and report probable mistakes in them; errors become faults."""
        self.last = nests.pack(raw, [np.array(leaf) for leaf in nests.flatten(raw)])
        if any(len(leaf) != self.num_envs for leaf in nests.flatten(raw)):
            return
        for i in range(self.num_envs):
            row = nests.row(raw, i)
            for kind, is_error, text in find_problems(
                row, self.observation_space, self._conversion
            ):
                if not is_error:
                    self._finds(kind, False, f"{self.call} returned for environment {i} {text}")
