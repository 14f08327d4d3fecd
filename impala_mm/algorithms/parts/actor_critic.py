"""An actor-critic without its update: a network with a policy head and a baseline head.

`impala.Impala` and the algorithms of `policy_gradient` are subclasses, which add `update`. The
actor records the parameters of the distribution from which it sampled each action (logits, for
Discrete actions), so that the learner knows the policy that played.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms.feature import Host, Reading
from impala_mm.algorithms.feature_settings import RegulariserSettings
from impala_mm.algorithms.interface import (
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
    masking,
    networks,
    normalisers,
    offline_policy,
    optimizers,
    update_seeds,
    value_units,
)
from impala_mm.algorithms.parts.action_policies import why_unreachable
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.parts.lagrange import Cost
from impala_mm.config import replay_mix
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import EnvironmentSpec


class Recorded(NamedTuple):
    """The outputs of the behaviour policy's network, [...]; () for those not recorded."""

    parameters: Any  # float32 [..., P]: of the distribution of actions
    value: Any = ()  # float32 [...]
    features: Any = ()  # float32 [..., F]: what the policy's head reads
    level: Any = ()  # int32 [...]: number of the level, if values have a unit for each


def recorded_spec(
    config: Config, needed: Collection[str], num_parameters: int, num_features: int, levels: int = 1
) -> Any:
    """Return the specs of one entry's extras; `needed` is `Feature.records` of all features."""
    parameters = tf.TensorSpec([num_parameters], tf.float32)
    replays = bool(config.replay and replay_mix.parse(config.replay).who_need("features"))
    needs_features = replays or "features" in needed
    needs_value = "value" in needed
    if not (needs_features or needs_value or levels > 1):
        return parameters
    return Recorded(
        parameters,
        tf.TensorSpec([], tf.float32) if needs_value else (),
        tf.TensorSpec([num_features], tf.float32) if needs_features else (),
        tf.TensorSpec([], tf.int32) if levels > 1 else (),
    )


def record(
    spec: Any,
    parameters: tf.Tensor,
    value: Callable[[], tf.Tensor],
    features: tf.Tensor,
    level: tf.Tensor,
) -> Any:
    """Return the extras, of a step or of many, as `recorded_spec` describes them."""
    if not isinstance(spec, Recorded):
        return parameters
    return Recorded(
        parameters,
        value() if spec.value != () else (),
        tf.cast(features, tf.float32) if spec.features != () else (),
        level if spec.level != () else (),
    )


def policy_parameters(extras: Any) -> Any:
    """Return the policy's parameters in extras."""
    return extras.parameters if isinstance(extras, Recorded) else extras


class Outputs(NamedTuple):
    """The outputs of the network and its heads at entries [T+1, B]."""

    parameters: tf.Tensor  # [T+1, B, P]: of the policy's distribution
    values: tf.Tensor  # [T+1, B]
    torso: tf.Tensor  # [T+1, B, F]: what the policy's head reads


