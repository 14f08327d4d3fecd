"""SAC: soft actor-critic with two Q-networks and a trained temperature (arXiv 1812.05905).

new unrolls -- StepReplay --> many steps, old and new
    -- for each minibatch of them: Q-networks, policy, temperature, and the Q-networks' targets
actors play by the policy; before the first update at random
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import losses, networks, normalisers, optimizers, policies, targets
from impala_mm.algorithms.interface import Context, PolicyOutput, Role, entry_spec, start_spec
from impala_mm.algorithms.sac_networks import CriticNetwork, PolicyNetwork
from impala_mm.algorithms.sac_settings import Settings
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry, UnrollCodec, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.replay.steps import SavedStepReplay, StepReplay
from impala_mm.runtime import machine
from impala_mm.runtime.rank import process_rank


def make(config: Config, environment: EnvironmentSpec, role: Role = Role.LEARNER) -> "SAC":
    """Return the algorithm for this environment; only a learner's has optimizers."""
    return SAC(Settings.of(config), environment, role)


class _Part(NamedTuple):
    """A minibatch: entries that the normaliser has read, and what belongs to them."""

    entries: Entry  # [T+1, B, ...]
    states: tuple[Any, Any]  # of the policy's network and of the critics', before entry 0
    live: tf.Tensor  # bool [T, B]
    weight: tf.Tensor  # float32 [B]

    def mean(self, terms: tf.Tensor) -> tf.Tensor:
        """Return the mean of the terms [T, B]; those that are not live count as 0."""
        return losses.reduce(terms, self.live, self.weight, "mean")


