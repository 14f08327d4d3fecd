"""The part of an export for NumPy that is the same for all policies; its text is in policy.py."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class Policy:
    """A policy that plays any number of games at the same time, B."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        inputs: dict[str, tuple[str, list[int]]],
        step: Callable[..., dict[str, Any]],
        begin: Callable[..., dict[str, Any]],
        seed: int | None,
    ):
        self._weights, self._inputs, self._step, self._begin = weights, inputs, step, begin
        self._random = np.random.default_rng(seed)

    def initial_state(self, games: int) -> dict[str, np.ndarray]:
        """Return the recurrent state at the start of games, by name; it may have no arrays."""
        return self._begin(self._weights, self._random, np.int32(games))

    def act(
        self, state: dict[str, np.ndarray], **inputs: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return (outputs, next state) for the inputs [B, ...] that README.txt lists, by name.

        The actions are the most likely ones unless `exploration` is given.
        """
        given = {**inputs, **state}
        games = np.shape(np.asarray(given.get("first")))[:1]
        if "exploration" in self._inputs:
            given.setdefault("exploration", np.zeros(games))
        if wrong := given.keys() ^ self._inputs.keys():
            raise TypeError(f"act takes {', '.join(self._inputs)}; wrong or missing: {wrong}")
        arrays = {}
        for name, (dtype, shape) in self._inputs.items():
            array = np.asarray(given[name])
            if array.shape != (*games, *shape):
                raise ValueError(f"{name} has the shape {array.shape}, not {(*games, *shape)}")
            if array.dtype.kind == "f" and np.dtype(dtype).kind != "f":
                raise TypeError(f"{name} is {array.dtype}, not {dtype}")
            arrays[name] = array.astype(dtype)
        outputs = self._step(self._weights, self._random, **arrays)
        after = {name: outputs.pop(name) for name in state}
        return outputs, after
