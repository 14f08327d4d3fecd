"""Soft actor-critic (arXiv 1812.05905) with a learnt temperature, for actions from a Box.

Its source replays unrolls: each batch of new ones is followed by several updates on old ones.
"""

import math

import numpy as np
import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms import losses, networks, normalisers, optimizers, policies, targets
from impala_mm.algorithms.interface import PolicyOutput, Role, entry_spec, start_spec
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import UnsuitableActions


def make(config, environment, role):
    return SAC(config, environment, role)


class SAC:
    def __init__(self, config, environment, role):
        actions = environment.actions
        if not all(isinstance(part, Box) for part in actions.leaves):
            raise UnsuitableActions(
                f"SAC supports only Box actions, and {environment.level_name} takes "
                f"{actions.describe()}"
            )
        self._config = config
        self.network_name = networks.chosen_name(config, environment)
        self._distribution = policies.choose(actions, box="tanh", deviation="learnt")
        self._target_entropy = -float(sum(part.num_features for part in actions.leaves))
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        policy, critic = (networks.make_network(config, environment) for _ in range(2))
        self._network = nets.Separate(policy, critic)
        self._head = policies.make_head(self._distribution, config.policy_init_scale)
        self._head(tf.zeros([1, policy.num_features]))
        self._critics = networks.make_critics(config, environment, critic.num_features)
        self._log_temperature = tf.Variable(math.log(config.temperature), name="log_temperature")
        self._of_policy = [*policy.trainable_variables, *self._head.trainable_variables]
        self._of_critics = [*critic.trainable_variables, *self._critics.trainable_variables]
        start = start_spec(self.initial_state(1))
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)
        kept = list(self._normaliser.carried)
        slots = []
        if role is Role.LEARNER:
            target = networks.make_network(config, environment)
            self._target_network = nets.Separate(policy, target)
            self._target_critics = networks.make_critics(config, environment, target.num_features)
            self._targets = [
                *target.trainable_variables, *self._target_critics.trainable_variables,
            ]  # fmt: skip
            targets.follow(self._targets, self._of_critics)
            kept += self._targets
            rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
            self._optimizers = [optimizers.Adam(rate) for rate in rates]
            groups = (self._of_critics, self._of_policy, [self._log_temperature])
            for optimizer, group in zip(self._optimizers, groups, strict=True):
                optimizer.initialize(group)
                slots += optimizer.variables
        self.variables = Variables(
            trained=[*self._of_policy, *self._of_critics, self._log_temperature],
            carried=[*kept, *slots],
            acting=[*self._of_policy, *self._normaliser.acting],
            weights=kept,
        )

    def source(self, fresh):
        return UniformReplay(fresh, self.unroll, self._config)

    def initial_state(self, batch):
        return self._normaliser.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry, core_state, exploration):
        features, core_state = self._read(entry, core_state)
        policy = self._distribution.make(self._head(features.policy))
        action = policies.draw(policy, exploration)
        return action, core_state, ()

    def judge(self, entry, core_state):
        features, _ = self._read(entry, core_state)
        parameters = self._head(features.policy)
        likely = self._distribution.make(parameters).mode()
        value = tf.reduce_min(self._critics(features.value, likely), 0)
        return PolicyOutput(parameters, value, parameters)

    def _read(self, entry, core_state):
        returns, state = self._normaliser.split(core_state)
        returns, entry = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        features, state = self._network.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        return features, self._normaliser.join(returns, state)

    def _unroll(self, network, entries, start):
        """Return the features [T+1, B, F] of the policy's network and the critics'."""
        _, state = self._normaliser.split(start)
        features, _ = network.unroll(
            entries.observation, entries.reward, entries.action, entries.first, state
        )
        return features

    def _policy(self, features):
        return self._distribution.make(snt.BatchApply(self._head)(features))

    def update(self, batch, context, exchange):
        entries, temperature = self._normaliser.read(batch.unrolls), tf.exp(self._log_temperature)
        live = ~entries.first[1:] & (batch.weight > 0)
        goals = self._goals(entries, batch.start, temperature)

        def mean(terms):
            return losses.reduce(terms, live, batch.weight, "mean")

        def critic_loss():
            features = self._unroll(self._network, entries, batch.start).value[:-1]
            played = tf.nest.map_structure(lambda part: part[1:], entries.action)
            values = self._critics(features, played)
            errors = tf.reduce_sum(tf.square(values - goals), 0)
            return mean(0.5 * errors), mean(values[0])

        def policy_loss():
            features = self._unroll(self._network, entries, batch.start)
            policy = self._policy(features.policy[:-1])
            action = policy.sample()
            log_probs = policy.log_prob(action)
            values = tf.reduce_min(self._critics(features.value[:-1], action), 0)
            return mean(temperature * log_probs - values), mean(-log_probs)

        (loss, value), gradients = exchange.differentiate(critic_loss, self._of_critics)
        self._apply(exchange, 0, gradients, context)
        (of_policy, entropy), gradients = exchange.differentiate(policy_loss, self._of_policy)
        self._apply(exchange, 1, gradients, context)
        share = mean(tf.ones_like(goals))  # of the columns' transitions, those that were steps
        excess = tf.stop_gradient(entropy - self._target_entropy * share)
        _, gradients = exchange.differentiate(
            lambda: (self._log_temperature * excess,), [self._log_temperature]
        )
        self._apply(exchange, 2, gradients, context)
        targets.follow(self._targets, self._of_critics, self._config.target_share)
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = {
            "loss/total": loss,
            "loss/policy": of_policy,
            "entropy": entropy / share,
            "value": value / share,
            "temperature": temperature,
        }
        return metrics, batch.weight

    def _goals(self, entries, start, temperature):
        """Return the goals [T, B] of the Q-values."""
        features = self._unroll(self._target_network, entries, start)
        policy = self._policy(features.policy[1:])
        action = policy.sample()
        values = tf.reduce_min(self._target_critics(features.value[1:], action), 0)
        values -= temperature * policy.log_prob(action)
        discounts = tf.where(entries.terminated[1:], 0.0, self._config.discounting)
        return entries.reward[1:] + discounts * values

    def _apply(self, exchange, number, gradients, context):
        optimizer, config = self._optimizers[number], self._config
        rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
        variables = (self._of_critics, self._of_policy, [self._log_temperature])
        optimizer.learning_rate.assign(
            optimizers.scheduled_rate(config, context.frames, context.total, rates[number])
        )
        exchange.apply(optimizer, gradients, variables[number])


