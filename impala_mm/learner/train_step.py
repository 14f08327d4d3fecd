"""One update of an algorithm as a TensorFlow graph, with what it measures and exchanges.

`UpdateProfiler` traces some of them for TensorBoard: --profile=START:STOP.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.algorithms import contract
from impala_mm.algorithms.interface import Algorithm, Context
from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer, half_squares, summarize
from impala_mm.distributed.group import LearnerGroup
from impala_mm.runtime.log import Say

ADVICE = (
    "lower --learning_rate or --gradients_clipping, or bound the rewards: --max_abs_reward, "
    "--reward_clipping"
)
_MOST_NAMED = 3  # variables that a message names


class NotFinite(Exception):
    """An update, or what it starts from, is not finite: all learners end."""


class GradientNotFinite(NotFinite):
    """A gradient is not finite; no learner has applied it or a later one of its update."""

    def __init__(self, update: int, values: dict[str, float], gradients: float, where: str = ""):
        """Name the values that are not finite; `values` are those that this update measured.

        `where` names the learners to blame, such as " on learner 1".
        """
        bad = ", ".join(f"{n} = {v}" for n, v in values.items() if not math.isfinite(v))
        applied = "it was not applied"
        if gradients > 1:
            applied = "its steps from there on were not applied, and it was not saved"
        super().__init__(f"update {update + 1} is not finite{where} ({bad}); {applied}: {ADVICE}")


class VariablesNotFinite(NotFinite):
    """Variables are not finite; they are neither published to actors nor saved."""


def find_not_finite(variables: Sequence[tf.Variable]) -> list[str]:
    """Return the names of those variables that are not finite, or whose squares are not.

    Numbers above 1e19 are in float32 as useless as infinite ones: the next update fails.
    """
    floats = [variable for variable in variables if variable.dtype.is_floating]
    return [
        variable_names.of(v)
        for v in floats
        if not tf.math.is_finite(half_squares([v.read_value()]))
    ]


def describe_not_finite(variables: Sequence[tf.Variable]) -> str:
    """Return the names of some variables that are not finite, and how many more; usually empty."""
    names = find_not_finite(variables)
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else ""
    )


def _blame(told: Sequence[tuple[bool, dict[str, float]]]) -> tuple[dict[str, float], str]:
    """Return what the first learner to blame has measured, and the names of those; "" if all are.

    Each learner, by rank, tells whether a gradient of its own was not finite, and what it measured.
    Those to blame have something that is not finite where others have not.
    """
    bad = [
        {name for name, value in values.items() if not math.isfinite(value)}
        | ({"own gradient"} if faulty else set())
        for faulty, values in told
    ]
    common = set.intersection(*bad)
    ranks = [rank for rank, own in enumerate(bad) if own - common]
    if len(ranks) in {0, len(told)}:
        return told[0][1], ""
    named = " and ".join(map(str, ranks))
    return told[ranks[0]][1], f" on learner{'s' * (len(ranks) > 1)} {named}"


class StepResult(NamedTuple):
    """The results of training on one batch."""

    metrics: dict[str, float]  # NaN: not measured in this update
    reduce_seconds: float  # time spent waiting for the other learners' gradients
    priorities: tf.Tensor  # float32 [B], for the batch source
    acting_values: list[tf.Tensor]  # values of the acting variables after the update
    weight_size: float = 0.0  # root of the mean square of the trained variables


class NothingCompiled(Exception):
    """An algorithm computes nothing that --xla could compile."""


class TrainStep:
    """The algorithm's update as a graph, traced for the shapes of the first batch."""

    def __init__(
        self,
        algorithm: Algorithm,
        group: LearnerGroup,
        config: Config,
        read_acting_values: Callable[[], Sequence[tf.Tensor]],
        checked: Sequence[tf.Variable] = (),
        method: str = "update",
    ):
        """Make the graph of the algorithm's `update` or `offline_update`.

        The variables `checked`, equal on all learners, must be finite after each update.
        """
        self._checked = [variable for variable in checked if variable.dtype.is_floating]
        trained = set(map(id, algorithm.variables.trained)) if self._checked else set()
        self._weights = [variable for variable in self._checked if id(variable) in trained]
        self._others = [variable for variable in self._checked if id(variable) not in trained]
        self._num_weights = sum(variable.shape.num_elements() for variable in self._weights)
        self._algorithm, self._method, self._config = algorithm, method, config
        self._read_acting_values = read_acting_values
        self._graph: Callable[..., Any] | None = None
        self._names: list[str] = []
        # The metrics that the last update did not measure. Where an update fails, they are NaN for
        # the same reason, and say nothing about it.
        self._unmeasured: set[str] = set()
        self._exchange = GradientReducer(group, config)

    def __call__(
        self, batch: Batch, frames: float, total: float, episode_return: float, updates: int = 0
    ) -> StepResult:
        """Train on a batch, after `updates` updates; the other numbers are those of `Context`.

        Raises GradientNotFinite or VariablesNotFinite, on all learners alike.
        """
        with tf.device("/CPU:0"):
            schedule = tf.constant([frames, total, episode_return], tf.float32)
            # TensorFlow keeps the tensor of each Python number for ever, of NumPy's it does not.
            number = tf.constant(np.int64(updates))
        if self._graph is None:
            # With --debug, each operation is computed where it stands.
            eager = tf.config.functions_run_eagerly()
            self._graph = self._trace if eager else self.trace(batch)
        numbers, priorities, acting_values = self._graph(batch, schedule, number)
        numbers, count = numbers.numpy(), len(self._names)
        recorded, (halved, of_others) = summarize(numbers[count:-2]), numbers[-2:].tolist()
        metrics = dict(zip(self._names, numbers[:count].tolist(), strict=True))
        if self._exchange.applied:
            metrics.setdefault("clipped_share", recorded.clipped_share)
        if self._exchange.averaged:
            metrics.setdefault("grad_norm", recorded.grad_norm)
        if not recorded.is_finite:
            measured = {
                name: value
                for name, value in metrics.items()
                if not (math.isnan(value) and name in self._unmeasured)
            }
            measured["grad_norm"] = recorded.grad_norm
            bad_names = find_not_finite(self._checked)[:_MOST_NAMED]
            measured |= {f"variable {name}": math.nan for name in bad_names}
            # All learners are here, since they have averaged the same gradients.
            told = self._exchange.group.gather((recorded.own_faults > 0, measured), "not_finite")
            measured, where = _blame(told)
            raise GradientNotFinite(updates, measured, recorded.gradients, where)
        is_finite = math.isfinite(halved + of_others)
        if not is_finite and (bad := describe_not_finite(self._checked)):
            raise VariablesNotFinite(
                f"update {updates + 1} made variables infinite, NaN or larger than 1e19: {bad}; "
                f"they are not saved: {ADVICE}"
            )
        self._unmeasured = {name for name, value in metrics.items() if math.isnan(value)}
        size = math.sqrt(2 * halved / self._num_weights) if self._num_weights else 0.0
        return StepResult(metrics, recorded.wait_seconds, priorities, list(acting_values), size)

    def trace(self, batch: Batch) -> Callable[..., Any]:
        """Return the graph for batches like this one, of tensors or their specs; run nothing.

        It is a concrete function, which is called directly: its look-up costs as much as the call.
        Raises AlgorithmMistake, on all learners alike, and NothingCompiled.
        """
        schedule, number = tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int64)
        function = tf.function(self._trace, autograph=False)
        traced = function.get_concrete_function(batch, schedule, number)
        contract.check_assigned(self._algorithm, self._method, traced, self._exchange)
        return traced

    def _trace(
        self, batch: Batch, schedule: tf.Tensor, number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Build the graph: (float32 [N], priorities, acting values).

        The numbers are the metrics and the record of the exchange.
        """
        reducer = self._exchange
        reducer.begin(number)
        context = Context(*tf.unstack(schedule))
        metrics, priorities = contract.update(
            self._algorithm, batch, context, reducer, self._method
        )
        if self._config.xla and not reducer.differentiated:
            raise NothingCompiled(
                f"--xla compiles what exchange.differentiate computes, which "
                f"--algorithm={self._config.algorithm} does not call: leave --xla out"
            )
        self._names = list(metrics)
        values = [tf.cast(value, tf.float32) for value in metrics.values()]
        squares = [
            half_squares([variable.read_value() for variable in group])
            for group in (self._weights, self._others)
        ]
        measured = [tf.stack(values) if values else [], *reducer.read(), squares]
        measured = tf.concat(measured, axis=0)
        return measured, priorities, self._read_acting_values()


class UpdateProfiler:
    """A profiler of this process's updates START to STOP - 1, counted from 0."""

    def __init__(self, text: str, logdir: Path, say: Say):
        """Trace the updates that `text`, START:STOP, names; none if it is empty."""
        self._begin, self._end = map(int, text.split(":")) if text else (0, 0)
        self._logdir, self._say = logdir, say
        self._number = 0
        self._running = False

    def update(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the next update, which traces it if it is one of these."""
        number, self._number = self._number, self._number + 1
        if number == self._begin < self._end:
            tf.profiler.experimental.start(str(self._logdir))
            self._running = True
        if number == self._end:
            self.stop()
        if not self._running:
            return contextlib.nullcontext()
        return tf.profiler.experimental.Trace("update", step_num=number, _r=1)

    def stop(self) -> None:
        """End the trace, if one is running, and write it."""
        if self._running:
            self._running = False
            last = min(self._number, self._end) - 1
            tf.profiler.experimental.stop()
            self._say(
                f"traced updates {self._begin} to {last}: {self._logdir}/plugins/profile "
                f"(TensorBoard shows it after `pip install tensorboard-plugin-profile`)"
            )
