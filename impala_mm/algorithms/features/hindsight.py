"""Hindsight experience replay: steps are also trained with goals that were reached later.

    actor (`Relabeller`): for each step, K goals that the episode reached within a window, and what
        the environment says of the step under these  ---> a part of the entry's extras
    learner (`Hindsight.prepare`): each step gets one of its K + 1 goals, with equal probability

(Andrychowicz et al. 2017, arXiv 1707.01495, strategy "future".) The steps stay those that were
played: they are sent, counted and replayed once, with K goals beside their own.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.feature import Feature, Host, Reading
from impala_mm.algorithms.feature_settings import HindsightSettings
from impala_mm.algorithms.parts import losses, update_seeds
from impala_mm.algorithms.types import Role
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec, UnrollSpec
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.faults import FaultElsewhere, make_fault
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Fault

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class OtherGoals(NamedTuple):
    """K goals of the step into an entry, and its results under these."""

    goal: Any  # [..., K, *shape]
    reward: Any  # float32 [..., K]
    terminated: Any  # bool [..., K]
    # float32 [..., K]: the reward of the entry before, which the network reads with the goal
    reward_before: Any


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return the hindsight that the flags ask for, in every role.

    UserMistake is raised if the environment does not allow it.
    """
    if not isinstance(config, HindsightSettings) or not config.her_ratio:
        return []
    asked = f"--her_ratio={config.her_ratio}"
    if why := environment.without_goals:
        raise UserMistake(
            f"{asked}: no other goals can be given to the steps of {environment.level_name}: "
            f"{why}: leave --her_ratio out, or change that in the environment"
        )
    if environment.action_repeats > 1:
        raise UserMistake(
            f"{asked} with --num_action_repeats={environment.action_repeats}: the reward of a step "
            f"is then the sum of several, which the environment cannot say for another goal: leave "
            f"it 0"
        )
    return [Hindsight(config.her_ratio, config.her_window, environment)]


class Hindsight(Feature):
    """The goals in the entries of an algorithm, of whose extras `OtherGoals` are a part."""

    needs_actors = "goals in hindsight are judged by the actors' environments"

    def __init__(self, copies: int, window: int, environment: EnvironmentSpec):
        self.copies, self.window = copies, window
        goal = environment.observation[ACHIEVED]
        numbers = tf.TensorSpec([copies], tf.float32)
        self.spec = OtherGoals(
            goal=tf.TensorSpec([copies, *goal.shape], goal.dtype),
            reward=numbers,
            terminated=tf.TensorSpec([copies], tf.bool),
            reward_before=numbers,
        )

    def attach(self, host: Host) -> None:
        """Refuse a network that remembers earlier observations, with the goals of then."""
        if host.remembers:
            raise UserMistake(
                f"--her_ratio={self.copies}: a step with another goal has no memory of earlier "
                f"ones with that goal: use a network without an LSTM, GRU or stacked frames, and "
                f"no --normalize_rewards"
            )

    def extras_spec(self) -> Any:
        """Return the specs of the other goals."""
        return self.spec

    def no_extras(self, batch: int | tf.Tensor) -> OtherGoals:
        """Return the place of goals that are not known yet, for entries [B]."""
        return tf.nest.map_structure(lambda s: tf.zeros([batch, *s.shape], s.dtype), self.spec)

    def sending_hook(
        self, unroll: UnrollSpec, environments: Any, size: int, seed: Sequence[int]
    ) -> "Relabeller":
        """Return what adds goals to the unrolls of `size` environments."""
        return Relabeller(unroll, self, environments, size, seed)

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Any]:
        """Return columns of two entries, whose steps have one of their goals."""
        seed = reading.seed(update_seeds.GOALS)
        single = self.single_steps(batch)
        return self.relabel(single, seed, reading.exchange.group), ()

    def single_steps(self, batch: Batch) -> Batch:
        """Return B unrolls of T+1 entries as T x B columns of two entries, in this order."""
        e = batch.unrolls
        steps = e.first.shape[0] - 1
        if steps == 1:
            return batch

        def pairs(x: tf.Tensor) -> tf.Tensor:
            both = tf.stack([x[:-1], x[1:]])  # [2, T, B, ...]
            return tf.reshape(both, [2, -1, *x.shape[2:]])

        def repeated(x: tf.Tensor) -> tf.Tensor:
            return tf.tile(x, [steps, *[1] * (len(x.shape) - 1)])

        rest = tf.nest.map_structure(repeated, list(batch[1:]))
        return Batch(tf.nest.map_structure(pairs, e), *rest)

    def relabel(self, batch: Batch, seed: tf.Tensor, group: LearnerGroup) -> Batch:
        """Return columns of two entries in which steps have one of their goals, chosen at random.

        Both entries of a column then show the same goal, and their extras hold no others. `seed`,
        int64 [2], is that of all learners, whose choices differ.
        """
        e: Entry = batch.unrolls
        others = OtherGoals(*(x[1] for x in e.extras[self.place]))  # [N, K, ...]
        everybodys = [group.size, batch.weight.shape[0]]
        drawn = tf.random.stateless_uniform(everybodys, seed, -1, self.copies, tf.int32)
        chosen = drawn[group.rank]
        replaced = chosen >= 0  # -1: the step's own goal
        pick = lambda x: tf.gather(x, tf.maximum(chosen, 0), batch_dims=1)  # noqa: E731
        new = OtherGoals(*map(pick, others))
        desired = e.observation[DESIRED]
        shown = tf.stack([losses.select(replaced, new.goal, desired[t]) for t in (0, 1)])
        return batch._replace(
            unrolls=e._replace(
                observation={**e.observation, DESIRED: shown},
                reward=tf.where(replaced, tf.stack([new.reward_before, new.reward]), e.reward),
                terminated=tf.stack(
                    [e.terminated[0], tf.where(replaced, new.terminated, e.terminated[1])]
                ),
                extras=tuple(() if i == self.place else part for i, part in enumerate(e.extras)),
            )
        )


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
        self._place = hindsight.place
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
        written: OtherGoals = entries.extras[self._place]
        written.goal[1:], written.reward[1:] = goal, reward
        written.reward_before[1:] = reward_before
        if over is None:
            written.terminated[1:] = entries.terminated[1:, None]
        else:
            written.terminated[1:] = over[: length * copies].reshape(length, copies)
        self.policies.append(policy)
        return content.tobytes()
