"""PPO (arXiv 1707.06347) with generalised advantages, for any actions and observations.

A round of unrolls, all played by the newest policy, is divided into minibatches of unrolls, which
are trained on for some epochs; recurrent networks start each unroll from the state it began with.
"""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import losses, networks, normalisers, optimizers, policies
from impala_mm.algorithms.interface import Role, entry_spec, start_spec
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables


def make(config, environment, role):
    return PPO(config, environment, role)


class Goals(NamedTuple):
    advantages: tf.Tensor  # [T, B], standardised
    values: tf.Tensor  # [T, B]


class Losses(NamedTuple):
    total: tf.Tensor
    policy: tf.Tensor
    value: tf.Tensor
    entropy: tf.Tensor
    kl: tf.Tensor  # from the policy that played; per step that was made
    clipped_ratios: tf.Tensor  # share of these steps


class PPO:
    masks = True
    rounds = True

    def __init__(self, config, environment, role):
        self._config, self._actions = config, environment.actions
        self.network_name = networks.chosen_name(config, environment)
        self._network = networks.make_actor_critic(config, environment)
        self._distribution = policies.choose(self._actions, config.box_policy, config.box_deviation)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._policy = policies.make_head(self._distribution, config.policy_init_scale)
        self._value = snt.Linear(1)
        for head in (self._policy, self._value):
            head(tf.zeros([1, self._network.num_features]))
        step = entry_spec(environment, extras=tf.TensorSpec([], tf.float32))  # log-probabilities
        start = start_spec(self.initial_state(1))
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)
        modules = (self._network, self._policy, self._value)
        trained = [v for module in modules for v in module.trainable_variables]
        carried = list(self._normaliser.carried)
        if role is Role.LEARNER:
            self._optimizer = optimizers.Adam(config.learning_rate, epsilon=1e-5)
            self._optimizer.initialize(trained)
            carried += self._optimizer.variables
        acting = [*trained, *self._normaliser.acting]
        self.variables = Variables(trained, carried, acting, weights=self._normaliser.carried)

    def initial_state(self, batch):
        return self._normaliser.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry, core_state, exploration):
        parameters, _, core_state = self._read(entry, core_state)
        policy = self._distribution.make(parameters, entry.mask)
        action = policies.draw(policy, exploration)
        return action, core_state, policy.log_prob(action)

    def judge(self, entry, core_state):
        parameters, value, _ = self._read(entry, core_state)
        return policies.output(self._actions, parameters, value, entry.mask)

    def _read(self, entry, core_state):
        returns, state = self._normaliser.split(core_state)
        returns, entry = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        features, state = self._network.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        features = networks.for_policy_and_value(features)
        value = tf.squeeze(self._value(features.value), -1)
        return self._policy(features.policy), value, self._normaliser.join(returns, state)

    def _unroll(self, batch):
        """Return (parameters [T+1, B, P], values [T+1, B]) for normalised entries."""
        entries, (_, state) = batch.unrolls, self._normaliser.split(batch.start)
        features, _ = self._network.unroll(
            entries.observation, entries.reward, entries.action, entries.first, state
        )
        features = networks.for_policy_and_value(features)
        values = tf.squeeze(snt.BatchApply(self._value)(features.value), -1)
        parameters = snt.BatchApply(self._policy)(features.policy)
        # Padding of weight 0 may contain anything.
        used = batch.weight > 0
        return tf.where(used[:, None], parameters, 0.0), tf.where(used, values, 0.0)

    def _steps(self, batch, values):
        entries = batch.unrolls
        return losses.transitions(
            values=values,
            actions=entries.action,
            rewards=entries.reward,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=entries.extras,
            weight=batch.weight,
            discounting=self._config.discounting,
        )

    def update(self, batch, context, exchange):
        config, trained = self._config, self.variables.trained
        read = batch._replace(unrolls=self._normaliser.read(batch.unrolls))
        goals = self._goals(read, exchange)
        rate = optimizers.scheduled_rate(config, context.frames, context.total)
        self._optimizer.learning_rate.assign(rate)

        def step(columns):
            part = batches.columns(read, columns)
            part_goals = Goals(*(tf.gather(goal, columns, axis=1) for goal in goals))
            loss, gradients = exchange.differentiate(lambda: self._loss(part, part_goals), trained)
            exchange.apply(self._optimizer, gradients, trained)
            of_loss = {f"loss/{name}": loss._asdict()[name] for name in Losses._fields[:4]}
            return of_loss | {"kl": loss.kl, "clipped_ratios": loss.clipped_ratios}

        made = exchange.minibatches(
            step,
            config.batch_size,
            config.epochs,
            config.minibatches,
            stop_above={"kl": config.target_kl},
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        metrics = made.metrics | {"learning_rate": rate, "minibatches_made": made.steps}
        return metrics, batch.weight

    def _goals(self, batch, exchange):
        """Return what the policy that played shall learn, by generalised advantages."""
        _, values = self._unroll(batch)
        steps = self._steps(batch, values)
        advantages = losses.generalised_advantages(steps, values, self._config.gae_lambda)
        moments = losses.moments(advantages, steps.live, exchange)
        standard = losses.standardise(advantages, steps.live, moments)
        return Goals(standard, advantages + values[:-1])

    def _loss(self, batch, goals):
        config = self._config
        parameters, values = self._unroll(batch)
        steps = self._steps(batch, values)
        live, weight = steps.live, batch.weight
        policy = losses.step_policy(self._distribution.make, parameters, live, batch.unrolls.mask)
        log_ratios = tf.where(live, policy.log_prob(steps.actions) - steps.behaviour_log_probs, 0.0)
        ratios = tf.exp(log_ratios)
        clipped = tf.clip_by_value(ratios, 1 - config.clip, 1 + config.clip)
        gains = tf.minimum(ratios * goals.advantages, clipped * goals.advantages)
        policy_loss = losses.reduce(-gains, live, weight, "mean")
        errors = 0.5 * tf.square(values[:-1] - goals.values)
        value_loss = losses.reduce(errors, live, weight, "mean")
        entropy = losses.reduce(-policy.entropy(), live, weight, "mean")
        total = policy_loss + config.baseline_cost * value_loss + config.entropy_cost * entropy
        made = tf.reduce_sum(tf.cast(live, tf.float32))
        kl = tf.math.divide_no_nan(tf.reduce_sum(ratios - 1 - log_ratios), made)
        outside = tf.reduce_sum(tf.cast(ratios != clipped, tf.float32))
        return Losses(total, policy_loss, value_loss, entropy, kl, outside / made)
