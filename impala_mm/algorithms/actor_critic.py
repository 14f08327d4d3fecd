"""An actor-critic without its update: a network with a policy head and a baseline head.

`impala.Impala` and the algorithms of `policy_gradient` are subclasses, which add `update`. The
actor records the parameters of the distribution from which it sampled each action (logits, for
Discrete actions), so that the learner knows the policy that played.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms import (
    masking,
    networks,
    normalisers,
    offline_policy,
    optimizers,
    policies,
    recorded,
    value_units,
)
from impala_mm.algorithms.distillation import Distillation
from impala_mm.algorithms.distributions import Distribution
from impala_mm.algorithms.guidance import Guidance
from impala_mm.algorithms.interface import (
    Context,
    PolicyLoader,
    PolicyOutput,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.regulariser_settings import RegulariserSettings
from impala_mm.algorithms.regularisers import Regularisers
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class ActorCritic:
    """All members of an `interface.Algorithm` but `update`."""

    masks = True  # actions that an environment forbids are never chosen
    # The next two are absent without regularisers.
    load_policies: Callable[[PolicyLoader], None]
    offline_update: Callable[
        [Batch, Context, GradientReducer], tuple[dict[str, tf.Tensor], tf.Tensor]
    ]
    distillation: Distillation | None = None
    guidance: Guidance | None = None

    def __init__(self, config: Config, environment: EnvironmentSpec):
        """Make the network and its heads.

        A subclass then calls `_make_optimizer`, if it learns, and `_group_variables`.
        """
        self._config, self._actions = config, environment.actions
        self.network_name = networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._network = networks.make_actor_critic(config, environment, self._normaliser.mean)
        self._distribution = policies.choose(self._actions, config.box_policy, config.box_deviation)
        self._policy_head = policies.make_head(self._distribution, config.policy_init_scale)
        self._baseline_head = snt.Linear(1, name="baseline")
        extras = recorded.extras_spec(
            config, self._distribution.num_parameters, self._network.num_features
        )
        step = entry_spec(environment, extras=extras)
        start = start_spec(self.initial_state(1))
        self.unroll = UnrollSpec(config.unroll_length, overlap=1, step=step, start=start)
        for head in (self._policy_head, self._baseline_head):  # creates their variables
            head(tf.zeros([1, self._network.num_features]))
        self._unit = value_units.make_unit(config.value_normalization, self._baseline_head)

    def _make_optimizer(self) -> list[tf.Variable]:
        """Make the optimizer that the flags describe; return what only a learner needs."""
        config = self._config
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        self._optimizer.initialize(self._trained)
        return [*self._optimizer.variables, *self._unit.learning]

    def _scales_advantages(self) -> bool:
        """Return whether --advantage_scaling gives advantages mean 0 and deviation 1."""
        scaling, discrete = self._config.advantage_scaling, self._actions.discrete is not None
        return scaling == "batch" or (scaling == "auto" and not discrete)

    def _schedule_rate(self, context: Context) -> tf.Tensor:
        """Set the learning rate to that of this update, and return it.

        The teachers' cost must be set before.
        """
        rate = optimizers.scheduled_rate(self._config, context.frames, context.total)
        if self.distillation:
            rate = self.distillation.rate(rate)
        self._optimizer.learning_rate.assign(rate)
        return rate

    @property
    def _trained(self) -> list[tf.Variable]:
        modules = (self._network, self._policy_head, self._baseline_head)
        return [v for module in modules for v in module.trainable_variables]

    def _group_variables(
        self, carried: Sequence[tf.Variable], weights: Sequence[tf.Variable] = ()
    ) -> Variables:
        """Return the variables; `carried` are the subclass's own, and `weights` some of these.

        Those of teachers become the last of the subclass's: a checkpoint names carried variables
        by their numbers, so a run may then be resumed without --teacher.
        """
        inputs, unit = self._normaliser, self._unit.acting
        last = self.distillation.variables if self.distillation else []
        guides = self.guidance.variables if self.guidance else []
        teachers = {id(variable) for variable in last}
        carried = [*(v for v in carried if id(v) not in teachers), *last]
        return Variables(
            trained=self._trained,
            carried=[*carried, *unit, *inputs.carried, *guides],
            acting=[*self._trained, *unit, *inputs.acting, *guides],
            weights=[*weights, *unit, *inputs.carried],
            schedules=[*last, *guides],
        )

    def _make_regularisers(self, config: RegulariserSettings) -> list[tf.Variable]:
        """Make the regularisers that the flags ask for; return their variables."""
        self._regularisers = Regularisers(config, self._actions)
        self.load_policies = self._regularisers.load_reference
        self.distillation = self._regularisers.distillation
        self.offline_update = self._learn_offline
        return self._regularisers.variables

    def start_after(self, entries: Entry) -> Any:
        """Return the core state [B, ...] after the frames of entries [N, B, ...]."""
        return self._normaliser.start_after(
            entries, lambda e: self._network.state_after(e.observation, e.first)
        )

    def _learn_offline(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Make one update from recorded unrolls, see `offline_policy`."""
        config, trained = self._config, self._trained
        rate = self._schedule_rate(context)
        taught = self._ask_teachers(batch)
        read = self._normaliser.read(batch.unrolls)
        _, values = self._unroll(read, batch.start)
        goals = offline_policy.goals(read, batch.weight, values, config.discounting)
        self._unit.see_targets(goals.targets, goals.live, exchange)

        def loss() -> offline_policy.Losses:
            parameters, values = self._unroll(read, batch.start)
            _, in_unit = self._for_teachers(values, taught)
            return offline_policy.losses_of(
                config,
                goals,
                batch.weight,
                self._distribution.make,
                parameters,
                values,
                tf.cast(self._unit.squared(), values.dtype),
                self.distillation if taught else None,
                tf.nest.map_structure(lambda x: x[:-1], in_unit),
            )

        found, gradients = exchange.differentiate(loss, trained)
        applied = exchange.apply(self._optimizer, gradients, trained)
        error = exchange.mean(found.squared_error, name="squared_error")
        self._unit.see_error(tf.cast(error, tf.float32))
        # Recorded observations and rewards are what the student will see, too.
        played = batch._replace(fresh=batch.weight > 0)
        self._normaliser.update(played, self.unroll.overlap, exchange)
        metrics = found.metrics | {
            "loss/total": found.total,
            "loss/baseline": found.baseline,
            "learning_rate": rate,
            "grad_norm": applied.norm,
            "clipped_share": applied.clipped,
        }
        return metrics | self._unit.metrics(), batch.weight

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._normaliser.initial_state(self._network.initial_state(batch), batch)

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Sample actions from the policy; where `exploration` is 0, take the most likely ones."""
        features, core_state = self._read(entry, core_state)
        parameters = self._policy_head(features.policy)
        policy = self._distribution.make(parameters, entry.mask)

        def value() -> tf.Tensor:
            return self._unit.values(tf.squeeze(self._baseline_head(features.value), -1))

        extras = recorded.record(self.unroll.step.extras, parameters, value, features.policy)
        return policies.draw(policy, exploration), core_state, extras

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy's probabilities, or parameters, and the baseline's values."""
        features, _ = self._read(entry, core_state)
        parameters = self._policy_head(features.policy)
        outputs = tf.squeeze(self._baseline_head(features.value), -1)
        return self._output(parameters, self._unit.values(outputs), entry.mask)

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        outputs = self._unroll(self._normaliser.read(entries), start)
        return self._output(*outputs, entries.mask)

    def _output(self, parameters: tf.Tensor, values: tf.Tensor, mask: Any) -> PolicyOutput:
        return policies.output(self._actions, parameters, values, mask)

    def _read(self, entry: Entry, core_state: Any) -> tuple[nets.Features, Any]:
        """Return (features [B, F], core state) after reading entries [B, ...]."""
        returns, state = self._normaliser.split(core_state)
        returns, read = self._normaliser.step(entry, returns), self._normaliser.read(entry)
        reward = self._unit.for_network(read.reward)
        features, state = self._network.step(
            read.observation, reward, read.action, read.first, state
        )
        core_state = self._normaliser.join(returns, state)
        return networks.for_policy_and_value(features), core_state

    def _unroll(self, entries: Entry, start: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (policy parameters [T+1, B, P], values [T+1, B]).

        `entries` [T+1, B, ...] are those that the normaliser returns.
        """
        features = self._unroll_features(entries, start)
        outputs = snt.BatchApply(self._baseline_head)(features.value)  # [T+1, B, 1]
        parameters = snt.BatchApply(self._policy_head)(features.policy)
        return parameters, self._unit.values(tf.squeeze(outputs, -1))

    def _unroll_features(
        self, entries: Entry, start: Any, network: nets.Network | nets.Separate | None = None
    ) -> nets.Features:
        """Return the features [T+1, B, F] of the entries that the normaliser returns.

        `network` computes them; None: the one in training.
        """
        _, state = self._normaliser.split(start)
        reward = self._unit.for_network(entries.reward)
        features, _ = (network or self._network).unroll(
            entries.observation, reward, entries.action, entries.first, state
        )
        return networks.for_policy_and_value(features)

    def _ask_teachers(self, batch: Batch) -> Any:
        """Return a `distillation.Taught` for the entries of a batch; () if there is no teacher."""
        if not self.distillation:
            return ()
        _, state = self._normaliser.split(batch.start)
        return self._regularisers.ask_teachers(batch, self._network.earlier_images(state))

    def _for_teachers(self, values: tf.Tensor, taught: Any) -> tuple[tf.Tensor, Any]:
        """Return values [...], and what is taught, with all values in the unit of their errors."""
        unit = tf.sqrt(self._unit.squared())
        of_teachers = tuple(x / unit for x in taught.values) if taught else ()
        in_unit = taught._replace(values=of_teachers) if taught else taught
        return values / tf.cast(unit, values.dtype), in_unit

    def _behaviour(self, entries: Entry) -> Distribution:
        """Return the policy that chose the actions in entries [T+1, B, ...]."""
        parameters = recorded.policy_parameters(entries.extras)
        return self._distribution.make(parameters, masking.before(entries.mask))
