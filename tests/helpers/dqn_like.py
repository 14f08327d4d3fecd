"""A DQN-like algorithm that proves the interface: --algorithm=tests.helpers.dqn_like.

It has epsilon-greedy actors, a target network, two optimizer steps per batch and priorities.
"""

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms.interface import Algorithm, PolicyOutput, entry_spec
from impala_mm.algorithms.parts import optimizers
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables

NOTHING = nets.State((), ())  # the state of a network without memory


def make(config, environment):
    return DQNLike(config, environment)


class DQNLike(Algorithm):
    def __init__(self, config, environment):
        self._gamma, self._actions = config.discounting, environment.num_actions
        shape = environment.observation, environment.num_actions
        self._online, self._target = (nets.make("MLPAgent", *shape) for _ in range(2))
        self._heads = [snt.Linear(environment.num_actions) for _ in range(2)]
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        entry = tf.nest.map_structure(lambda s: tf.zeros([1, 1, *s.shape], s.dtype), step)
        for network, head in zip((self._online, self._target), self._heads, strict=True):
            self._values(network, head, entry)
        online = [*self._online.trainable_variables, *self._heads[0].trainable_variables]
        self._targets = [*self._target.trainable_variables, *self._heads[1].trainable_variables]
        self._optimizer = optimizers.Adam(config.learning_rate)
        self._optimizer.initialize(online)
        self._updates = tf.Variable(0)
        carried = [*self._targets, self._updates, *self._optimizer.variables]
        self.variables = Variables(online, carried, acting=online, weights=self._targets)

    def initial_state(self, batch):
        return ()

    def act(self, entry, core_state, exploration):
        features, _ = self._online.step(
            entry.observation, entry.reward, entry.action, entry.first, NOTHING
        )
        greedy = tf.argmax(self._heads[0](features), -1, tf.int32)  # [B]
        explores = tf.random.uniform(tf.shape(greedy)) < 0.1 * exploration
        random = tf.random.uniform(tf.shape(greedy), 0, self._actions, tf.int32)
        return tf.where(explores, random, greedy), core_state, ()

    def judge(self, entry, core_state):
        features, _ = self._online.step(
            entry.observation, entry.reward, entry.action, entry.first, NOTHING
        )
        values = self._heads[0](features)
        greedy = tf.one_hot(tf.argmax(values, -1), self._actions)
        return PolicyOutput(0.9 * greedy + 0.1 / self._actions, tf.reduce_max(values, -1))

    def update(self, batch, context, exchange):
        entries = batch.unrolls
        due = self._updates % 50 == 0
        for target, online in zip(self._targets, self.variables.trained, strict=True):
            target.assign(tf.where(due, online, target))
        self._updates.assign_add(1)
        after = tf.nest.map_structure(lambda x: x[1:], entries)
        future = tf.reduce_max(self._values(self._target, self._heads[1], after), -1)
        goal = after.reward + self._gamma * tf.where(after.terminated, 0.0, future)  # [T, B]
        for name in ("first", "second"):
            (loss, error), gradients = exchange.differentiate(
                lambda: self._loss(entries, after, goal), self.variables.trained
            )
            applied = exchange.apply(self._optimizer, gradients, self.variables.trained, name)
        metrics = {"loss/total": loss, "grad_norm": applied.norm, "clipped_share": applied.clipped}
        return metrics, tf.reduce_mean(tf.abs(error), 0)

    def _loss(self, entries, after, goal):
        values = self._values(self._online, self._heads[0], entries)[:-1]
        chosen = tf.gather(values, after.action, batch_dims=2)
        error = tf.where(after.first, 0.0, chosen - goal)
        return 0.5 * tf.reduce_mean(error**2), error

    def _values(self, network, head, entry):
        features, _ = network.unroll(
            entry.observation, entry.reward, entry.action, entry.first, NOTHING
        )
        return snt.BatchApply(head)(features)
