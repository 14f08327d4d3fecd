"""The groups of an algorithm's variables contradict neither each other nor what it assigns."""

import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data.variables import BadVariables, Variables, assigned_by
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner


def test_groups_that_contradict_each_other_are_refused_by_the_variables_name():
    weight, target, count = (tf.Variable(0.0, name=name) for name in ("weight", "target", "count"))
    right = Variables([weight], [target], acting=[weight], weights=[target], local=[count])
    right.check()
    with pytest.raises(BadVariables, match=r"target:0 is local, and also trained or carried"):
        right._replace(local=[target]).check()
    with pytest.raises(BadVariables, match=r"count:0 is among acting, but it is not trained or"):
        right._replace(acting=[count]).check()
    with pytest.raises(BadVariables, match=r"weight:0 is among weights, but it is not carried"):
        right._replace(weights=[weight]).check()


class Assigning:
    """Ways in which an update changes its variable `v`, while it only reads `w`."""

    def __init__(self):
        self.v, self.w = tf.Variable([1.0, 2.0], name="v"), tf.Variable([3.0, 4.0], name="w")
        self.optimizer = snt.optimizers.Adam(0.1)  # it makes its slots when it is applied
        self.generator = tf.random.Generator.from_seed(3)
        self.exchange = GradientReducer(SingleLearner(), Config())
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)
        self.look_up = lambda: table.lookup(tf.constant(1))  # no variable, but has a handle, too

    def in_a_cond(self, x):
        tf.cond(x > self.w[0], lambda: self.v.assign_add([x, x]), self.v.read_value)

    def in_a_loop(self, x):
        def body(i):
            self.v.scatter_nd_update([[0]], [x + self.w[1]])
            return i + 1

        tf.while_loop(lambda i: i < tf.cast(self.w[0], tf.int32), body, [0])

    def in_functions_within_each_other(self, x):
        @tf.function
        def inner(y):
            if y > 1.0:  # by AutoGraph
                self.v.assign(self.w * y)
            return tf.reduce_sum(tf.gather(self.w, [0]))

        @tf.function(autograph=False)
        def outer(y):
            return inner(y) + inner(2.0 * y)

        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.cond(x > 0, lambda: outer(x), lambda: x)
        tape.gradient(loss, x)

    def in_minibatches(self, x):
        def step(chosen):
            self.v.assign_add(tf.gather(self.w, chosen[:2]) * x)
            return {"loss": x}

        self.exchange.begin(tf.constant(1, tf.int64))
        self.exchange.minibatches(step, 4, epochs=2, count=2)

    def by_an_optimizer(self, x):
        def compute():
            return (x * tf.reduce_sum(self.v * self.w),)

        _, gradients = self.exchange.differentiate(compute, [self.v])
        self.exchange.apply(self.optimizer, gradients, [self.v])

    def under_xla(self, x):
        tf.function(lambda: self.v.assign(x * self.w), jit_compile=True)()

    def by_random_numbers(self, x):
        tf.cond(
            x > 0,
            lambda: self.generator.normal([]),
            lambda: self.look_up() + self.w[0],
        )

    def nowhere(self, x):
        tf.cond(x > 0, lambda: tf.gather(self.w, [0])[0], self.look_up)


@pytest.mark.parametrize(
    "way", [name for name, value in vars(Assigning).items() if not name.startswith("_")]
)
def test_what_a_traced_update_assigns_is_known_wherever_it_does(way):
    made = Assigning()
    traced = tf.function(lambda x: getattr(made, way)(x) and x, autograph=False)
    traced = traced.get_concrete_function(tf.TensorSpec([]))
    apart = made.exchange.variables
    own = {v.ref() for v in assigned_by(traced)} - {v.ref() for v in apart}
    slots = [*made.optimizer.m, *made.optimizer.v, made.optimizer.step] if "optim" in way else []
    expected = {"by_random_numbers": [made.generator.state], "nowhere": []}.get(way, [made.v])
    assert own == {v.ref() for v in [*expected, *slots]}
    declared = Variables([*expected], [], [], local=slots)
    declared.check_assigned(traced, apart)
    for lacking in [*expected, *slots]:
        trained, local = ([v for v in group if v is not lacking] for group in (expected, slots))
        with pytest.raises(BadVariables, match=f"assigns {lacking.name.removesuffix(':0')}, of no"):
            Variables(trained, [], [], local=local).check_assigned(traced, apart)
    assert made.v.numpy().tolist() == [1.0, 2.0], "nothing is executed"
