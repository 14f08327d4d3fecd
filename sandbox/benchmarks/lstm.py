"""Compare ways to unroll an LSTM over time, timed in one run and interleaved.

    python sandbox/benchmarks/lstm.py --length=100 --batch=32 --inputs=261 --size=256

All ways use the same inputs, weights and resets. The column `differs` is the largest relative
difference from the outputs and gradients of the first way. Factors are relative to
snt.dynamic_unroll.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

from nets.lstm import LSTM, State, advance

UnrollMethod = Callable[[tf.Tensor, tf.Tensor, State], tuple[tf.Tensor, State]]


class _AsSonnetCore(snt.RNNCore):
    """The same cell with the interface that Sonnet's unrolls need."""

    def __init__(self, core: LSTM):
        super().__init__(name="as_sonnet_core")
        self._core = core

    def initial_state(self, batch_size: Any, **_: Any) -> State:
        return self._core.initial_state(batch_size)

    def __call__(self, inputs: Any, prev_state: State) -> tuple[tf.Tensor, State]:
        return self._core.step(inputs[0], inputs[1], prev_state)


def unroll_methods(core: LSTM, length: int) -> dict[str, UnrollMethod]:
    """Return the ways by name; each has the signature of nets.lstm.LSTM.unroll."""
    sonnet = _AsSonnetCore(core)

    def python_loop(inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        outputs = []
        for t in range(length):
            output, state = core.step(inputs[t], first[t], state)
            outputs.append(output)
        return tf.stack(outputs), state

    def hoisted(gates: tf.Tensor, first: tf.Tensor, state: State) -> State:
        """Advance by one step, after one matmul has processed the inputs of all steps."""
        hidden, cell = (tf.where(first[:, None], 0.0, part) for part in state)
        return State(*advance(gates + core.recall(hidden), cell)[:2])

    def hoisted_python_loop(
        inputs: tf.Tensor, first: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, State]:
        gates, firsts = tf.unstack(snt.BatchApply(core.read)(inputs)), tf.unstack(first)
        outputs = []
        for t in range(length):
            state = hoisted(gates[t], firsts[t], state)
            outputs.append(state.hidden)
        return tf.stack(outputs), state

    def hoisted_scan(inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        gates = snt.BatchApply(core.read)(inputs)
        states = tf.scan(lambda state, now: hoisted(now[0], now[1], state), (gates, first), state)
        return states.hidden, State(states.hidden[-1], states.cell[-1])

    def hoisted_while(inputs: tf.Tensor, first: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        gates = snt.BatchApply(core.read)(inputs)
        each = [tf.TensorArray(x.dtype, length).unstack(x) for x in (gates, first)]

        def body(t: Any, state: State, outputs: Any) -> Any:
            state = hoisted(each[0].read(t), each[1].read(t), state)
            return t + 1, state, outputs.write(t, state.hidden)

        _, state, outputs = tf.while_loop(
            lambda t, *_: t < length,
            body,
            (0, state, tf.TensorArray(tf.float32, length)),
            maximum_iterations=length,
        )
        return outputs.stack(), state

    return {
        "snt.dynamic_unroll": lambda x, first, state: snt.dynamic_unroll(sonnet, (x, first), state),
        "snt.static_unroll": lambda x, first, state: snt.static_unroll(sonnet, (x, first), state),
        "python loop": python_loop,
        "hoisted, python loop": hoisted_python_loop,
        "hoisted, tf.scan": hoisted_scan,
        "hoisted, tf.while_loop": hoisted_while,
        "own gradient (nets.lstm)": core.unroll,
        "own gradient, XLA": tf.function(core.unroll, jit_compile=True),
    }


def with_gradient(method: UnrollMethod, core: LSTM) -> Callable[..., Any]:
    """Return a tf.function that computes the outputs and the gradients of a loss."""

    @tf.function
    def run(inputs: tf.Tensor, first: tf.Tensor, state: State) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([inputs, *state])
            outputs, last = method(inputs, first, state)
            loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(last.cell * last.hidden)
        return outputs, tape.gradient(loss, [inputs, *state, *core.trainable_variables])

    return run


def main() -> None:
    """Build all ways, compare their results and time them."""
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {"length": 100, "batch": 32, "inputs": 261, "size": 256, "repeats": 9}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="(default: %(default)s)")
    parser.add_argument("--without", default="", help="ways to leave out, separated by semicolons")
    args = parser.parse_args()
    tf.random.set_seed(1)
    core = LSTM(args.size)
    inputs = tf.random.normal([args.length, args.batch, args.inputs])
    first = tf.random.uniform([args.length, args.batch]) < 0.02
    state = State(*tf.random.normal([2, args.batch, args.size]))
    core.step(inputs[0], first[0], state)

    calls: dict[str, list[Callable[..., Any]]] = {}
    built: dict[str, float] = {}
    reference: list[tf.Tensor] = []
    differs: dict[str, float] = {}
    for name, method in unroll_methods(core, args.length).items():
        if name in args.without.split(";"):
            continue
        calls[name] = [tf.function(method), with_gradient(method, core)]
        started = time.perf_counter()
        results = [tf.nest.flatten(call(inputs, first, state)) for call in calls[name]]
        built[name] = time.perf_counter() - started
        reference = reference or results[1]
        differs[name] = max(
            float(tf.reduce_max(tf.abs(a - b)) / tf.reduce_max(tf.abs(a)))
            for a, b in zip(reference, results[1], strict=True)
        )
    times: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    for _ in range(args.repeats):
        for name, pair in calls.items():
            for call, milliseconds in zip(pair, times[name], strict=True):
                started = time.perf_counter()
                tf.nest.flatten(call(inputs, first, state))[-1].numpy()
                milliseconds.append(1000 * (time.perf_counter() - started))
    medians = {
        name: [statistics.median(milliseconds) for milliseconds in pair]
        for name, pair in times.items()
    }
    base = next(iter(medians.values()))
    print(f"T={args.length} B={args.batch} I={args.inputs} H={args.size}, {args.repeats} repeats")
    print(f"{'way':26s} {'forward':>16s} {'with gradient':>18s} {'build':>7s} {'differs':>8s}")
    for name, (forward, gradient) in medians.items():
        print(
            f"{name:26s} {forward:7.1f} ms {base[0] / forward:5.2f}x {gradient:8.1f} ms "
            f"{base[1] / gradient:5.2f}x {built[name]:6.1f}s {differs[name]:8.0e}"
        )


if __name__ == "__main__":
    main()
