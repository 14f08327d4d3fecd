"""Gradients of an algorithm's update: computed here, averaged over learners, then applied."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.distributed import minibatches
from impala_mm.distributed.group import LearnerGroup
from impala_mm.distributed.minibatches import Metrics, MinibatchResult

Gradients = Sequence[tf.Tensor | tf.IndexedSlices | None]


class AppliedGradient(NamedTuple):
    """Facts about a gradient that was applied."""

    norm: tf.Tensor  # float32 []: the averaged gradient's global norm, before clipping
    clipped: tf.Tensor  # float32 []: 1 if clipping changed the gradient, else 0


class GradientReducer:
    """The gradient operations of an update, which `TrainStep` passes to the algorithm.

    All methods may be called any number of times, also within `tf.cond`, `tf.while_loop` and inner
    tf.functions. Every learner must make the same calls: where a condition decides about a call, it
    must be equal on all learners, for example because it compares an `exchange.mean`. A `name`
    helps to recognise a call in error messages. It need not be unique: repeated names are numbered.
    """

    def __init__(self, group: LearnerGroup, config: Config):
        self.group = group
        self._clipping = config.gradients_clipping  # negative: off
        self._mode = config.gradients_clipping_mode
        self._xla, self._seed = config.xla, config.seed
        self._record = UpdateRecord()
        self._compiling = False  # whether what is being traced will be compiled by XLA
        self._start_trace(0)

    @property
    def variables(self) -> Sequence[tf.Variable]:
        """The variables to which an update writes what it measures, and which it does not keep."""
        return self._record.variables

    def _start_trace(self, update: tf.Tensor | int) -> None:
        self._update = update  # int64 []: the number of the update
        self._names: set[str] = set()
        self._loops = 0
        # Whether these methods were called.
        self.differentiated = self.averaged = self.applied = False

    @property
    def update(self) -> tf.Tensor:
        """The number of the update, int64 [], the same on all learners."""
        return tf.convert_to_tensor(self._update, tf.int64)

    def mean(self, value: Any, name: str = "mean") -> tf.Tensor:
        """Return a tensor, variable or number averaged over learners.

        Integers and bools are averaged as float32. --gradient_dtype does not round the average.
        """
        (averaged,) = self.group.mean([_as_float(value)], self._unique(name))
        if self.group.size > 1:
            # In a loop, the next iteration waits for this, and so for the average.
            with tf.control_dependencies([averaged]):
                self._record.add()
        return averaged

    def differentiate(
        self,
        compute: Callable[[], Any],
        variables: Sequence[tf.Variable],
        allow_unused: bool = False,
    ) -> tuple[Any, list[tf.Tensor]]:
        """Return what `compute` returns, and the gradients of its first item, which is a loss.

        Raises ValueError if the loss does not depend on one of the variables; with `allow_unused`
        its gradient is then None.

        With --xla, the forward and backward pass are compiled together. The averaging and the
        optimizer are not: Horovod does not work within XLA, and the optimizer's step is already
        one kernel for each variable.
        """

        def passes() -> tuple[Any, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                computed = compute()
            gradients = tape.gradient(computed[0], variables)
            if not allow_unused:
                _refuse_unused(gradients, variables)
            return computed, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

        self.differentiated = True
        if not self._xla:
            return passes()
        self._compiling = True
        try:
            return tf.function(passes, autograph=False, jit_compile=True)()
        finally:
            self._compiling = False

    def average(self, gradients: Gradients, name: str = "gradients") -> list[tf.Tensor]:
        """Return the gradients averaged over learners, for an algorithm that applies them itself.

        None stays None. If an average is not finite, the run ends after this update. `apply` needs
        no call of this.
        """
        reduced = self._reduce(gradients, name)
        finite = self._record.add(norm=_global_norm(reduced))
        if self.group.size > 1:
            tf.cond(finite, lambda: tf.constant(False), lambda: self._note_own(gradients))
        return reduced

    def apply(
        self,
        optimizer: snt.Optimizer,
        gradients: Gradients,
        variables: Sequence[tf.Variable],
        name: str = "gradients",
        clipping: float | None = None,
    ) -> AppliedGradient:
        """Average the gradients over learners, clip them, then apply them.

        In this order every learner clips the same gradient by the same factor, so equal variables
        stay equal. A gradient that is None leaves its variable unchanged. `clipping` replaces
        --gradients_clipping; a negative value turns clipping off.

        No learner applies a gradient that is not finite, or any later gradient of this update. All
        learners then end, and the update is not saved.
        """
        if len(gradients) != len(variables):
            raise ValueError(
                f"exchange.apply ({name}) was given {len(gradients)} gradients for "
                f"{len(variables)} variables"
            )
        reduced = self._reduce(gradients, name)
        norm = _global_norm(reduced)
        limit = self._clipping if clipping is None else clipping
        clipped, changed = self._clip(reduced, norm, limit)
        changed = tf.cast(changed, tf.float32)
        self.applied = True

        def step() -> tf.Tensor:
            optimizer.apply(clipped, variables)
            return tf.constant(True)

        finite = self._record.add(norm=norm, clipped=changed)
        tf.cond(finite, step, lambda: self._note_own(gradients))
        return AppliedGradient(norm, changed)

    def minibatches(
        self,
        step: Callable[..., Metrics],
        size: int | tf.Tensor,
        epochs: int,
        count: int,
        stop_above: Mapping[str, float] | None = None,
        renewed: tuple[Any, Callable[[], Any] | None] | None = None,
        compiled: bool = False,
    ) -> MinibatchResult:
        """Call `step` for each of `count` shuffled minibatches, `epochs` times, in a graph loop.

        `size` is the number of columns, or of other items, among which the minibatches divide.
        `step(indices)`, int32 [size / count], makes one or more steps with `differentiate` and
        `apply` on these items, which it selects with `batches.columns` or tf.gather, and returns
        metrics. The order depends on --seed and the number of the update, so all learners use the
        same one, each for its own items.

        The loop ends early after the first step in which a metric's mean over the learners that
        measured it is above its value in `stop_above`, such as {"kl": 0.02}; that step has then
        been made. A metric may also be a sum and the count of its terms, [2]: its mean is then that
        of all learners' terms. The loop also ends if a gradient is not finite; see `apply`.

        With `renewed`, a nest of tensors and a function that returns another one, `step` receives
        this nest after the indices. The function is called before each epoch but the first; None:
        the nest stays.

        If `compiled`, XLA compiles the loop of a learner that trains alone: thousands of small
        operations become one. `step` must then consist of operations that XLA knows, and `size`
        be a number. Several learners' loops are not compiled, since Horovod does not work within
        XLA.

        Returns each metric's average over the steps that measured it (NaN: not measured), and the
        number of steps. Raises ValueError if `size` is not a multiple of `count`.
        """
        size = minibatches.check_size(size, epochs, count)
        self._loops += 1
        seed = self._seed * 1000 + self._loops  # another order for each loop of one update
        parts = minibatches.shuffled_parts(size, epochs, count, seed, self._update)
        return minibatches.run(
            step,
            parts,
            count,
            stop_above or {},
            self.mean,
            self._record.is_finite,
            renewed,
            compiled and self.group.size == 1,
        )

    def begin(self, update: tf.Tensor) -> None:
        """Begin an update, of this number, int64 [], equal on all learners.

        It is called at the beginning of each trace of the update, before all other methods.
        """
        self._start_trace(update)
        self._record.clear()

    def read(self) -> list[tf.Tensor]:
        """Return the record of this update, float32 tensors [N], for `summarize`.

        Its waiting is the time from gradients to their averages. It is nearly 0 on the slowest
        learner, for which the others wait. On a GPU it includes the rest of the backward pass,
        whose kernels may have been started but not finished.
        """
        return self._record.read()

    def _reduce(self, gradients: Gradients, name: str) -> list[tf.Tensor]:
        """Return the gradients averaged over learners."""
        self.averaged = True
        given = [_as_float(gradient) for gradient in gradients if gradient is not None]
        if not given:
            raise ValueError(f"all gradients of {name} are None: there is nothing to average")
        remaining = iter(self._exchange(given, self._unique(name)))
        return [None if gradient is None else next(remaining) for gradient in gradients]

    def _note_own(self, gradients: Gradients) -> tf.Tensor:
        """Note whether this learner's own gradients are finite; return False."""
        if self.group.size > 1:
            given = [_as_float(gradient) for gradient in gradients if gradient is not None]
            is_finite = tf.math.is_finite(_global_norm(given))
            self._record.add(fault=1.0 - tf.cast(is_finite, tf.float32))
        return tf.constant(False)

    def _exchange(self, gradients: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Return averages over learners, and record how long they took."""
        if self.group.size == 1:
            return self.group.mean(gradients, name, compressed=True)
        with tf.control_dependencies(gradients):
            before = tf.timestamp()
        reduced = self.group.mean(gradients, name, compressed=True)
        with tf.control_dependencies(reduced):
            self._record.add(wait=tf.cast(tf.timestamp() - before, tf.float32))
        return reduced

    def _unique(self, name: str) -> str:
        """Return a name that no other call of this update has, the same on all learners."""
        if self._compiling:
            raise ValueError(
                f"exchange.mean or exchange.average ({name}) was called in the function that "
                f"exchange.differentiate calls, which --xla compiles: Horovod does not work "
                f"within XLA; call it before or afterwards, or leave --xla out"
            )
        name = base = re.sub(r"[^\w.]", "_", f"exchange.{name}")
        number = 1
        while name in self._names:
            number += 1
            name = f"{base}.{number}"
        self._names.add(name)
        return name

    def _clip(
        self, gradients: list[tf.Tensor], norm: tf.Tensor, limit: float
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return (clipped gradients, whether any of them changed)."""
        if limit < 0:
            return gradients, tf.constant(False)
        given = [gradient for gradient in gradients if gradient is not None]
        if self._mode == "global_norm":
            changed = norm > limit
            factor = tf.where(changed, limit / norm, 1.0)
            clipped = [g * tf.cast(factor, g.dtype) for g in given]
        elif self._mode == "variable_norm":
            changed = tf.reduce_any([tf.norm(g) > limit for g in given])
            clipped = [tf.clip_by_norm(g, limit) for g in given]
        else:
            changed = tf.reduce_any([tf.reduce_any(tf.abs(g) > limit) for g in given])
            clipped = [tf.clip_by_value(g, -limit, limit) for g in given]
        remaining = iter(clipped)
        return [None if g is None else next(remaining) for g in gradients], changed


def _as_float(value: Any) -> tf.Tensor:
    """Return a dense tensor of floats; integers and bools become float32."""
    tensor = tf.convert_to_tensor(value)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, tf.float32)