class UniformReplay:
    """A source of the actors' new unrolls together with old ones, drawn at random."""

    def __init__(self, fresh, unroll, config):
        self._fresh, self._config = fresh, config
        self._held = batches.zeros(unroll, config.replay_unrolls)
        self._added = 0  # unrolls since the beginning of the run
        self._draws = 0  # batches of old unrolls before new ones are asked for
        self._random = np.random.default_rng()

    def next(self, timeout):
        if self._draws:
            self._draws -= 1
            return self._draw(self._config.replay_columns)
        new = self._fresh.next(timeout)
        if new is None:
            return None
        new = batches.to_numpy(new)
        count = len(new.weight)
        batches.assign(self._held, (self._added + np.arange(count)) % len(self._held.weight), new)
        self._added += count
        self._draws = self._config.replay_updates - 1
        return batches.join([new, self._draw(self._config.replay_columns - count)])

    def _draw(self, count):
        held = min(self._added, len(self._held.weight))
        drawn = batches.columns(self._held, self._random.integers(0, held, count))
        return batches.replayed(drawn)

    def feedback(self, keys, priorities):
        """Ignore priorities: all unrolls are drawn alike."""

    def save(self, folder):
        batches.save(self._held, folder)
        np.save(folder / "added.npy", self._added)

    def restore(self, folder):
        batches.restore(self._held, folder)
        self._added = int(np.load(folder / "added.npy"))
