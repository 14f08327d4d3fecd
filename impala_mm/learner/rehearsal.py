"""A rehearsal: a check that several learners on these machines train as one.

Every learner trains the same tiny network, each on its own generated data, through the all-reduce
of a real run. At the end the loss must have fallen, and all learners must hold the same variables,
bit for bit. A rehearsal takes seconds and needs no environment: run it first on a new cluster.

    mpirun -np 2 python experiment.py --mode=rehearsal
"""

import hashlib
import time

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import optimizers
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import LearnerGroup

_INPUTS, _CLASSES, _LEARNING_RATE = 8, 4, 0.003


def rehearse(config: Config, group: LearnerGroup) -> str:
    """Train, compare the learners and report; return what is wrong, or an empty string."""
    started = time.monotonic()
    exchange = GradientReducer(group, config)
    tf.random.set_seed(config.seed + group.rank)  # each rank has its own weights and data
    network = snt.nets.MLP([64, 64, _CLASSES])
    optimizer = optimizers.Adam(_LEARNING_RATE)
    # An input's class is the largest of its _CLASSES random projections, the same on all ranks.
    projections = tf.random.stateless_normal([_INPUTS, _CLASSES], seed=[config.seed, 0])

    def loss_of(inputs: tf.Tensor) -> tf.Tensor:
        labels = tf.argmax(inputs @ projections, axis=-1)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(inputs))
        )

    @tf.function(autograph=False)
    def update() -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.random.normal([config.batch_size, _INPUTS])
        with tf.GradientTape() as tape:
            loss = loss_of(inputs)
        variables = network.trainable_variables
        gradients = tape.gradient(loss, variables)
        applied = exchange.apply(optimizer, gradients, variables)
        return exchange.mean(loss, name="loss"), applied.norm

    loss_of(tf.zeros([1, _INPUTS]))  # creates the variables
    variables = network.trainable_variables
    optimizer.initialize(variables)
    group.broadcast(variables)
    size = sum(int(tf.size(v)) for v in variables)
    _say(group, f"{group.size} learner(s), {size} weights, {config.updates} updates")

    first = 0.0
    for step in range(1, config.updates + 1):
        loss, norm = update()
        first = first or float(loss)
        if step == 1 or step % max(1, config.updates // 5) == 0:
            _say(group, f"update {step:4d}  loss {float(loss):.3f}  grad_norm {float(norm):.3f}")

    digests = group.gather(_digest([*variables, *optimizer.variables]), "digests")
    seconds = time.monotonic() - started
    _say(group, f"digests of variables and optimizer: {' '.join(digests)}")
    if len(set(digests)) > 1:
        return "the learners' variables differ: their all-reduce does not work correctly"
    if not float(loss) < first:
        return f"the loss did not fall ({first:.3f} to {float(loss):.3f})"
    learners = "the one learner" if group.size == 1 else f"all {group.size} learners"
    same = "" if group.size == 1 else " and hold equal variables"
    _say(
        group, f"{learners} learnt: loss {first:.3f} to {float(loss):.3f} in {seconds:.1f} s{same}"
    )
    return ""


def _digest(variables: list[tf.Variable]) -> str:
    """Return a digest that two ranks share only if every bit of every variable is equal."""
    content = hashlib.sha256()
    for variable in variables:
        content.update(variable.numpy().tobytes())
    return content.hexdigest()[:16]


def _say(group: LearnerGroup, message: str) -> None:
    """Print a line on rank 0."""
    if group.rank == 0:
        print(f"[learner] {message}", flush=True)
