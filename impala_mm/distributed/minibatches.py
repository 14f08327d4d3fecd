"""The loop of `GradientReducer.minibatches`: several optimizer steps on parts of one batch."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

Metrics = dict[str, tf.Tensor]


class MinibatchResult(NamedTuple):
    """The result of all minibatches of one update."""

    metrics: Metrics  # float32 []: averages over the steps that were made
    steps: tf.Tensor  # int32 []: number of steps that were made


def shuffled_parts(
    size: int | tf.Tensor, epochs: int, count: int, seed: int, update: tf.Tensor | int
) -> tf.Tensor:
    """Return the indices of all minibatches, int32 [epochs x count, size / count].

    Each epoch is a permutation of range(size), which depends only on the numbers given.
    """
    parts = []
    with tf.device("/CPU:0"):
        for epoch in range(epochs):
            seeds = tf.stack(
                [tf.constant(seed, tf.int64), tf.cast(update, tf.int64) * epochs + epoch]
            )
            order = tf.random.experimental.stateless_shuffle(tf.range(size), seed=seeds)
            parts.append(tf.reshape(order, [count, -1]))
        return tf.concat(parts, axis=0)


def check_size(size: int | tf.Tensor, epochs: int, count: int) -> int | tf.Tensor:
    """Return `size`; raise ValueError if it cannot be divided into `count` equal minibatches."""
    if epochs < 1 or count < 1:
        raise ValueError(
            f"exchange.minibatches with epochs={epochs} and count={count}: both must be at least 1"
        )
    known = tf.get_static_value(size)
    if known is None:
        divides = tf.debugging.assert_equal(size % count, 0, _does_not_divide("size", count))
        with tf.control_dependencies([divides] if divides is not None else []):
            return tf.identity(size)
    if known < count or known % count:
        raise ValueError(_does_not_divide(str(known), count))
    return int(known)


def _does_not_divide(size: str, count: int) -> str:
    return (
        f"exchange.minibatches cannot divide {size} columns into {count} equal minibatches: choose "
        f"a --batch_size that is a multiple of their number, or another number"
    )


def run(
    step: Callable[..., Metrics],
    parts: tf.Tensor,
    count: int,
    stop_above: Mapping[str, float],
    mean: Callable[[tf.Tensor, str], tf.Tensor],
    is_finite: Callable[[], tf.Tensor],
    renewed: tuple[Any, Callable[[], Any] | None] | None = None,
    compiled: bool = False,
) -> MinibatchResult:
    """Make one step for each row of `parts`, until a gradient is not finite or a metric too large.

    An epoch has `count` rows. `mean` averages over learners. `stop_above` maps names of metrics to
    limits. A metric is a number, or its sum and count, [2]. `renewed` has the nest
    that all steps of the first epoch are given, and what returns the next epoch's, of the same
    shapes (None: it stays). If `compiled`, XLA compiles the loop.
    """
    steps = tf.shape(parts)[0]
    compiled = compiled and not tf.config.functions_run_eagerly()
    names: list[str] = []
    first, renew = renewed or (None, None)

    def body(
        i: tf.Tensor, going: tf.Tensor, rows: tf.TensorArray, given: tuple[Any, ...]
    ) -> tuple[object, ...]:
        del going
        if renew:
            begins = (i > 0) & (i % count == 0)
            given = tf.cond(begins, lambda: (renew(),), lambda: given)
        metrics = step(parts[i], *given)
        names[:] = metrics
        if missing := [name for name in stop_above if name not in metrics]:
            raise ValueError(
                f"exchange.minibatches: stop_above names {', '.join(missing)}, but the step "
                f"returns only {', '.join(metrics) or 'no metrics'}"
            )
        # Every learner compares the same mean, so all of them stop after the same step.
        above = [
            _mean_of_measured(metrics[name], name, mean) > limit
            for name, limit in stop_above.items()
        ]
        going = is_finite() & ~tf.reduce_any(tf.stack([*above, tf.constant(False)]))
        values = [_own_mean(value) for value in metrics.values()]
        return i + 1, going, rows.write(i, tf.stack(values) if values else tf.zeros([0])), given

    def loop() -> tuple[tf.Tensor, tf.Tensor]:
        """Return (number of steps made, their metrics in rows)."""
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[None])
        # One iteration at a time: collectives of different iterations must not overtake each other.
        given = (first,) if renewed else ()
        made, _, rows, _ = tf.while_loop(
            lambda i, going, *_: going & (i < steps),
            body,
            (tf.constant(0), tf.constant(True), rows, given),
            parallel_iterations=1,
        )
        # XLA needs a known number of rows, TensorFlow refuses rows that were not written.
        return made, rows.stack() if compiled else rows.gather(tf.range(made))

    if compiled:
        loop = tf.function(loop, autograph=False, jit_compile=True)
    made, rows = loop()
    values = tf.reshape(rows[:made], [made, len(names)])
    measured = ~tf.math.is_nan(values)
    total = tf.reduce_sum(tf.where(measured, values, 0.0), axis=0)
    averages = total / tf.reduce_sum(tf.cast(measured, tf.float32), axis=0)
    return MinibatchResult(dict(zip(names, tf.unstack(averages, len(names)), strict=True)), made)


def repeat(count: int, step: Callable[[tf.Tensor], Metrics]) -> Metrics:
    """Make these steps one after the other; return the means of their metrics, which are numbers.

    It is for a step of `run` that consists of several.
    """
    names: list[str] = []

    def body(i: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        metrics = step(i)
        names[:] = metrics
        values = [tf.cast(value, tf.float32) for value in metrics.values()]
        return i + 1, rows.write(i, tf.stack(values))

    rows = tf.TensorArray(tf.float32, size=count, element_shape=[None])
    _, rows = tf.while_loop(
        lambda i, _: i < count, body, (tf.constant(0), rows), parallel_iterations=1
    )
    means = tf.reduce_mean(rows.stack(), axis=0)
    return dict(zip(names, tf.unstack(means, len(names)), strict=True))


def _mean_of_measured(
    value: tf.Tensor, name: str, mean: Callable[[tf.Tensor, str], tf.Tensor]
) -> tf.Tensor:
    """Return the mean over the learners whose value is not NaN; NaN if there are none.

    Of a sum and a count, [2], it is all learners' sum divided by their count.
    """
    value = tf.cast(value, tf.float32)
    total, count = tf.unstack(value) if value.shape.rank else (value, tf.ones([]))
    measured = ~tf.math.is_nan(total)
    parts = tf.stack([tf.where(measured, each, 0.0) for each in (total, count)])
    total, count = tf.unstack(mean(parts, name))
    return total / count


def _own_mean(value: tf.Tensor) -> tf.Tensor:
    """Return a metric of this learner alone, float32 []."""
    value = tf.cast(value, tf.float32)
    return value[0] / value[1] if value.shape.rank else value
