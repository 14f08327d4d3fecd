"""Goals in hindsight: what an actor, where the environments are, adds to its unrolls.

    finished unrolls ---> wait until the goals that their steps may get are known ---> sent
                                                     ^ environments judge each step by these goals

`actor.Player` has one `Relabeller` for each group of environments; `algorithms/hindsight.py` reads
what is written here.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.hindsight import ACHIEVED, Hindsight, OtherGoals
from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.environments.faults import FaultElsewhere, make_fault
from impala_mm.environments.types import BadLevel, Fault


class GoalEnvironments(Protocol):
    """Environments that can judge a step by another goal."""

    faults: list[Fault]

    def judge_goals(
        self, environment: int, achieved: np.ndarray, desired: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return rewards float32 [N], and whether episodes end, bool [N] or None.

        BadLevel or FaultElsewhere is raised if the environment, which is then broken, cannot.
        """


class _Waiting(NamedTuple):
    """An unroll that waits for later steps."""

    content: np.ndarray  # uint8 [size]
    entries: Entry  # [T+1, ...]: views of the content
    policy: Any  # the one that played it


class Relabeller:
    """The finished unrolls of E environments; each is complete once its steps' window is over."""

    def __init__(
        self,
        unroll: UnrollSpec,
        hindsight: Hindsight,
        environments: GoalEnvironments,
        size: int,
        seed: Sequence[int],
    ):
        """Relabel the unrolls of `environments`, of which there are `size`."""
        self._codec, self._length = UnrollCodec(unroll), unroll.length
        self._copies, self._window = hindsight.copies, hindsight.window
        self._environments = environments
        self._waiting = [deque[_Waiting]() for _ in range(size)]
        self._random = np.random.default_rng(seed)
        self._has_judged = False  # whether an environment has judged an unroll
        self.failed = 0  # environments that could not judge in the last call of `add`
        self.policies: list[Any] = []  # those that played the unrolls which it returned

    def add(
        self, numbers: Sequence[int], contents: Sequence[bytes], policy: Any = None
    ) -> list[bytes]:
        """Take an unroll of each of these environments, and return those that are complete.

        `policy` played the new ones. The other environments had a fault: what waits of them is
        dropped. So it is if one cannot judge a step, which is a fault. BadLevel is raised if none
        has judged a step before.
        """
        self.failed, self.policies = 0, []
        given = dict(zip(numbers, contents, strict=True))
        complete = []
        for number, waiting in enumerate(self._waiting):
            if number not in given:
                waiting.clear()
                continue
            waiting.append(self._read(given[number], policy))
            try:
                while waiting and (ends := self._find_ends(waiting)) is not None:
                    complete.append(self._complete(number, waiting, ends))
                    self._has_judged = True
            except (BadLevel, FaultElsewhere) as error:
                if isinstance(error, BadLevel) and not self._has_judged:
                    raise
                self._fail(number, error)
        return complete

    def _fail(self, number: int, error: Exception) -> None:
        """Drop what waits of an environment that could not judge, and record its fault."""
        self._waiting[number].clear()
        self.failed += 1
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        where = f"environment {number}, asked for rewards under other goals"
        self._environments.faults.append(make_fault(where, cause, number))

    def _read(self, content: bytes, policy: Any) -> _Waiting:
        row = np.frombuffer(content, np.uint8).copy()
        entries, _ = self._codec.arrays(row[None])
        return _Waiting(row, tf.nest.map_structure(lambda leaf: leaf[0], entries), policy)

    def _find_ends(self, waiting: deque[_Waiting]) -> np.ndarray | None:
        """Return the last step that may give its goal to each step of the first unroll, int [T].

        Steps are counted from that unroll's first one. Return None if it is not known yet.
        """
        new = [each.entries for each in waiting]
        over = np.concatenate([e.terminated[1:] | e.truncated[1:] for e in new])
        first = np.concatenate([e.first[1:] for e in new])
        over[:-1] |= first[1:]  # the last step before a reset
        length, known = self._length, len(over)
        if known < length - 1 + self._window and not over[length - 1 :].any():
            return None
        steps = np.arange(known)
        ends = np.minimum.accumulate(np.where(over, steps, known - 1)[::-1])[::-1]
        return np.minimum(ends, steps + self._window - 1)[:length]

    def _complete(self, number: int, waiting: deque[_Waiting], ends: np.ndarray) -> bytes:
        """Write goals into the first unroll that waits, and return it."""
        length, copies = self._length, self._copies
        achieved = np.concatenate([each.entries.observation[ACHIEVED][1:] for each in waiting])
        content, entries, policy = waiting.popleft()
        before, reached = (entries.observation[ACHIEVED][a:b] for a, b in ((0, -1), (1, None)))
        drawn = self._random.integers(
            np.arange(length)[:, None], ends[:, None] + 1, size=[length, copies]
        )
        goal = achieved[drawn]  # [T, K, ...]
        flat = goal.reshape(-1, *goal.shape[2:])
        repeated = [np.repeat(each, copies, axis=0) for each in (reached, before)]
        rewards, over = self._environments.judge_goals(
            number, np.concatenate(repeated), np.concatenate([flat, flat])
        )
        reward, reward_before = rewards.reshape(2, length, copies)
        written: OtherGoals = entries.extras[1]
        written.goal[1:], written.reward[1:] = goal, reward
        written.reward_before[1:] = reward_before
        if over is None:
            written.terminated[1:] = entries.terminated[1:, None]
        else:
            written.terminated[1:] = over[: length * copies].reshape(length, copies)
        self.policies.append(policy)
        return content.tobytes()