def _global_norm(gradients: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """Return the norm of all gradients together, float32 []; None counts as 0."""
    return tf.sqrt(2.0 * half_squares([g for g in gradients if g is not None]))


def half_squares(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return half the sum of the squares of all numbers, float32 []: not finite if one is not."""
    halves = [
        tf.cast(tf.nn.l2_loss(t if t.dtype == tf.float64 else tf.cast(t, tf.float32)), tf.float32)
        for t in tensors
    ]
    return tf.reduce_sum(tf.stack(halves)) if halves else tf.zeros([])


def _refuse_unused(gradients: Gradients, variables: Sequence[tf.Variable]) -> None:
    """Raise ValueError, which names the variables, if gradients are None."""
    unused = [variable_names.of(v) for g, v in zip(gradients, variables, strict=True) if g is None]
    if unused:
        names = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if unused[5:] else "")
        raise ValueError(
            f"exchange.differentiate: the loss does not depend on {names}: leave them out of the "
            f"variables, or pass allow_unused=True, which leaves them unchanged"
        )


class UpdateSummary(NamedTuple):
    """The record of a complete update."""

    total_norm: float  # sum of the averaged gradients' norms: not finite if one of them is not
    gradients: float  # number of averaged gradients
    clipped: float  # number of those that clipping changed
    wait_seconds: float  # seconds of waiting for the other learners' gradients
    own_faults: float  # number of this learner's own gradients that were not finite
    largest_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether all averaged gradients are finite, the same on all learners."""
        return math.isfinite(self.total_norm)

    @property
    def grad_norm(self) -> float:
        """The largest norm; NaN if no gradient was averaged."""
        if not self.is_finite:
            return self.total_norm
        return self.largest_norm if self.gradients else math.nan

    @property
    def clipped_share(self) -> float:
        """The share of gradients that clipping changed; NaN if no gradient was averaged."""
        return self.clipped / self.gradients if self.gradients else math.nan


class UpdateRecord:
    """The record of one update: norms of its gradients, clipping, seconds of waiting.

    `GradientReducer` writes it, and `TrainStep` reads it at the end of the update. It lives in
    variables and not in tensors, since an algorithm may average gradients within `tf.cond`,
    `tf.while_loop` or a tf.function of its own: the tensors of such an inner graph cannot be used
    outside it. Make it outside any tf.function, and keep it as long as a graph that writes to it is
    used.
    """

    def __init__(self) -> None:
        with tf.device("/CPU:0"):
            # The first five fields of UpdateSummary, which are sums.
            self._sums = tf.Variable(tf.zeros([5]), trainable=False, name="exchange_sums")
            self._largest = tf.Variable(0.0, trainable=False, name="exchange_largest_norm")
        self.variables = (self._sums, self._largest)

    def clear(self) -> None:
        """Start the record of the next update."""
        with tf.device("/CPU:0"):
            self._sums.assign(tf.zeros([5]))
            self._largest.assign(0.0)

    def add(
        self,
        norm: tf.Tensor | None = None,
        clipped: tf.Tensor | float = 0.0,
        wait: tf.Tensor | float = 0.0,
        fault: tf.Tensor | float = 0.0,
    ) -> tf.Tensor:
        """Add what was measured, each float32 []; return what `is_finite` does.

        `norm` is an averaged gradient's, `clipped` 1 if clipping changed it, `wait` the seconds of
        an exchange with the other learners, `fault` 1 if this learner's own gradient was not finite
        where their average is not.
        """
        total, count = (0.0, 0.0) if norm is None else (norm, 1.0)
        with tf.device("/CPU:0"):
            sums = self._sums.assign_add(tf.stack([total, count, clipped, wait, fault]))
            if norm is not None:
                self._largest.assign(tf.maximum(self._largest, norm))
            return tf.math.is_finite(sums[0])

    def is_finite(self) -> tf.Tensor:
        """Return whether all gradients of this update so far are finite, bool []."""
        with tf.device("/CPU:0"):
            return tf.math.is_finite(self._sums.read_value()[0])

    def read(self) -> list[tf.Tensor]:
        """Return the record as float32 tensors [N], of which `summarize` makes a summary."""
        with tf.device("/CPU:0"):
            return [self._sums.read_value(), self._largest.read_value()[tf.newaxis]]


def summarize(values: np.ndarray) -> UpdateSummary:
    """Return the summary of the values, float32 [N], that `UpdateRecord.read` returned."""
    return UpdateSummary(*values.tolist())
