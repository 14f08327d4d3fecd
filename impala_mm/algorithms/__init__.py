"""The seam between what learns and what moves data.

An algorithm is a module with `make(config, environment) -> Algorithm`. Actors call `act`, the
learner calls `update`; transport, queue and assembly see only `unroll` and the flat vector of
`variables.acting`. A new algorithm is a new module here, or anywhere: --algorithm=package.module.
"""

import dataclasses
import importlib
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from impala_mm import devices, flags
from impala_mm.config import Config
from impala_mm.environments import EnvironmentSpec
from impala_mm.exchange import Exchange
from impala_mm.trajectory import Batch, Entry, UnrollSpec

BUILT_IN = ("impala",)


class Variables(NamedTuple):
    """All of them are broadcast at the start and checkpointed."""

    trained: list[tf.Variable]  # what the gradients reach
    # Targets, normalisers, temperatures, optimizer slots; of a tf.random.Generator, its state.
    carried: list[tf.Variable]
    acting: list[tf.Variable]  # what actors receive; of the trained and carried ones


class Judgement(NamedTuple):
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
    max_lag: int | None  # how many versions an actor may be behind; None: any number
    variables: Variables

    def initial_state(self, batch: int) -> Any:
        """The core state that first = true restores: nest of [B, ...]."""

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """(actions int32 [B], core state, extras) after reading entries [B, ...].

        Of the entry only observation, reward, action and first may be read; `exploration` is 0 to
        act greedily, 1 to explore as in training (per environment: float32 [B]).
        """

    def judge(self, entry: Entry, core_state: Any) -> Judgement:
        """What it thinks after reading entries [B, ...]; they may be read as by `act`."""

    def update(
        self, batch: Batch, context: Context, exchange: Exchange
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Learns from one batch: (metrics, priorities float32 [B] fed back to the source).

        Runs inside one tf.function, without AutoGraph (`tf.cond`, not `if`, where a tensor decides;
        or a tf.function of its own); as many optimizer steps as it likes. What it computes its
        losses by goes to `exchange.differentiate`: that is what --xla compiles.
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


def make(config: Config, environment: EnvironmentSpec) -> Algorithm:
    """The algorithm that --algorithm names, for this environment."""
    config = dataclasses.replace(
        config, precision=devices.precision(config.precision, environment.observation)
    )
    name = config.algorithm
    module = f"{__name__}.{name}" if name in BUILT_IN else name
    try:
        return importlib.import_module(module).make(config, environment)
    except ModuleNotFoundError as error:
        if error.name not in {module, module.split(".")[0]}:
            raise
        flags.refuse(
            f"--algorithm={name}: there is no such algorithm; write {', '.join(BUILT_IN)} or the "
            f"name of a module of yours (package.module)"
        )