class SAC:
    """A policy that is trained by the values of its actions, and values by what follows them."""

    def __init__(self, config: Settings, environment: EnvironmentSpec, role: Role):
        actions = environment.actions
        self._boxes = [part for part in actions.leaves if isinstance(part, Box)]
        if len(self._boxes) < len(actions.leaves):
            raise UnsuitableActions(
                f"SAC chooses numbers (Box), and {environment.level_name} takes "
                f"{actions.describe()}: use --algorithm=dqn, or ppo"
            )
        self._config = config
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._policy = PolicyNetwork(config, environment)
        self._critics = CriticNetwork(config, environment)
        self._target_entropy = config.target_entropy * sum(
            part.num_features for part in self._boxes
        )
        self._log_temperature = tf.Variable(
            math.log(config.temperature), False, name="log_temperature", dtype=tf.float64
        )
        self._plays_randomly = tf.Variable(
            float(config.random_steps > 0), trainable=False, name="plays_randomly"
        )
        state = self.initial_state(1)
        self._remembers = bool(tf.nest.flatten(state))
        step = entry_spec(environment, extras=())
        self.unroll = UnrollSpec(config.unroll_length, 1, step, start_spec(state))
        self._compiled = (
            config.compile_updates
            and not auto.is_large(environment.observation)
            and not tf.config.get_visible_devices("GPU")
        )
        self._held = max(math.ceil(config.replay_steps / config.unroll_length), config.batch_size)
        if role is Role.LEARNER:
            self._refuse_large_replay()
        self.variables = self._group_variables(environment, role)

    def _refuse_large_replay(self) -> None:
        """Refuse a replay that does not fit in memory, which is only taken as it fills."""
        learners = max(process_rank().local_size, self._config.num_learners)
        given = f"--replay_steps={self._config.replay_steps}"
        if learners > 1:
            given += f" for {learners} learners"
        unroll_bytes = UnrollCodec(self.unroll).size
        machine.refuse_too_many_unrolls(given, learners * self._held, unroll_bytes)

    def _group_variables(self, environment: EnvironmentSpec, role: Role) -> Variables:
        """Return the variables; make what only `update` needs if `role` is a learner's."""
        config, inputs = self._config, self._normaliser
        policy, critics = (list(n.trainable_variables) for n in (self._policy, self._critics))
        followers, slots = list[tf.Variable](), list[tf.Variable]()
        if role is Role.LEARNER:
            self._targets = CriticNetwork(config, environment)
            followers = list(self._targets.trainable_variables)
            targets.follow(followers, critics)
            groups = (critics, policy, [self._log_temperature])
            rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
            self._optimizers = [
                optimizers.make("adam", rate, 0.0, 0.0, config.epsilon) for rate in rates
            ]
            for optimizer, group in zip(self._optimizers, groups, strict=True):
                optimizer.initialize(group)
                slots += optimizer.variables
        learnt = [self._log_temperature, *followers, *inputs.carried]
        # Actors record the state of the critics' network, too, if it has one.
        acting = [*policy, *critics] if self._critics.initial_state(1) else policy
        return Variables(
            trained=[*policy, *critics],
            carried=[*learnt, *slots, self._plays_randomly],
            acting=[*acting, self._plays_randomly, *inputs.acting],
            weights=learnt,
        )

    def source(self, fresh: Any) -> Any:
        """Return the replay, which takes the new unrolls of the actors' queue."""
        config, length = self._config, self._config.unroll_length
        columns = config.optimizer_steps * config.minibatch_steps
        if self._remembers:  # whole unrolls, with at least as many steps
            columns = config.optimizer_steps * math.ceil(config.minibatch_steps / length)
        make = SavedStepReplay if config.replay_save else StepReplay
        return make(
            fresh,
            self.unroll,
            self._held,
            columns,
            math.ceil(config.random_steps / length),
            [config.seed, process_rank().rank],
            whole=self._remembers,
        )

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        states = (self._policy.initial_state(batch), self._critics.initial_state(batch))
        return self._normaliser.initial_state(states, batch)

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Sample actions from the policy; where `exploration` is 0, take the most likely ones."""
        returns, (state, of_critics) = self._normaliser.split(core_state)
        returns, read = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        parameters, state = self._policy.step(read, state)
        if tf.nest.flatten(of_critics):
            _, of_critics = self._critics.step(read, of_critics)
        action = policies.draw(self._policy.distribution.make(parameters), exploration)
        at_random = (exploration > 0) & (self._plays_randomly > 0)
        action = tf.nest.map_structure(
            lambda drawn, uniform: losses.select(at_random, uniform, drawn),
            action,
            self._uniform(action),
        )
        return action, self._normaliser.join(returns, (state, of_critics)), ()

    def _uniform(self, action: Any) -> Any:
        """Return random actions like these, within the bounds; numbers without bounds as given."""
        drawn = [
            tf.where(part.rescaled, tf.random.uniform(tf.shape(x), -1.0, 1.0), x)
            for part, x in zip(self._boxes, tf.nest.flatten(action), strict=True)
        ]
        return tf.nest.pack_sequence_as(action, drawn)

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's parameters, and the lesser value of its most likely action."""
        _, (state, of_critics) = self._normaliser.split(core_state)
        read = self._normaliser.read(entry)
        parameters, _ = self._policy.step(read, state)
        likely = self._policy.distribution.make(parameters).mode()
        features, _ = self._critics.step(read, of_critics)
        value = tf.reduce_min(self._critics.values(features, likely), 0)
        return PolicyOutput(parameters, value, parameters)

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make an optimizer step of each kind for each minibatch of the batch."""
        config = self._config
        rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            now = optimizers.scheduled_rate(config, context.frames, context.total, rate)
            optimizer.learning_rate.assign(now)
        self._plays_randomly.assign(0.0)

        def step(chosen: tf.Tensor) -> dict[str, tf.Tensor]:
            part = batches.columns(batch, chosen)
            entries = self._normaliser.read(part.unrolls)
            _, states = self._normaliser.split(part.start)
            live = ~entries.first[1:] & (part.weight > 0)
            return self._step(_Part(entries, states, live, part.weight), exchange)

        made = exchange.minibatches(
            step,
            batch.weight.shape[0],
            1,
            config.optimizer_steps,
            compiled=self._compiled,
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        rate = self._optimizers[1].learning_rate.read_value()
        return made.metrics | {"learning_rate": rate, "optimizer_steps": made.steps}, batch.weight

    def _step(self, part: _Part, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Make one optimizer step of each kind; return metrics."""
        temperature = tf.exp(self._log_temperature)
        of_policy, of_critics = part.states
        before = tf.nest.map_structure(lambda x: x[:-1], part.entries)
        goals = self._goals(part, temperature)
        played = tf.nest.map_structure(lambda x: x[1:], part.entries.action)

        def critic_loss() -> tuple[tf.Tensor, ...]:
            values = self._critics.values(self._critics.unroll(before, of_critics), played)
            errors = goals - values
            loss = part.mean(0.5 * tf.reduce_sum(tf.square(errors), 0))
            return loss, part.mean(values[0]), part.mean(tf.abs(errors[0]))

        def policy_loss() -> tuple[tf.Tensor, ...]:
            policy = self._policy.unroll(before, of_policy)
            action = policy.sample()
            log_probs = policy.log_prob(action)
            values = self._critics.values(self._critics.unroll(before, of_critics), action)
            value = tf.reduce_min(values, 0)
            weight = tf.cast(temperature, value.dtype)
            return part.mean(weight * log_probs - value), part.mean(-log_probs)

        critics, policy = self._critics.trainable_variables, self._policy.trainable_variables
        (loss, value, error), gradients = exchange.differentiate(critic_loss, critics)
        exchange.apply(self._optimizers[0], gradients, critics, "critics")
        (loss_of_policy, entropy), gradients = exchange.differentiate(policy_loss, policy)
        exchange.apply(self._optimizers[1], gradients, policy, "policy")
        # Of the minibatch's transitions, those that were steps.
        share = part.mean(tf.ones_like(part.live, entropy.dtype))
        if not self._config.fixed_temperature:
            excess = tf.cast(entropy - self._target_entropy * share, tf.float64)
            exchange.apply(
                self._optimizers[2], [excess], [self._log_temperature], "temperature", clipping=-1.0
            )
        targets.follow(self._targets.trainable_variables, critics, self._config.target_share)
        return {
            "loss/total": loss,
            "loss/policy": loss_of_policy,
            "q/value": value / share,
            "q/error": error / share,
            "entropy": entropy / share,
            "temperature": temperature,
        }

    def _goals(self, part: _Part, temperature: tf.Tensor) -> tf.Tensor:
        """Return the goals [T, B] of the values, without gradients."""
        of_policy, of_critics = part.states
        e = part.entries

        def after(x: Any) -> Any:
            """Return what belongs to the entries after the steps."""
            return tf.nest.map_structure(lambda leaf: leaf[1:], x)

        if self._remembers:  # the memory needs entry 0, too
            parameters = self._policy.parameters(e, of_policy)[1:]
            features = self._targets.unroll(e, of_critics)[1:]
        else:
            parameters = self._policy.parameters(after(e), of_policy)
            features = self._targets.unroll(after(e), of_critics)
        policy = self._policy.distribution.make(parameters)
        action = policy.sample()
        values = tf.reduce_min(self._targets.values(features, action), 0)
        values -= tf.cast(temperature, values.dtype) * policy.log_prob(action)
        gamma = tf.constant(self._config.discounting, values.dtype)
        discounts = tf.where(e.terminated[1:], tf.zeros([], values.dtype), gamma)
        goals = tf.cast(e.reward[1:], values.dtype) + discounts * values
        return tf.stop_gradient(losses.mask(part.live, goals))
