"""A policy and Q-networks that learn from steps of a replay: what SAC, TD3 and others share.

    new unrolls -- StepReplay --> many steps, old and new
        -- for each minibatch of them: Q-networks, policy, and the Q-networks' slow copies
    actors play by the policy; before the first update at random

A subclass says in `_goals` what the Q-networks learn, and in `_policy_loss` what the policy does.
With --policy_delay=2, a minibatch has the steps of two optimizer steps of the Q-networks, and the
policy makes one on the second half.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

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
    Updated,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.parts import (
    action_policies,
    losses,
    networks,
    normalisers,
    optimizers,
    targets,
    update_seeds,
)
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.q_policy import actions
from impala_mm.algorithms.q_policy.networks import AtFeatures, CriticNetwork, PolicyNetwork
from impala_mm.algorithms.q_policy.settings import QPolicySettings
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments.action_parts import Box
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.replay import steps as step_replay

GOALS, VALUES, POLICY = range(3)  # uses of Q-networks


class States(NamedTuple):
    """Core states of the networks."""

    policy: Any
    critics: Any


class Part(NamedTuple):
    """A minibatch: entries that the normaliser has read, and what belongs to them."""

    entries: Entry  # [T+1, B, ...]
    states: States  # before entry 0
    live: tf.Tensor  # bool [T, B]
    weight: tf.Tensor  # float32 [B]
    noise: Any  # [draws, T, B, N]: what `_draw_noise` drew for these columns
    prepared: Any = ()  # [T, B, ...]: what the features have prepared
    bonus: tf.Tensor | float = 0.0  # [T, B]: what they add to the rewards
    offsets: Any = ()  # int32 [2, B, 2]: shifts of images for what is learnt and for its goals

    @property
    def before(self) -> Entry:
        """The entries [T, B, ...] from which the actions were chosen."""
        return tf.nest.map_structure(lambda x: x[:-1], self.entries)

    @property
    def played(self) -> Any:
        """The actions, nest of [T, B, ...]."""
        return tf.nest.map_structure(lambda x: x[1:], self.entries.action)

    def mean(self, terms: tf.Tensor) -> tf.Tensor:
        """Return the mean of the terms [T, B]; those that are not live are 0."""
        return losses.reduce(terms, self.live, self.weight, "mean")

    def per_step(self, mean: tf.Tensor) -> tf.Tensor:
        """Return a result of `mean` as that over the transitions that were steps."""
        return mean / self.mean(tf.ones_like(self.live, mean.dtype))


class Group(NamedTuple):
    """Variables that one optimizer trains."""

    variables: list[tf.Variable]
    rate: float  # its learning rate at the start of the run


class QPolicy(Algorithm):
    """A policy that is trained by the values of its actions, and values by what follows them."""

    settings: ClassVar[type[QPolicySettings]]  # the flags that the subclass reads
    # Whether the policy has a slow copy, too, `_target_policy`.
    copies_policy: ClassVar[bool] = False
    # Whether the slow copies move only after a step of the policy.
    copies_wait: ClassVar[bool] = False
    draws = 0  # of noise, for each step that is trained on
    num_noise = 0  # standard normal numbers in each of these
    _boxes: Sequence[Box] = ()  # all parts of the actions, if it chooses numbers alone
    _config: Any

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = self.settings.of(config)
        self._config, self._actions, self._setup = config, environment.actions, setup
        self._prepare_actions(environment)
        self.features = features = setup.features
        self.network_name = networks.chosen_name(config, environment)
        networks.check_shift(config, environment)
        if config.num_critics != 2:
            self.made_of = {"--num_critics": config.num_critics}
        if config.critic_dropout:  # its layers are normalised
            self.made_of = {**self.made_of, "--critic_dropout": config.critic_dropout}
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        if config.shared_network:  # the policy needs it
            self._critics = self._make_critics(environment)
        self._policy = self._make_policy(environment)
        if not config.shared_network:
            self._critics = self._make_critics(environment)
        self._make_own(environment)
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
        self._compiled = config.compiles_updates and networks.suits_xla(
            environment.observation, self._policy, self._critics
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

    # What a subclass defines.

    def _prepare_actions(self, environment: EnvironmentSpec) -> None:
        """Take the kind of the actions, by default bounded Boxes; raise UnsuitableActions."""
        self._boxes = actions.bounded_boxes(environment, type(self).__name__)
        self.num_noise = sum(box.num_features for box in self._boxes)

    def _distribution(self) -> PolicyDistribution | None:
        """Return the kind of the policy; None: that of the flags."""
        return None

    def _make_policy(self, environment: EnvironmentSpec) -> PolicyNetwork:
        shared = {"critics": self._critics} if self._config.shared_network else {}
        mean = self._normaliser.mean
        return PolicyNetwork(self._config, environment, mean, self._distribution(), **shared)

    def _make_critics(self, environment: EnvironmentSpec) -> CriticNetwork:
        return CriticNetwork(self._config, environment, self._normaliser.mean)

    def _make_own(self, environment: EnvironmentSpec) -> None:
        """Make networks and variables besides the policy and the Q-networks."""

    def _own_groups(self) -> dict[str, Group]:
        """Return other variables that optimizers change, by the names of their gradients' metrics.

        Those that are not trainable are the learner's alone, such as a temperature.
        """
        return {}

    def _begin_update(self) -> None:
        """Prepare an update (graph)."""

    def _goals(self, part: Part) -> tf.Tensor:
        """Return the goals [T, B] of the Q-networks, 0 where no step is live."""
        raise NotImplementedError

    def _policy_loss(
        self, part: Part, policy: Distribution
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss of the policies [T, B] before the steps, and metrics."""
        raise NotImplementedError

    def _after_policy(
        self, part: Part, metrics: dict[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Make what follows a step of the policy, and return its metrics."""
        return metrics

    # What all have.

    def _draw_any(self, like: Any, parameters: tf.Tensor, mask: Any) -> Any:
        """Return random actions like these, of policies with parameters like these [B, P]."""
        if self._boxes:
            return actions.draw_numbers(self._boxes, like)
        return self._policy.distribution.make(tf.zeros_like(parameters), mask).sample()

    def _group_variables(self, environment: EnvironmentSpec, role: Role) -> Variables:
        """Return the variables; make what only `update` needs if `role` is a learner's."""
        config, inputs = self._config, self._normaliser
        policy, critics = (list(n.trainable_variables) for n in (self._policy, self._critics))
        followers, slots = list[tf.Variable](), list[tf.Variable]()
        groups = self._own_groups()
        own = [v for group in groups.values() for v in group.variables]
        if role is Role.LEARNER:
            self._trained_by = {
                "critics": Group(critics, config.critic_rate),
                "policy": Group([*policy, *self.features.trained], config.learning_rate),
                **groups,
            }
            self._targets = self._make_critics(environment)
            followers += self._targets.trainable_variables
            self._copied = list(critics)
            if self.copies_policy:
                self._target_policy = self._make_policy(environment)
                followers += self._target_policy.trainable_variables
                self._copied += policy
            self._followers = followers
            self._follow(1.0)
            self._optimizers = {
                name: optimizers.make("adam", group.rate, 0.0, 0.0, config.epsilon)
                for name, group in self._trained_by.items()
            }
            for name, optimizer in self._optimizers.items():
                optimizer.initialize(self._trained_by[name].variables)
                slots += optimizer.variables
        learnt = [*(v for v in own if not v.trainable), *followers, *inputs.carried]
        # Actors record the state of the critics' network, too, if it has one.
        read = config.shared_network or tf.nest.flatten(self._critics.initial_state(1))
        acting = [*policy, *critics] if read else policy
        together = Variables(
            trained=[*policy, *critics, *(v for v in own if v.trainable)],
            carried=[*learnt, *slots, self._plays_randomly],
            acting=[*acting, self._plays_randomly, *inputs.acting],
            weights=learnt,
        )
        return self.features.with_variables(together)

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

    def offline_update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
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
            self._draw_any(action, parameters, entry.mask),
        )
        extras = self.features.extras((), entry.first.shape[0])
        return action, self._normaliser.join(returns, (state, of_critics)), extras

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's parameters, and the value of its most likely action."""
        _, (state, _) = self._normaliser.split(core_state)
        parameters, _ = self._policy.step(self._normaliser.read(entry), state)
        likely = self._policy.distribution.make(parameters, entry.mask).mode()
        value = self.value_of(entry, core_state, likely)
        return action_policies.output(self._actions, parameters, value, entry.mask)

    def value_of(self, entry: Entry, core_state: Any, action: Any) -> tf.Tensor:
        """Return the values [B] of actions, a nest of [B, ...]."""
        _, (_, state) = self._normaliser.split(core_state)
        features, _ = self._critics.step(self._normaliser.read(entry), state)
        return self._combine(self._critics.values(features, action))

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        _, (state, of_critics) = self._normaliser.split(start)
        read = self._normaliser.read(entries)
        parameters = self._policy.parameters(read, state)
        likely = self._policy.distribution.make(parameters, entries.mask).mode()
        values = self._critics.values(self._critics.unroll(read, of_critics), likely)
        value = self._combine(values)
        return action_policies.output(self._actions, parameters, value, entries.mask)

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make the optimizer steps of all minibatches of the batch."""
        config = self._config
        self._plays_randomly.assign(0.0)
        self._begin_update()
        _, (state, _) = self._normaliser.split(batch.start)
        reading = Reading(exchange, self._seed, lambda: self._policy.earlier_images(state))
        begun = self.features.begin(batch, context, reading)
        batch, bonus = begun.batch, begun.bonus[1:]
        prepared = tf.nest.map_structure(lambda x: x[:-1], begun.prepared)
        noise = self._draw_noise(batch, exchange.group)
        offsets = self._draw_offsets(batch, exchange.group)
        for name, (_, rate) in self._trained_by.items():
            now = optimizers.scheduled_rate(config, context.frames, context.total, rate)
            if name == "policy":
                now = self.features.learning_rate(now)
            self._optimizers[name].learning_rate.assign(now)

        def part_of(chosen: tf.Tensor) -> Part:
            part = batches.columns(batch, chosen)
            entries = self._normaliser.read(part.unrolls)
            _, states = self._normaliser.split(part.start)
            live = ~entries.first[1:] & (part.weight > 0)
            of_noise = tf.nest.map_structure(lambda x: tf.gather(x, chosen, axis=2), noise)
            of_part = tf.nest.map_structure(
                lambda x: tf.gather(x, chosen, axis=1), (prepared, bonus, offsets)
            )
            return Part(entries, States(*states), live, part.weight, of_noise, *of_part)

        def step(chosen: tf.Tensor) -> dict[str, tf.Tensor]:
            if config.policy_delay == 1:
                part = part_of(chosen)
                return self._train_critics(part, exchange) | self._train_policy(part, exchange)
            rows = tf.transpose(tf.reshape(chosen, [-1, config.policy_delay]))
            of_critics = minibatches.repeat(
                config.policy_delay, lambda i: self._train_critics(part_of(rows[i]), exchange)
            )
            return of_critics | self._train_policy(part_of(rows[-1]), exchange)

        made = exchange.minibatches(
            step,
            batch.weight.shape[0],
            1,
            config.optimizer_steps // config.policy_delay,
            compiled=self._compiled,
        )
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        rate = self._optimizers["policy"].learning_rate.read_value()
        steps = made.steps * config.policy_delay
        metrics = made.metrics | {"learning_rate": rate, "optimizer_steps": steps}
        return metrics | begun.metrics, batch.weight

    def _draw_noise(self, batch: Batch, group: LearnerGroup) -> Any:
        """Return the noise [draws, T, B, N] of all minibatches; () if there is none.

        N learners with an Nth of the columns draw what one with all would.
        """
        if not self.draws * self.num_noise:
            return ()
        steps, columns = batch.unrolls.reward.shape
        shape = [self.draws, steps - 1, group.size, columns, self.num_noise]
        drawn = tf.random.stateless_normal(shape, self._seed(update_seeds.NOISE))
        return drawn[:, :, group.rank]

    def _draw_offsets(self, batch: Batch, group: LearnerGroup) -> Any:
        """Return the shifts of images, int32 [2, B, 2], of all minibatches; () for none."""
        most = self._config.random_shift
        if not most:
            return ()
        shape, seed = [2, group.size, batch.weight.shape[0], 2], self._seed(update_seeds.SHIFTS)
        return tf.random.stateless_uniform(shape, seed, -most, most + 1, tf.int32)[:, group.rank]

    def _shifted(self, part: Part, draw: int) -> Part:
        """Return a minibatch with its images shifted: 0 for what is learnt, 1 for its goals."""
        most, seen = self._config.random_shift, part.entries.observation
        if not most:
            return part
        offsets = part.offsets[draw]
        moved, of_policy = self._policy.shift_images(seen, part.states.policy, offsets, most)
        of_critics = self._critics.shift_state(seen, part.states.critics, offsets, most)
        entries = part.entries._replace(observation=moved)
        return part._replace(entries=entries, states=States(of_policy, of_critics))

    def _seed(self, use: int) -> tf.Tensor:
        """Return the seed of an update's draws for this use."""
        step = self._optimizers["critics"].step.read_value()
        return update_seeds.of_update(self._config.seed, step, use)

    def _train_critics(self, part: Part, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Make an optimizer step of the Q-networks; return metrics."""
        goals = tf.stop_gradient(self._goals(self._shifted(part, 1)))
        part = self._shifted(part, 0)
        before, played = part.before, part.played

        def loss() -> tuple[tf.Tensor, ...]:
            features = self._critics.unroll(before, part.states.critics)
            at = self._at(self._critics, features, VALUES)
            values = at.values(played)
            errors = goals - values
            loss = part.mean(0.5 * tf.reduce_sum(tf.square(errors), 0))
            return loss, part.mean(values[0]), part.mean(tf.abs(errors[0]))

        (loss, value, error) = self._apply("critics", loss, exchange)
        if not self.copies_wait:
            self._move_copies("critics")
        metrics = losses.as_metrics({"total": loss}, part.live, "mean")
        return metrics | {"q/value": part.per_step(value), "q/error": part.per_step(error)}

    def _train_policy(self, part: Part, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Make an optimizer step of the policy; return metrics."""
        part = self._shifted(part, 0)

        def loss() -> tuple[tf.Tensor, Any, Any]:
            policy = self._policy.unroll(part.before, part.states.policy)
            loss, metrics = self._policy_loss(part, policy)
            student = Student(
                live=part.live,
                weight=part.weight,
                reduction="mean",
                actions=part.played,
                make=lambda given: self._policy.distribution.make(
                    tf.cast(given, loss.dtype), part.before.mask
                ),
                policy=policy,
            )
            added, measured = self.features.loss(student, part.prepared)
            return loss + added, metrics, measured

        loss, metrics, measured = self._apply("policy", loss, exchange)
        metrics = self._after_policy(part, metrics, exchange)
        if self.copies_wait:
            self._move_copies("policy")
        metrics |= losses.as_metrics({"policy": loss}, part.live, "mean")
        return metrics | self.features.after(measured, exchange)

    def _apply(self, name: str, loss: Any, exchange: GradientReducer) -> Any:
        """Make a step of this optimizer, and return what `loss` computed, first the loss."""
        variables = self._trained_by[name].variables
        computed, gradients = exchange.differentiate(loss, variables)
        exchange.apply(self._optimizers[name], gradients, variables, name)
        return computed

    def _move_copies(self, after: str) -> None:
        """Move the slow copies if it is time to, after a step of this optimizer."""
        share, period = self._config.target_share, self._config.target_period
        due = self._optimizers[after].step % period == 0
        self._follow(share if period == 1 else tf.where(due, share, 0.0))

    def _follow(self, share: float | tf.Tensor) -> None:
        """Move the slow copies by this share of the way to what they copy."""
        targets.follow(self._followers, self._copied, share)

    def _at(self, critics: CriticNetwork, features: tf.Tensor, use: int) -> AtFeatures:
        """Return Q-networks at features [T, B, F] for a use: one of GOALS, VALUES and POLICY."""
        seed: tuple[tf.Tensor, ...] = ()
        if self._config.critic_dropout:
            drawn = self._seed(update_seeds.DROPOUT + use)
            seed = (tf.random.fold_in(drawn, self._setup.rank),)
        combine = self._least_of_some if use == GOALS else self._combine
        return AtFeatures(critics, features, combine, seed)

    def _combine(self, values: tf.Tensor) -> tf.Tensor:
        """Return how good actions are to the policy [...], from their values [Q-networks, ...]."""
        if self._config.policy_value == "first":
            return values[0]
        least = self._config.policy_value == "least"
        return tf.reduce_min(values, 0) if least else tf.reduce_mean(values, 0)

    def _least_of_some(self, values: tf.Tensor) -> tf.Tensor:
        """Return the least [...] of --goal_critics of the values [Q-networks, ...]."""
        config = self._config
        if config.goal_critics < config.num_critics:
            drawn = tf.random.stateless_uniform(
                [config.num_critics], self._seed(update_seeds.CRITICS)
            )
            values = tf.gather(values, tf.math.top_k(drawn, config.goal_critics).indices)
        return tf.reduce_min(values, 0)

    def _bootstrapped(self, part: Part, following: tf.Tensor) -> tf.Tensor:
        """Return rewards plus discounted values [T, B] of what follows; 0 where nothing is live."""
        gamma = tf.constant(self._config.discounting, following.dtype)
        ends = part.entries.terminated[1:]
        discounts = tf.where(ends, tf.zeros([], following.dtype), gamma)
        rewards = tf.cast(part.entries.reward[1:] + part.bonus, following.dtype)
        return losses.mask(part.live, rewards + discounts * following)

    def _after(self, part: Part, policy: PolicyNetwork) -> tuple[Distribution, tf.Tensor]:
        """Return the policies [T, B] after the steps, and the features there for `_targets`."""
        parameters = self._read_after(part, policy.parameters, part.states.policy)
        masks = tf.nest.map_structure(lambda x: x[1:], part.entries.mask)
        return policy.distribution.make(parameters, masks), self._features_after(part)

    def _features_after(self, part: Part) -> tf.Tensor:
        """Return the features [T, B, F] for `_targets` after the steps."""
        return self._read_after(part, self._targets.unroll, part.states.critics)

    def _read_after(self, part: Part, read: Callable[[Entry, Any], tf.Tensor], state: Any) -> Any:
        """Return what a network returns [T, B, ...] for the entries after the steps."""
        if self._remembers:  # the memory needs entry 0, too
            return read(part.entries, state)[1:]
        return read(tf.nest.map_structure(lambda x: x[1:], part.entries), state)
