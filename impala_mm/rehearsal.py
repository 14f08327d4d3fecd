"""A rehearsal: does learning work here, on all learners as on one?

Every learner trains the same tiny network, each on its own generated data, through the all-reduce
of a real run. At the end the loss must have fallen and all learners must hold the same variables,
bit for bit. It takes seconds and needs no environment, so it is what to run first on a new cluster:

    mpirun -np 2 python experiment.py --mode=rehearsal
"""

import hashlib
import sys
import time

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.config import Config
from impala_mm.exchange import Exchange, apply

_INPUTS, _CLASSES = 8, 4


def rehearse(config: Config, exchange: Exchange) -> None:
    """Trains, compares, reports; ends the program with code 1 where something is wrong."""
    started = time.monotonic()
    tf.random.set_seed(config.seed + exchange.rank)  # other weights and data on each rank
    network = nets.make("MLPAgent")
    head = snt.Linear(_CLASSES)
    optimizer = snt.optimizers.Adam(config.learning_rate)
    # The classes to be learnt: the largest of _CLASSES random projections, the same on all ranks.
    projections = tf.random.stateless_normal([_INPUTS, _CLASSES], seed=[config.seed, 0])

    def loss_of(inputs: tf.Tensor) -> tf.Tensor:
        labels = tf.argmax(inputs @ projections, axis=-1)
        logits = head(network.torso(inputs))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    @tf.function
    def update() -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.random.normal([config.batch_size, _INPUTS])
        with tf.GradientTape() as tape:
            loss = loss_of(inputs)
        variables = network.trainable_variables + head.trainable_variables
        gradients = tape.gradient(loss, variables)
        norm = apply(exchange, optimizer, gradients, variables, config.gradients_clipping)
        return exchange.mean([loss], name="loss")[0], norm

    loss_of(tf.zeros([1, _INPUTS]))  # creates the variables
    variables = network.trainable_variables + head.trainable_variables
    exchange.broadcast(variables)
    size = sum(int(tf.size(v)) for v in variables)
    _say(exchange, f"{exchange.size} learner(s), {size} weights, {config.updates} updates")

    first = 0.0
    for step in range(1, config.updates + 1):
        loss, norm = update()
        first = first or float(loss)
        if step == 1 or step % max(1, config.updates // 5) == 0:
            _say(exchange, f"update {step:4d}  loss {float(loss):.3f}  grad_norm {float(norm):.3f}")

    digests = exchange.gather(_digest([*variables, *optimizer.variables]))
    seconds = time.monotonic() - started
    equal = len(set(digests)) == 1
    _say(exchange, f"digests of variables and optimizer: {' '.join(digests)}")
    if not equal:
        _end(exchange, "the learners' variables differ: their all-reduce is not sound")
    if not float(loss) < first:
        _end(exchange, f"the loss did not fall ({first:.3f} to {float(loss):.3f})")
    who = "the one learner" if exchange.size == 1 else f"all {exchange.size} learners"
    same = "" if exchange.size == 1 else " and hold equal variables"
    _say(exchange, f"{who} learnt: loss {first:.3f} to {float(loss):.3f} in {seconds:.1f} s{same}")


def _digest(variables: list[tf.Variable]) -> str:
    """Equal for two ranks only if every bit of every variable is."""
    content = hashlib.sha256()
    for variable in variables:
        content.update(variable.numpy().tobytes())
    return content.hexdigest()[:16]


def _say(exchange: Exchange, message: str) -> None:
    if exchange.rank == 0:
        print(f"[learner] {message}", flush=True)


def _end(exchange: Exchange, reason: str) -> None:
    _say(exchange, f"error: {reason}")
    sys.exit(1)
