"""Environments that one vector steps: they are lost together, and opened again together.

If the vector raises, or if what it returns for one environment is wrong, every row is a fault until
a later step opens another vector, with new seeds. `vectors` has those of gymnasium's interface, and
`atari` that of ale_py.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from impala_mm.environments.faults import FAILURES, Reopening, make_fault
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
        self._number = 0  # of the newest step or reset
        self._reopening = Reopening()
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
        return self._try("step", self._step, actions)

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
        self._now.fault.fill(False)
        self._reset(vector, seed)

    def _try(self, method: str, call: Callable[..., None], *arguments: Any) -> Step:
        """Return the step that a call writes; if it raises, mark all environments as broken.

        A vector that is lost is opened again and reset, once a step has shown the fault.
        """
        self._number += 1
        is_shown = self._now.fault.all()
        try:
            if self._vector is None and is_shown and self._reopening.is_due(self._number):
                method, call, arguments = "reset", self._reset_seeded, ()
                self._open()
            if self._vector is not None:
                call(self._vector, *arguments)
        except FAILURES as error:
            self._lose(method, error)
        if self._vector is None:
            self._now.blank(slice(None))
        return self._now

    def _lose(self, method: str, error: BaseException) -> None:
        """Record a fault of all environments, and close the vector if one is open."""
        named, called = f"all {self._size} environments of {self.spec.level_name}", ("", "")
        if self._vector is not None:
            error = self._reason_of(error)
            called = getattr(self._vector, "vector", self._vector), method
        self.faults.append(make_fault(named, error, called=called))
        self._reopening.failed(self._number)
        self.close()
