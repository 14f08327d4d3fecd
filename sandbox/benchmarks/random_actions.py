"""Random actions of any kind, drawn before a measurement."""

from typing import Any

import numpy as np

from impala_mm.environments.actions import ActionSpec


def random_actions(actions: ActionSpec, environments: int, steps: int) -> list[Any]:
    """Return a policy's random actions, nests of arrays [environments, ...], for each step."""
    random = np.random.default_rng(0)
    return [
        actions.pack([_draw(part, environments, random) for part in actions.leaves])
        for _ in range(steps)
    ]


def _draw(part: Any, environments: int, random: np.random.Generator) -> np.ndarray:
    """Return random actions [environments, ...] of one part of a policy's action."""
    shape = (environments, *part.shape)
    if not part.choices:
        return random.uniform(-1, 1, shape).astype(np.float32)
    return (random.random(shape) * np.reshape(part.choices, part.shape)).astype(np.int32)
