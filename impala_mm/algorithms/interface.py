"""The interface between what learns and what moves data.

An algorithm is a module with `make(config, environment) -> Algorithm`. Actors call `act`, the
learner calls `update`; transport and `UnrollWriter` see only `unroll` and the flat vector of
`variables.acting`. A new algorithm is a new module here, or anywhere: --algorithm=package.module.
"""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class PolicyOutput(NamedTuple):
    """What an algorithm thinks of the entries it just read, for those who look on."""

    policy: tf.Tensor  # float32 [B, A]: probabilities by which it would explore
    value: tf.Tensor  # float32 [B]: discounted, clipped rewards that it expects from here on


class Context(NamedTuple):
    """What an update may depend on besides its batch; equal on all ranks."""

    frames: tf.Tensor  # float32 []: environment frames that all learners have trained on
    total: tf.Tensor  # float32 []: frames at which the run ends
    episode_return: tf.Tensor  # float32 []: mean raw return of 100 games; NaN before so many


class Algorithm(Protocol):
    """How to act and how to learn."""

    unroll: UnrollSpec
    # How many policy versions an actor may be behind; 0: it waits for the next after each unroll;
    # None: any number.
    max_lag: int | None
    variables: Variables

    def initial_state(self, batch: int) -> Any:
        """The core state that first = true restores: nest of [B, ...]."""

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """(actions int32 [B], core state, extras) after reading entries [B, ...].

        Of the entry only observation, reward, action and first may be read; `exploration` is 0 to
        act greedily, 1 to explore as in training (per environment: float32 [B]).
        """

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """What it thinks after reading entries [B, ...]; they may be read as by `act`."""

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Learns from one batch: (metrics, priorities float32 [B] fed back to the source).

        Runs inside one tf.function, without AutoGraph (`tf.cond`, not `if`, where a tensor decides;
        or a tf.function of its own); as many optimizer steps as it likes. What it computes its
        losses by goes to `exchange.differentiate`: that is what --xla compiles. The metrics become
        columns of metrics.jsonl; `grad_norm` must be one of them: an update whose norm is not
        finite ends the run.
        """


def entry_spec(environment: EnvironmentSpec, extras: Any) -> Entry:
    """The specs of one entry, as UnrollSpec wants them; `extras` as act() returns them."""
    flag = tf.TensorSpec([], tf.bool)
    return Entry(
        action=tf.TensorSpec([], tf.int32),
        reward=tf.TensorSpec([], tf.float32),
        terminated=flag,
        truncated=flag,
        observation=environment.observation,
        first=flag,
        extras=extras,
    )