class ActorCritic(Algorithm):
    """An algorithm without its `update`."""

    masks = True  # actions that an environment forbids are never chosen

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup):
        """Make the network and its heads.

        A subclass then calls `_prepare_learning`, if it learns, and `_group_variables`.
        """
        self._config, self._actions = config, environment.actions
        self.features = features = setup.features
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._network = networks.make_actor_critic(config, environment, self._normaliser.mean)
        self._distribution = action_policies.choose(
            self._actions, config.box_policy, config.box_deviation
        )
        self._policy_head = action_policies.make_head(self._distribution, config.policy_init_scale)
        state = self.initial_state(1)
        features.attach(
            Host(
                self._distribution,
                remembers=bool(tf.nest.flatten(state)),
                records_policy=True,
                num_features=self._network.num_features,
            )
        )
        # With PopArt, values have a unit for each level, and an output of the head.
        apart = config.value_normalization == "popart"
        levels, self._level = (setup.levels, setup.level) if apart else (1, 0)
        if levels > 1 and setup.role is Role.INFERENCE:
            raise UserMistake(
                "--value_normalization=popart has a unit for each of several levels, and with "
                "--inference=learner it is not known which one is played: leave one of them out"
            )
        if levels > 1 and config.uses_recorded_games:
            raise UserMistake(
                "--value_normalization=popart has a unit for each of several levels, and recorded "
                "games (--offline_updates, --teacher_data_share) do not say which one was played: "
                "leave one of them out"
            )
        self._baseline_head = snt.Linear(levels, name="baseline")
        self._own_extras = recorded_spec(
            config,
            features.records,
            self._distribution.num_parameters,
            self._network.num_features,
            levels,
        )
        step = entry_spec(environment, extras=features.extras_spec(self._own_extras))
        start = start_spec(state)
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)
        for head in (self._policy_head, self._baseline_head):  # creates their variables
            head(tf.zeros([1, self._network.num_features]))
        self._unit = value_units.make_unit(config.value_normalization, self._baseline_head)

    def _prepare_learning(self, config: RegulariserSettings) -> list[tf.Variable]:
        """Make the optimizer and the entropy's cost; return the variables that only learners need.

        Raises UserMistake if --target_entropy is one that no policy can reach.
        """
        self._entropy_cost = entropy_cost(config, self._actions)
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        self._optimizer.initialize([*self._trained, *self.features.trained])
        return [*self._optimizer.variables, *self._unit.learning, *self._entropy_cost.variables]

    def _scales_advantages(self) -> bool:
        """Return whether --advantage_scaling gives advantages mean 0 and deviation 1."""
        scaling, discrete = self._config.advantage_scaling, self._actions.discrete is not None
        return scaling == "batch" or (scaling == "auto" and not discrete)

    def _schedule_rate(self, context: Context) -> tf.Tensor:
        """Set the learning rate to that of this update, and return it."""
        rate = optimizers.scheduled_rate(self._config, context.frames, context.total)
        rate = self.features.learning_rate(rate)
        self._optimizer.learning_rate.assign(rate)
        return rate

    @property
    def _trained(self) -> list[tf.Variable]:
        modules = (self._network, self._policy_head, self._baseline_head)
        return [v for module in modules for v in module.trainable_variables]

    def _group_variables(
        self, carried: Sequence[tf.Variable], weights: Sequence[tf.Variable] = ()
    ) -> Variables:
        """Return the variables; `carried` are the subclass's own, and `weights` some of these."""
        inputs, unit = self._normaliser, self._unit.acting
        own = Variables(
            trained=self._trained,
            carried=[*carried, *unit, *inputs.carried],
            acting=[*self._trained, *unit, *inputs.acting],
            weights=[*weights, *unit, *inputs.carried],
        )
        return self.features.with_variables(own)

    def start_after(self, entries: Entry) -> Any:
        """Return the core state [B, ...] after the frames of entries [N, B, ...]."""
        return self._normaliser.start_after(
            entries, lambda e: self._network.state_after(e.observation, e.first)
        )

    def offline_update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make one update from recorded unrolls: the values learn their returns.

        What the policy learns is a feature's: from a teacher, or the actions that were played.
        """
        config, trained, features = (
            self._config,
            self.variables.trained,
            self.features.of_offline_updates(),
        )
        begun = features.begin(batch, context, self._reading(batch, exchange))
        batch, metrics = begun.batch, begun.metrics
        rate = self._schedule_rate(context)
        read = self._normaliser.read(batch.unrolls)
        level = self._levels(batch.unrolls)
        _, values, _ = self._unroll(read, batch.start, level)
        learnt = read._replace(reward=read.reward + begun.bonus)
        goals = offline_policy.goals(learnt, batch.weight, values, config.discounting)
        self._unit.see_targets(goals.targets, goals.live, exchange, level)

        def loss() -> offline_policy.OfflineLosses:
            parameters, values, _ = self._unroll(read, batch.start, level)
            return offline_policy.losses_of(
                config,
                goals,
                batch.weight,
                self._distribution.make,
                parameters,
                values,
                tf.cast(self._unit.squared(level), values.dtype),
                features,
                transitions(goals.live, begun.prepared),
            )

        # What no feature teaches stays as it is.
        found, gradients = exchange.differentiate(loss, trained, allow_unused=True)
        exchange.apply(self._optimizer, gradients, trained)
        error = exchange.mean(found.squared_error, name="squared_error")
        self._unit.see_error(tf.cast(error, tf.float32))
        # Recorded observations and rewards are what the student will see, too.
        played = batch._replace(fresh=batch.weight > 0)
        self._normaliser.update(played, self.unroll.overlap, exchange)
        metrics |= features.after(found.measured, exchange) | {
            "loss/total": found.total,
            "loss/baseline": found.baseline,
            "learning_rate": rate,
        }
        return metrics | self._unit.metrics(), batch.weight

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._normaliser.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Sample actions from the policy; where `exploration` is 0, take the most likely ones."""
        torso, core_state = self._read(entry, core_state)
        parameters = self._policy_head(torso.policy)
        policy = self._distribution.make(parameters, entry.mask)

        level = self._played_level(entry)

        def value() -> tf.Tensor:
            return self._unit.values(self._baseline_head(torso.value), level)

        own = record(self._own_extras, parameters, value, torso.policy, level)
        extras = self.features.extras(own, entry.first.shape[0])
        return action_policies.draw(policy, exploration), core_state, extras

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's probabilities, or parameters, and the baseline's values."""
        torso, _ = self._read(entry, core_state)
        parameters = self._policy_head(torso.policy)
        outputs = self._baseline_head(torso.value)
        values = self._unit.values(outputs, self._played_level(entry))
        return self._output(parameters, values, entry.mask)

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        level = self._played_level(entries)
        parameters, values, _ = self._unroll(self._normaliser.read(entries), start, level)
        return self._output(parameters, values, entries.mask)

    def _output(self, parameters: tf.Tensor, values: tf.Tensor, mask: Any) -> PolicyOutput:
        return action_policies.output(self._actions, parameters, values, mask)

    def _read(self, entry: Entry, core_state: Any) -> tuple[nets.SeparateFeatures, Any]:
        """Return (what the heads read [B, F], core state) after reading entries [B, ...]."""
        returns, state = self._normaliser.split(core_state)
        returns, read = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        reward = self._unit.for_network(read.reward)
        torso, state = self._network.step(read.observation, reward, read.action, read.first, state)
        core_state = self._normaliser.join(returns, state)
        return networks.for_policy_and_value(torso), core_state

    def _played_level(self, entries: Entry) -> tf.Tensor:
        """Return the number of the level that this process plays, int32 [...] as `entries`."""
        return tf.zeros_like(entries.first, tf.int32) + self._level

    def _levels(self, entries: Entry) -> tf.Tensor:
        """Return the numbers of the columns' levels, int32 [B], that actors have recorded."""
        own = self.features.own_extras(entries.extras)
        recorded = own.level if isinstance(own, Recorded) else ()
        return self._played_level(entries)[-1] if isinstance(recorded, tuple) else recorded[-1]

    def _unroll(self, entries: Entry, start: Any, level: tf.Tensor | None = None) -> Outputs:
        """Return the network's outputs for entries [T+1, B, ...].

        `entries` [T+1, B, ...] are those that the normaliser returns; `level` is [B] or [T+1, B];
        None: the values have one unit.
        """
        torso = self._unroll_torso(entries, start)
        outputs = snt.BatchApply(self._baseline_head)(torso.value)  # [T+1, B, levels]
        parameters = snt.BatchApply(self._policy_head)(torso.policy)
        return Outputs(parameters, self._unit.values(outputs, level), torso.policy)

    def _unroll_torso(
        self, entries: Entry, start: Any, network: nets.Network | nets.Separate | None = None
    ) -> nets.SeparateFeatures:
        """Return what the heads read [T+1, B, F] at the entries that the normaliser returns.

        `network` computes them; None: the one in training.
        """
        _, state = self._normaliser.split(start)
        reward = self._unit.for_network(entries.reward)
        torso, _ = (network or self._network).unroll(
            entries.observation, reward, entries.action, entries.first, state
        )
        return networks.for_policy_and_value(torso)

    def _reading(self, batch: Batch, exchange: GradientReducer) -> Reading:
        """Return the means by which features prepare a batch."""
        _, state = self._normaliser.split(batch.start)
        return Reading(
            exchange,
            lambda use: update_seeds.of_update(self._config.seed, exchange.update, use),
            lambda: self._network.earlier_images(state),
        )

    def _behaviour(self, entries: Entry) -> Distribution:
        """Return the policy that chose the actions in entries [T+1, B, ...]."""
        return self._distribution.make(self._recorded(entries), masking.before(entries.mask))

    def _recorded(self, entries: Entry) -> tf.Tensor:
        """Return the parameters of the policy that played, [T+1, B, P]."""
        return policy_parameters(self.features.own_extras(entries.extras))


def entropy_cost(config: RegulariserSettings, actions: ActionSpec) -> Cost:
    """Return the cost of the negative entropy, fixed or with a target.

    Raises UserMistake if the target is one that no policy of these actions can reach.
    """
    target = config.target_entropy
    reachable = not math.isfinite(target)
    if why := "" if reachable else why_unreachable(target, actions, config.box_policy):
        raise UserMistake(f"--target_entropy={target:g}: {why}")
    speed = config.multiplier_speed
    cost = config.entropy_cost
    return Cost("entropy_cost", cost, target, initial=0.01, speed=speed, raises=True)


def transitions(live: tf.Tensor, prepared: Any) -> Any:
    """Return what features have prepared, [T+1, B, ...], of transitions alone: [T, B, ...].

    It is 0 where they are not `live`.
    """
    return tf.nest.map_structure(lambda x: losses.mask(live, x[:-1]), prepared)
