"""Hindsight experience replay: steps are also trained with goals that were reached later.

    actor (actor/relabelling.py): for each step, K goals that the episode reached within a window,
        and what the environment says of the step under these  ---> a part of the entry's extras
    learner: `Hindsight.relabel` gives each step one of its K + 1 goals, all with equal probability

(Andrychowicz et al. 2017, arXiv 1707.01495, strategy "future".) The steps stay those that were
played: they are sent, counted and replayed once, with K goals beside their own.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses
from impala_mm.algorithms.hindsight_settings import Settings
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import EnvironmentSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class OtherGoals(NamedTuple):
    """K goals of the step into an entry, and its results under these."""

    goal: Any  # [..., K, *shape]
    reward: Any  # float32 [..., K]
    terminated: Any  # bool [..., K]
    # float32 [..., K]: the reward of the entry before, which the network reads with the goal
    reward_before: Any


class Hindsight:
    """The goals in the entries of an algorithm, whose extras are (its own, `OtherGoals`)."""

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

    def zeros(self, batch: int | tf.Tensor) -> OtherGoals:
        """Return the place of goals that are not known yet, for entries [B]."""
        return tf.nest.map_structure(lambda s: tf.zeros([batch, *s.shape], s.dtype), self.spec)

    def single_steps(self, batch: Batch) -> Batch:
        """Return B unrolls of T+1 entries as T x B columns of two entries, in this order."""
        e = batch.unrolls
        steps = e.first.shape[0] - 1

        def pairs(x: tf.Tensor) -> tf.Tensor:
            both = tf.stack([x[:-1], x[1:]])  # [2, T, B, ...]
            return tf.reshape(both, [2, -1, *x.shape[2:]])

        def repeated(x: tf.Tensor) -> tf.Tensor:
            return tf.tile(x, [steps, *[1] * (len(x.shape) - 1)])

        rest = tf.nest.map_structure(repeated, list(batch[1:]))
        return Batch(tf.nest.map_structure(pairs, e), *rest)

    def relabel(self, batch: Batch, seed: tf.Tensor, group: LearnerGroup) -> Batch:
        """Return columns of two entries in which steps have one of their goals, chosen at random.

        Both entries of a column then show the same goal, and their extras are empty. `seed`, int64
        [2], is that of all learners, whose choices differ.
        """
        e: Entry = batch.unrolls
        others = OtherGoals(*(x[1] for x in e.extras[1]))  # [N, K, ...]
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
                extras=(),
            )
        )


def make(config: Settings, environment: EnvironmentSpec, remembers: bool) -> Hindsight | None:
    """Return the hindsight that the flags ask for, or None.

    `remembers` says whether the core state holds anything. UserMistake is raised if the environment
    or the network does not allow hindsight.
    """
    if not config.her_ratio:
        return None
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
    if remembers:
        raise UserMistake(
            f"{asked}: a step with another goal has no memory of earlier ones with that goal: use "
            f"a network without an LSTM or stacked frames, and no --normalize_rewards"
        )
    return Hindsight(config.her_ratio, config.her_window, environment)


def extras_spec(made: Hindsight | None, own: Any) -> Any:
    """Return the specs of an entry's extras, whose own part are these."""
    return (own, made.spec) if made else own
