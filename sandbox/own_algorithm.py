"""PPO, an example of a user's own algorithm, which sandbox/own_algorithm.md explains."""

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, Role, entry_spec, start_spec
from impala_mm.algorithms.parts import (
    action_policies,
    losses,
    masking,
    networks,
    normalisers,
    optimizers,
)
from impala_mm.algorithms.parts.vtrace import discounted_suffix_sums
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables

_METRICS = ("loss/total", "loss/policy", "loss/value", "kl")  # what PPO._loss returns


def make(config, environment, setup):
    """Return the algorithm for this environment."""
    return PPO(config, environment, setup)


class PPO(Algorithm):
    """Proximal policy optimization (arXiv 1707.06347) with minibatches of unrolls."""

    rounds = True  # the policy that an update improves has played the complete batch
    masks = True  # choices that Entry.mask forbids have the probability 0

    def __init__(self, config, environment, setup):
        self._config, self._actions = config, environment.actions
        # Parts that read the flags: normalisation, the network, the distribution of the actions.
        self._inputs = normalisers.Normaliser(config, environment.observation)
        self.network_name = networks.chosen_name(config, environment)
        self._network = networks.make_network(config, environment, self._inputs.mean)
        self._policies = action_policies.choose(
            self._actions, config.box_policy, config.box_deviation
        )
        self._policy_head = action_policies.make_head(self._policies, config.policy_init_scale)
        self._value_head = snt.Linear(1, name="value")

        # An unroll's entries hold what `act` adds to them, and `start` is the state before them.
        step = entry_spec(environment, extras=tf.TensorSpec([], tf.float32))  # log-probabilities
        start = start_spec(self.initial_state(1))
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)

        # Gradients change what is trained; checkpoints carry all; actors receive those for acting.
        parts = (self._network, self._policy_head, self._value_head)
        for head in parts[1:]:
            head(tf.zeros([1, self._network.num_features]))  # creates its variables
        trained = [variable for part in parts for variable in part.trainable_variables]
        carried = [*self._inputs.carried]
        if setup.role is Role.LEARNER:
            self._optimizer = optimizers.Adam(config.learning_rate, epsilon=1e-5)
            self._optimizer.initialize(trained)
            carried += self._optimizer.variables
        acting = [*trained, *self._inputs.acting]
        self.variables = Variables(trained, carried, acting, weights=self._inputs.carried)

    def initial_state(self, batch):
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._inputs.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry, core_state, exploration):
        """Choose the actions [B] that follow entries [B, ...]."""
        parameters, _, core_state = self._step(entry, core_state)
        policy = self._policies.make(parameters, entry.mask)
        action = action_policies.draw(policy, exploration)  # the most likely one where it is 0
        return action, core_state, policy.log_prob(action)

    def judge(self, entry, core_state):
        """Return the policy and the values for entries [B, ...], which tests and videos show."""
        parameters, values, _ = self._step(entry, core_state)
        return action_policies.output(self._actions, parameters, values, entry.mask)

    def _step(self, entry, core_state):
        """Return (parameters [B, P], values [B], core state) after entries [B, ...]."""
        returns, state = self._inputs.split(core_state)
        returns, entry = self._inputs.step(entry, returns), self._inputs.read(entry)
        features, state = self._network.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        values = tf.squeeze(self._value_head(features), -1)
        return self._policy_head(features), values, self._inputs.join(returns, state)

    def _unroll(self, batch):
        """Return (parameters [T+1, B, P], values [T+1, B]) for the entries of a batch."""
        entries, (_, state) = self._inputs.read(batch.unrolls), self._inputs.split(batch.start)
        features, _ = self._network.unroll(
            entries.observation, entries.reward, entries.action, entries.first, state
        )
        parameters, values = (
            snt.BatchApply(head)(features) for head in (self._policy_head, self._value_head)
        )
        return parameters, tf.squeeze(values, -1)

    def update(self, batch, context, exchange):
        """Improve the policy by `epochs` passes over a batch, in minibatches of its columns."""
        config, entries = self._config, batch.unrolls
        _, values = self._unroll(batch)
        steps = losses.transitions(
            values=values,
            actions=entries.action,
            rewards=self._inputs.read(entries).reward,
            terminated=entries.terminated,
            first=entries.first,
            behaviour_log_probs=entries.extras,
            weight=batch.weight,
            discounting=config.discounting,
        )
        errors = steps.rewards + steps.discounts * values[1:] - values[:-1]
        advantages = discounted_suffix_sums(errors, steps.discounts * config.gae_lambda)
        goals = advantages + values[:-1]
        moments = tf.stack(losses.moments(advantages, steps.live))
        moments = losses.Moments(*tf.unstack(exchange.mean(moments)))
        advantages = losses.standardise(advantages, steps.live, moments)
        rate = optimizers.scheduled_rate(config, context.frames, context.total)
        self._optimizer.learning_rate.assign(rate)

        def step(columns):
            part = batches.columns(batch, columns)
            of_part = tf.nest.map_structure(
                lambda x: tf.gather(x, columns, axis=1), (steps, goals, advantages)
            )
            trained = self.variables.trained
            computed, gradients = exchange.differentiate(
                lambda: self._loss(part, *of_part), trained
            )
            exchange.apply(self._optimizer, gradients, trained)
            return dict(zip(_METRICS, computed, strict=True))

        result = exchange.minibatches(
            step, config.batch_size, config.epochs, config.minibatches, {"kl": config.largest_kl}
        )
        self._inputs.update(batch, self.unroll.overlap, exchange)
        metrics = {"minibatches": result.steps, "learning_rate": rate}
        return metrics | result.metrics, batch.weight

    def _loss(self, batch, steps, goals, advantages):
        config = self._config
        parameters, values = self._unroll(batch)
        masks = masking.allow_all(~steps.live, batch.unrolls.mask)
        policy = self._policies.make(parameters[:-1], masks)
        change = losses.mask(steps.live, policy.log_prob(steps.actions)) - steps.behaviour_log_probs
        ratio = tf.exp(change)
        clipped = tf.clip_by_value(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)

        def total(terms):  # over the live steps, each by the weight of its column
            return losses.reduce(terms, steps.live, batch.weight, config.loss_reduction)

        gain = total(tf.minimum(ratio * advantages, clipped * advantages))
        error = total(tf.square(values[:-1] - goals))
        loss = config.baseline_cost * error - config.entropy_cost * total(policy.entropy()) - gain
        return loss, -gain, error, total(ratio - 1 - change)
