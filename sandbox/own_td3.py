"""TD3 (arXiv 1802.09477), an example of a user's own algorithm with a replay of steps."""

import math

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm, PolicyOutput, Role, entry_spec
from impala_mm.algorithms.parts import losses, networks, optimizers, targets, update_seeds
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.replay import steps as step_replay

_SMOOTHING, _LARGEST = 0.2, 0.5  # deviation and limit of the noise in the critics' goals


def make(config, environment, setup):
    """Return the algorithm, for observations that are a vector and actions that are one Box."""
    box, *others = environment.actions.leaves
    if others or box.choices or not box.rescaled.all():
        raise UnsuitableActions("TD3 plays one Box, whose numbers have bounds")
    return TD3(config, environment, setup)


class TD3(Algorithm):
    """A policy of one action per observation, trained by the lesser value of two critics."""

    def __init__(self, config, environment, setup):
        self._config, self._setup = config, setup
        (self._observed,) = environment.observation.shape
        (self._shape,) = [box.shape for box in environment.actions.leaves]
        self.made_of = {"--units": config.units}  # a run is resumed with the same number only
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=())
        # A batch of the replay is cut into parts, in each of which the critics make two optimizer
        # steps and the policy one. All of the actors' new steps are in it.
        new_steps = config.batch_size * config.unroll_length
        self._parts = math.ceil(new_steps * config.updates_per_step / 2)
        self.batch_shape = (2, self._parts * 2 * config.minibatch_steps)  # entries, columns
        self._held = math.ceil(config.replay_steps / config.unroll_length)
        policy, critics = self._make_networks(environment)
        trained, carried = [*policy.trainable_variables, *critics.trainable_variables], []
        if setup.role is Role.LEARNER:
            given = f"--replay_steps={config.replay_steps}"
            step_replay.refuse_too_large(self.unroll, self._held, setup.learners_here, given)
            self._old_policy, self._old_critics = self._make_networks(environment)
            old = (self._old_policy, self._old_critics)
            self._old = [v for module in old for v in module.trainable_variables]
            targets.follow(self._old, trained)
            self._optimizers = [optimizers.Adam(config.learning_rate) for _ in range(2)]
            for optimizer, module in zip(self._optimizers, (critics, policy), strict=True):
                optimizer.initialize(module.trainable_variables)
                carried += optimizer.variables
            carried += self._old
        self._policy, self._critics = policy, critics
        self.variables = Variables(trained, carried, acting=list(policy.trainable_variables))

    def _make_networks(self, environment):
        """Return a policy's network, and two critics."""
        policy = snt.nets.MLP([self._config.units] * 2 + [math.prod(self._shape)], name="policy")
        policy(tf.zeros([1, self._observed]))  # creates its variables
        return policy, networks.make_critics(self._config, environment, self._observed)

    def _action(self, policy, observation):
        """Return the actions [..., *shape], from -1 to 1, at observations [..., F]."""
        rows = tf.tanh(policy(tf.reshape(observation, [-1, self._observed])))
        leading = tf.shape(observation)[:-1]
        return tf.reshape(rows, tf.concat([leading, self._shape], 0))

    def source(self, fresh):
        """Return the replay of single steps, which takes the new unrolls of the actors' queue."""
        return step_replay.make(
            fresh,
            self.unroll,
            capacity=self._held,
            columns=self.batch_shape[1],
            minimum=math.ceil(self._config.random_steps / self._config.unroll_length),
            seed=[self._config.seed, self._setup.rank],  # each learner draws others
            saved=self._config.replay_save,
        )

    def initial_state(self, batch):
        """Return no memory."""
        return ()

    def act(self, entry, core_state, exploration):
        """Return the policy's actions, with noise where they explore."""
        action = self._action(self._policy, entry.observation)
        noise = self._config.noise * tf.random.normal(tf.shape(action))
        scale = tf.reshape(exploration, [-1] + [1] * len(self._shape))
        return tf.clip_by_value(action + scale * noise, -1.0, 1.0), core_state, ()

    def judge(self, entry, core_state):
        """Return the action, as the policy's parameters, and its lesser value."""
        action = self._action(self._policy, entry.observation)
        values = self._critics(entry.observation, action)
        flat = tf.reshape(action, [-1, math.prod(self._shape)])
        return PolicyOutput(flat, tf.reduce_min(values, 0))

    def update(self, batch, context, exchange):
        """Make the optimizer steps of all parts of a batch, whose columns are single steps."""
        group, config = exchange.group, self._config
        # All learners draw the same numbers; each takes its own.
        seed = update_seeds.of_update(config.seed, self._optimizers[0].step.read_value(), use=0)
        shape = [group.size, batch.weight.shape[0], *self._shape]
        noise = _SMOOTHING * tf.random.stateless_normal(shape, seed)[group.rank]
        noise = tf.clip_by_value(noise, -_LARGEST, _LARGEST)
        rate = optimizers.scheduled_rate(config, context.frames, context.total)
        for optimizer in self._optimizers:
            optimizer.learning_rate.assign(rate)

        def step(columns):
            for half in tf.split(columns, 2):
                part = batches.columns(batch, half)
                loss, value = self._train_critics(part, tf.gather(noise, half), exchange)
            policy = self._policy.trainable_variables
            (total,), gradients = exchange.differentiate(lambda: self._policy_loss(part), policy)
            exchange.apply(self._optimizers[1], gradients, policy, "policy")
            targets.follow(self._old, self.variables.trained, share=0.01)
            return {"loss/critics": loss, "q/value": value, "loss/policy": total}

        made = exchange.minibatches(step, batch.weight.shape[0], 1, self._parts)
        return made.metrics | {"learning_rate": rate}, batch.weight

    def _train_critics(self, part, noise, exchange):
        """Make one optimizer step of the critics; return their loss and the first one's value."""
        before, after = (tf.nest.map_structure(lambda x, i=i: x[i], part.unrolls) for i in (0, 1))
        chosen = self._action(self._old_policy, after.observation) + noise
        future = self._old_critics(after.observation, tf.clip_by_value(chosen, -1.0, 1.0))
        lasts = self._config.discounting * tf.cast(~after.terminated, tf.float32)
        goals = after.reward + lasts * tf.reduce_min(future, 0)
        live = ~after.first & (part.weight > 0)

        def loss():
            values = self._critics(before.observation, after.action)
            errors = tf.reduce_sum(tf.square(values - goals), 0)
            terms = tf.stack([errors, values[0]])[:, None]  # [2, T=1, N]
            return [losses.reduce(x, live[None], part.weight, "mean") for x in tf.unstack(terms)]

        critics = self._critics.trainable_variables
        computed, gradients = exchange.differentiate(loss, critics)
        exchange.apply(self._optimizers[0], gradients, critics, "critics")
        return computed

    def _policy_loss(self, part):
        observation = part.unrolls.observation[0]
        values = self._critics(observation, self._action(self._policy, observation))
        live = ~part.unrolls.first[1:] & (part.weight > 0)
        return (losses.reduce(-values[:1], live, part.weight, "mean"),)
