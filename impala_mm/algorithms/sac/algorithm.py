"""SAC: soft actor-critic with two Q-networks and a trained temperature (arXiv 1812.05905).

new unrolls -- StepReplay --> many steps, old and new
    -- for each minibatch of them: Q-networks, policy, temperature, and the Q-networks' targets
actors play by the policy; before the first update at random
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import feature_settings
from impala_mm.algorithms.feature import Host, Reading, Student
from impala_mm.algorithms.interface import (
    DEFAULT_SETUP,
    Algorithm,
    Context,
    PolicyOutput,
    Role,
    Setup,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.parts import (
    action_policies,
    lagrange,
    losses,
    networks,
    normalisers,
    optimizers,
    targets,
    update_seeds,
)
from impala_mm.algorithms.sac import actions as sac_actions
from impala_mm.algorithms.sac.networks import ChoiceCriticNetwork, CriticNetwork, PolicyNetwork
from impala_mm.algorithms.sac.settings import SACSettings
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.replay import steps as step_replay


class _Part(NamedTuple):
    """A minibatch: entries that the normaliser has read, and what belongs to them."""

    entries: Entry  # [T+1, B, ...]
    states: tuple[Any, Any]  # of the policy's network and of the critics', before entry 0
    live: tf.Tensor  # bool [T, B]
    weight: tf.Tensor  # float32 [B]
    noise: tuple[Any, Any]  # [T, B, N] for the goals and for the policy's loss
    prepared: Any = ()  # [T, B, ...]: what the features have prepared
    bonus: tf.Tensor | float = 0.0  # [T, B]: what they add to the rewards

    def mean(self, terms: tf.Tensor) -> tf.Tensor:
        """Return the mean of the terms [T, B]; those that are not live are 0."""
        return losses.reduce(terms, self.live, self.weight, "mean")


class _Optimizers(NamedTuple):
    """The optimizers of what SAC trains."""

    critics: optimizers.Adam
    policy: optimizers.Adam
    temperature: optimizers.Adam


class SAC(Algorithm):
    """A policy that is trained by the values of its actions, and values by what follows them."""

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = SACSettings.of(config)
        self._kind = sac_actions.choose(config, environment)
        self._config, self._actions, self._setup = config, environment.actions, setup
        self.features = features = setup.features
        self.masks = config.discrete_sac
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._policy = PolicyNetwork(config, environment, self._normaliser.mean)
        self._critics = self._make_critics(environment)
        self._log_temperature = tf.Variable(
            math.log(config.temperature), False, name="log_temperature", dtype=tf.float64
        )
        self._plays_randomly = tf.Variable(
            float(config.random_steps > 0), trainable=False, name="plays_randomly"
        )
        state = self.initial_state(1)
        self._remembers = bool(tf.nest.flatten(state))
        features.attach(Host(self._policy.distribution, self._remembers))
        step = entry_spec(environment, extras=features.extras_spec(()))
        self.unroll = UnrollSpec(config.unroll_length, 1, step, start_spec(state))
        # A column is a step, or where steps need those before them, an unroll.
        length, entries = (
            (config.unroll_length, config.unroll_length + 1) if self._remembers else (1, 2)
        )
        self.minibatch_columns = math.ceil(config.minibatch_steps / length)
        self._columns = config.optimizer_steps * self.minibatch_columns
        self.batch_shape = (entries, self._columns)
        self._compiled = (
            config.compiles_updates
            and not auto.is_large(environment.observation)
            and not tf.config.get_visible_devices("GPU")
        )
        self._held = max(math.ceil(config.replay_steps / config.unroll_length), config.batch_size)
        if setup.role is Role.LEARNER:
            step_replay.refuse_too_large(
                self.unroll,
                self._held,
                setup.learners_here,
                f"--replay_steps={config.replay_steps}",
            )
        self.variables = self._group_variables(environment, setup.role)

    def _make_critics(self, environment: EnvironmentSpec) -> CriticNetwork:
        make = ChoiceCriticNetwork if self._config.discrete_sac else CriticNetwork
        return make(self._config, environment, self._normaliser.mean)

    def _group_variables(self, environment: EnvironmentSpec, role: Role) -> Variables:
        """Return the variables; make what only `update` needs if `role` is a learner's."""
        config, inputs = self._config, self._normaliser
        policy, critics = (list(n.trainable_variables) for n in (self._policy, self._critics))
        followers, slots = list[tf.Variable](), list[tf.Variable]()
        if role is Role.LEARNER:
            self._targets = self._make_critics(environment)
            followers = list(self._targets.trainable_variables)
            targets.follow(followers, critics)
            groups = (critics, [*policy, *self.features.trained], [self._log_temperature])
            rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
            self._optimizers = _Optimizers(
                *(optimizers.make("adam", rate, 0.0, 0.0, config.epsilon) for rate in rates)
            )
            for optimizer, group in zip(self._optimizers, groups, strict=True):
                optimizer.initialize(group)
                slots += optimizer.variables
        learnt = [self._log_temperature, *followers, *inputs.carried]
        # Actors record the state of the critics' network, too, if it has one.
        remembered = tf.nest.flatten(self._critics.initial_state(1))
        acting = [*policy, *critics] if remembered else policy
        own = Variables(
            trained=[*policy, *critics],
            carried=[*learnt, *slots, self._plays_randomly],
            acting=[*acting, self._plays_randomly, *inputs.acting],
            weights=learnt,
        )
        return self.features.with_variables(own)

    def source(self, fresh: Any) -> Any:
        """Return the replay, which takes the new unrolls of the actors' queue."""
        config = self._config
        return step_replay.make(
            fresh,
            self.unroll,
            capacity=self._held,
            columns=self._columns,
            minimum=math.ceil(config.random_steps / config.unroll_length),
            seed=[config.seed, self._setup.rank],
            whole=self._remembers,
            saved=config.replay_save,
        )

    def recorded_source(self, unrolls: Batch, share: float, seed: list[int]) -> Any:
        """Return the source of recorded games, for whole batches, or beside those of `source`."""
        columns = feature_settings.columns_beside(self.minibatch_columns, share)
        return step_replay.RecordedSteps(
            unrolls, self._config.optimizer_steps * columns, seed, whole=self._remembers
        )

    def start_after(self, entries: Entry) -> Any:
        """Return the core state [B, ...] after the frames of entries [N, B, ...]."""

        def state_after(entries: Entry) -> Any:
            return self._policy.state_after(entries), self._critics.state_after(entries)

        return self._normaliser.start_after(entries, state_after)

    def offline_update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make one update from recorded games, which the normaliser counts like new unrolls."""
        return self.update(batch._replace(fresh=batch.weight > 0), context, exchange)

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
        policy = self._policy.distribution.make(parameters, entry.mask)
        action = action_policies.draw(policy, exploration)
        at_random = (exploration > 0) & (self._plays_randomly > 0)
        action = tf.nest.map_structure(
            lambda drawn, uniform: losses.select(at_random, uniform, drawn),
            action,
            self._kind.draw_any(action, parameters, entry.mask),
        )
        extras = self.features.extras((), entry.first.shape[0])
        return action, self._normaliser.join(returns, (state, of_critics)), extras

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's parameters, and the lesser value of its most likely action."""
        _, (state, _) = self._normaliser.split(core_state)
        parameters, _ = self._policy.step(self._normaliser.read(entry), state)
        likely = self._policy.distribution.make(parameters, entry.mask).mode()
        value = self.value_of(entry, core_state, likely)
        return action_policies.output(self._actions, parameters, value, entry.mask)

    def value_of(self, entry: Entry, core_state: Any, action: Any) -> tf.Tensor:
        """Return the lesser values [B] of actions, a nest of [B, ...]."""
        _, (_, state) = self._normaliser.split(core_state)
        features, _ = self._critics.step(self._normaliser.read(entry), state)
        return tf.reduce_min(self._critics.values(features, action), 0)

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        _, (state, of_critics) = self._normaliser.split(start)
        read = self._normaliser.read(entries)
        parameters = self._policy.parameters(read, state)
        likely = self._policy.distribution.make(parameters, entries.mask).mode()
        values = self._critics.values(self._critics.unroll(read, of_critics), likely)
        value = tf.reduce_min(values, 0)
        return action_policies.output(self._actions, parameters, value, entries.mask)

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make an optimizer step of each kind for each minibatch of the batch."""
        config = self._config
        self._plays_randomly.assign(0.0)
        if config.fixed_temperature:  # a checkpoint restores that of an earlier start
            self._log_temperature.assign(math.log(config.temperature))
        _, (state, _) = self._normaliser.split(batch.start)
        reading = Reading(exchange, self._seed, lambda: self._policy.earlier_images(state))
        begun = self.features.begin(batch, context, reading)
        batch, bonus = begun.batch, begun.bonus[1:]
        prepared = tf.nest.map_structure(lambda x: x[:-1], begun.prepared)
        noise = self._draw_noise(batch, exchange.group)
        rates = (config.critic_rate, config.learning_rate, config.temperature_rate)
        for optimizer, rate in zip(self._optimizers, rates, strict=True):
            now = optimizers.scheduled_rate(config, context.frames, context.total, rate)
            if optimizer is self._optimizers.policy:
                now = self.features.learning_rate(now)
            optimizer.learning_rate.assign(now)

        def step(chosen: tf.Tensor) -> dict[str, tf.Tensor]:
            part = batches.columns(batch, chosen)
            entries = self._normaliser.read(part.unrolls)
            _, states = self._normaliser.split(part.start)
            live = ~entries.first[1:] & (part.weight > 0)
            of_part = tf.nest.map_structure(
                lambda x: tf.gather(x, chosen, axis=1), (noise, prepared, bonus)
            )
            return self._step(_Part(entries, states, live, part.weight, *of_part), exchange)

        made = exchange.minibatches(
            step,
            batch.weight.shape[0],
            1,
            config.optimizer_steps,
            compiled=self._compiled,
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        rate = self._optimizers.policy.learning_rate.read_value()
        metrics = made.metrics | {"learning_rate": rate, "optimizer_steps": made.steps}
        return metrics | begun.metrics, batch.weight

    def _draw_noise(self, batch: Batch, group: LearnerGroup) -> tuple[Any, Any]:
        """Return the noise [T, B, N] of the goals and of the policy's loss, for all minibatches.

        N learners with an Nth of the columns draw what one with all would.
        """
        if not self._kind.num_noise:
            return (), ()
        steps, columns = batch.unrolls.reward.shape
        shape = [2, steps - 1, group.size, columns, self._kind.num_noise]
        drawn = tf.random.stateless_normal(shape, self._seed(update_seeds.NOISE))
        of_goals, of_policy = tf.unstack(drawn[:, :, group.rank])
        return of_goals, of_policy

    def _seed(self, use: int) -> tf.Tensor:
        """Return the seed of an update's draws for this use."""
        return update_seeds.of_update(
            self._config.seed, self._optimizers.critics.step.read_value(), use
        )

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
            features = self._critics.unroll(before, of_critics)
            value, entropy = self._kind.expect(policy, self._critics, features, part.noise[1])
            weight = tf.cast(temperature, value.dtype)
            student = Student(
                live=part.live,
                weight=part.weight,
                reduction="mean",
                actions=played,
                make=lambda given: self._policy.distribution.make(
                    tf.cast(given, entropy.dtype), before.mask
                ),
                policy=policy,
            )
            added, measured = self.features.loss(student, part.prepared)
            return part.mean(-weight * entropy - value) + added, part.mean(entropy), measured

        critics = self._critics.trainable_variables
        policy = [*self._policy.trainable_variables, *self.features.trained]
        (loss, value, error), gradients = exchange.differentiate(critic_loss, critics)
        exchange.apply(self._optimizers.critics, gradients, critics, "critics")
        (loss_of_policy, entropy, measured), gradients = exchange.differentiate(policy_loss, policy)
        exchange.apply(self._optimizers.policy, gradients, policy, "policy")
        # Of the minibatch's transitions, those that were steps.
        share = part.mean(tf.ones_like(part.live, entropy.dtype))
        if not self._config.fixed_temperature:
            target = tf.cast(self._kind.target_entropy(before.mask), entropy.dtype)
            wanted = part.mean(tf.broadcast_to(target, tf.shape(part.live)))
            self._adjust_temperature(entropy - wanted, exchange)
        targets.follow(self._targets.trainable_variables, critics, self._config.target_share)
        return {
            # The losses are means, so they are those per step, too.
            "loss/total": loss,
            "loss/policy": loss_of_policy,
            "loss_per_step/total": loss,
            "loss_per_step/policy": loss_of_policy,
            "q/value": value / share,
            "q/error": error / share,
            "entropy": entropy / share,
            "temperature": temperature,
            **self.features.after(measured, exchange),
        }

    def _adjust_temperature(self, excess: tf.Tensor, exchange: GradientReducer) -> None:
        """Lower the temperature if the entropy exceeds its target, within a multiplier's limits."""
        log = self._log_temperature
        gradients = [tf.cast(excess, tf.float64)]
        exchange.apply(self._optimizers.temperature, gradients, [log], "temperature", clipping=-1.0)
        least, most = math.log(lagrange.LEAST), math.log(lagrange.MOST)
        log.assign(tf.clip_by_value(log, least, most))

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
        policy = self._policy.distribution.make(parameters, after(e.mask))
        values, entropy = self._kind.expect(policy, self._targets, features, part.noise[0])
        values += tf.cast(temperature, values.dtype) * entropy
        gamma = tf.constant(self._config.discounting, values.dtype)
        discounts = tf.where(e.terminated[1:], tf.zeros([], values.dtype), gamma)
        rewards = tf.cast(e.reward[1:] + part.bonus, values.dtype)
        goals = rewards + discounts * values
        return tf.stop_gradient(losses.mask(part.live, goals))
