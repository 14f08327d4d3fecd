"""Recurrent Q-learning with prioritised replay: --algorithm=tests.algorithms.recurrent_q.

It is R2D2 (Kapturowski et al. 2019) in small: an LSTM with burn-in from the recorded state, double
Q-learning with a target network, n-step targets, sequences replayed by priority, and an epsilon for
each environment.
"""

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import (
    DEFAULT_SETUP,
    Algorithm,
    PolicyOutput,
    Role,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.parts import losses, masking, networks, normalisers, optimizers, targets
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from tests.algorithms.prioritised_replay import PrioritisedReplay

_LARGEST = 0.9  # share of an unroll's largest error in its priority; the rest is the mean error


def make(config, environment, setup=DEFAULT_SETUP):
    return RecurrentQ(config, environment, setup.role)


class QNetwork(snt.Module):
    """A network whose features a linear layer turns into a value for each action."""

    def __init__(self, config, environment):
        super().__init__()
        self.body = networks.make_network(config, environment)
        self._head = snt.Linear(environment.num_actions, name="values")
        self._head(tf.zeros([1, self.body.num_features]))  # creates its variables

    def step(self, entry, state):
        features, state = self.body.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        return self._head(features), state

    def unroll(self, entries, state, burn_in):
        """Return the values [T+1, B, A] of all entries but those of the burn-in."""

        def read(part, state):
            part = tf.nest.map_structure(lambda x: x[part], entries)
            return self.body.unroll(part.observation, part.reward, part.action, part.first, state)

        if burn_in:
            state = tf.nest.map_structure(tf.stop_gradient, read(slice(burn_in), state)[1])
        return snt.BatchApply(self._head)(read(slice(burn_in, None), state)[0])


class RecurrentQ(Algorithm):
    masks = True

    def __init__(self, config, environment, role):
        self._config = config
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._online = QNetwork(config, environment)
        start = start_spec(self.initial_state(1))
        step = entry_spec(environment, extras=tf.TensorSpec([], tf.float32))
        self.unroll = UnrollSpec(config.unroll_length, 1 + config.burn_in, step, start)
        trained, inputs = list(self._online.trainable_variables), self._normaliser
        copied, rest = [], []
        if role is Role.LEARNER:
            self._target = QNetwork(config, environment)
            copied = list(self._target.trainable_variables)
            targets.follow(copied, trained)
            self._optimizer = optimizers.make(
                config.optimizer,
                config.learning_rate,
                config.decay,
                config.momentum,
                config.epsilon,
            )
            self._optimizer.initialize(trained)
            self._updates = tf.Variable(0, trainable=False, name="updates")
            rest = [*self._optimizer.variables, self._updates]
        self.variables = Variables(
            trained=trained,
            carried=[*copied, *rest, *inputs.carried],
            acting=[*trained, *inputs.acting],
            weights=[*copied, *inputs.carried],
        )

    def source(self, fresh):
        return PrioritisedReplay(fresh, self.unroll, self._config)

    def initial_state(self, batch):
        return self._normaliser.initial_state(self._online.body.initial_state(batch), batch)

    def act_by_number(self, entry, core_state, exploration, environment):
        values, core_state = self._read(entry, core_state)
        epsilon = exploration * self._epsilon(environment)
        explores = tf.random.uniform(tf.shape(epsilon)) < epsilon
        greedy = masking.best_choice(values, entry.mask)
        action = tf.where(explores, masking.random_choice(values, entry.mask), greedy)
        return action, core_state, epsilon

    def _epsilon(self, environment):
        """Return each environment's share of random actions; alone, it is the last one's."""
        last = tf.cast(environment.count - 1, tf.float32)
        before_last = tf.math.divide_no_nan(last - tf.cast(environment.number, tf.float32), last)
        return self._config.random_share ** (8.0 - 7.0 * before_last)

    def judge(self, entry, core_state):
        values, _ = self._read(entry, core_state)
        policy = tf.one_hot(masking.best_choice(values, entry.mask), values.shape[-1])
        return PolicyOutput(policy, tf.reduce_max(masking.allowed_only(values, entry.mask), -1))

    def _read(self, entry, core_state):
        returns, state = self._normaliser.split(core_state)
        returns = self._normaliser.step(entry, returns)
        values, state = self._online.step(self._normaliser.read(entry), state)
        return values, self._normaliser.join(returns, state)

    def update(self, batch, context, exchange):
        config, trained = self._config, self.variables.trained
        entries = self._normaliser.read(batch.unrolls)
        _, state = self._normaliser.split(batch.start)
        future = self._target.unroll(entries, state, config.burn_in)
        used = tf.nest.map_structure(lambda x: x[config.burn_in :], entries)

        def loss():
            values = self._online.unroll(entries, state, config.burn_in)
            error, live = td_errors(
                values, future, used, batch.weight, config.discounting, config.n_steps
            )
            terms = 0.5 * tf.square(error)
            return losses.reduce(terms, live, batch.weight, config.loss_reduction), error, live

        (total, error, live), gradients = exchange.differentiate(loss, trained)
        self._optimizer.learning_rate.assign(
            optimizers.scheduled_rate(config, context.frames, context.total)
        )
        exchange.apply(self._optimizer, gradients, trained)
        copies = self._updates.assign_add(1) % config.target_period == 0
        targets.follow(self._target.trainable_variables, trained, tf.cast(copies, tf.float32))
        played = batch._replace(weight=tf.where(batch.fresh, batch.weight, 0.0))
        self._normaliser.update(played, self.unroll.overlap, exchange)
        metrics = {
            "loss/total": total,
            "error": tf.reduce_mean(tf.abs(error)),
            "learning_rate": self._optimizer.learning_rate.read_value(),
        }
        return metrics, priorities_of(error, live)


def td_errors(values, future, entries, weight, discounting, n_steps):
    """Return the errors of double Q-learning's n-step targets, and which steps are live: [T, B].

    `values` and `future` [T+1, B, A] are those of the network and of the target network at entries
    [T+1, B]. Errors are 0 where not live.
    """
    best = masking.best_choice(values, entries.mask)
    bootstrap = tf.stop_gradient(tf.gather(future, best, batch_dims=2))  # [T+1, B]
    bootstrap = tf.where(weight > 0, bootstrap, 0.0)
    live = ~entries.first[1:] & (weight > 0)
    rewards = tf.where(live, entries.reward[1:], bootstrap[:-1])
    discounts = tf.where(live & ~entries.terminated[1:], discounting, 0.0)
    goals = bootstrap
    for _ in range(n_steps):  # at the end of the unroll, there are fewer rewards
        goals = tf.concat([rewards + discounts * goals[1:], bootstrap[-1:]], 0)
    chosen = tf.gather(values[:-1], tf.where(live, entries.action[1:], 0), batch_dims=2)
    return tf.where(live, goals[:-1] - chosen, 0.0), live


def priorities_of(error, live):
    """Return the priorities [B] of unrolls with these errors [T, B]."""
    size, count = tf.abs(error), tf.reduce_sum(tf.cast(live, error.dtype), 0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(size, 0), count)
    return _LARGEST * tf.reduce_max(size, 0) + (1 - _LARGEST) * mean
