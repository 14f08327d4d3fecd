"""Environments that one vector steps: they are lost together, and rebuilt together.

If the vector raises, or if what it returns for one environment is wrong, every row is a fault until
the first `rebuild` opens another vector, with new seeds. `vectors` has those of gymnasium's
interface, and `atari` that of ale_py.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from impala_mm.environments import nests
from impala_mm.environments.faults import FAILURES, make_fault
from impala_mm.environments.types import EnvironmentSpec, Episode, Fault, Step


class OneVector:
    """The part of an implementation of `Environments` that opens its vector, and may lose it.

    A subclass says by `_reset` and `_step` how the vector is played. They write the newest step to
    `_now`.
    """

    def __init__(
        self, spec: EnvironmentSpec, num_envs: int, opens: Callable[[Any], Any], blank: Step
    ):
        """Open a vector of `num_envs` by `opens`, which takes what `_seed_of` returns.

        `blank` has the arrays of a step.
        """
        self.spec = spec
        self.faults: list[Fault] = []
        self._size, self._opens = num_envs, opens
        self._now = blank
        self._finished: list[Episode] = []
        self._openings = 0
        self._reopening: BaseException | None = None  # why no vector could be opened
        self._vector: Any = None  # None: it is lost
        self._next_seed: Any = None  # of the next reset; None: the vector has been seeded
        self._open()

    # -- what a subclass defines

    def _seed_of(self, opening: int) -> Any:
        """Return the seed of the first vector, for 0, or of those that are opened after faults."""
        raise NotImplementedError

    def _reset(self, vector: Any, seed: Any) -> None:
        """Reset all environments, and drop their running episodes."""
        raise NotImplementedError

    def _step(self, vector: Any, actions: Any) -> None:
        """Step each environment, or reset it if its previous step ended an episode."""
        raise NotImplementedError

    def _reason_of(self, error: BaseException) -> BaseException:
        """Return an error of the vector, or a better one."""
        return error

    # -- that of `Environments`

    def reset(self) -> Step:
        """Reset all environments and drop their running episodes; only the first is seeded."""
        return self._try("reset", self._reset_seeded)

    def step(self, actions: Any) -> Step:
        """Step each environment, or reset it if its previous step ended an episode."""
        self._reopening = None
        return self._try("step", self._step, actions)

    def rebuild(self, environment: int) -> Step:
        """Return an environment of a new vector, as its reset left it, in arrays of length 1.

        The first call after a fault opens the vector; if that fails, the others fail as well.
        """
        if self._reopening:
            raise self._reopening
        if self._vector is None:
            try:
                self._open()
                self._reset_seeded(self._vector)
            except FAILURES as error:
                self.close()
                self._reopening = error
                raise
            self._now.fault.fill(False)
        rows = [array[environment, None].copy() for array in nests.flatten(self._now)]
        return Step(*nests.pack(tuple(self._now), rows))

    def episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Close the vector."""
        if self._vector is not None:
            with contextlib.suppress(Exception):  # a vector need not have the method
                self._vector.close()
        self._vector = None

    def _open(self) -> None:
        """Open the first vector, or another one in its place."""
        self._next_seed = self._seed_of(self._openings)
        self._openings += 1
        self._vector = self._opens(self._next_seed)

    def _reset_seeded(self, vector: Any) -> None:
        seed, self._next_seed = self._next_seed, None
        self._reset(vector, seed)

    def _try(self, method: str, call: Callable[..., None], *arguments: Any) -> Step:
        """Return the step that a call writes; if it raises, mark all environments as broken."""
        if self._vector is not None:
            try:
                call(self._vector, *arguments)
            except FAILURES as error:
                named = f"all {self._size} environments of {self.spec.level_name}"
                called = getattr(self._vector, "vector", self._vector), method
                self.faults.append(make_fault(named, self._reason_of(error), called=called))
                self.close()
        if self._vector is None:
            self._now.blank(slice(None))
        return self._now
