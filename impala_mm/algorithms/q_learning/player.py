"""Playing by the values of actions, which DQN, R2D2 and PQN share.

    entry -- normaliser -- network -- values -- the best action, or a random one (`epsilon`)

Each of these algorithms has an update of its own.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.feature import Host, Reading, Student
from impala_mm.algorithms.interface import (
    Algorithm,
    Context,
    EnvironmentNumber,
    PolicyOutput,
    Role,
    Setup,
    entry_spec,
    start_spec,
)
from impala_mm.algorithms.parts import (
    action_policies,
    losses,
    masking,
    networks,
    normalisers,
    optimizers,
    update_seeds,
)
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import epsilon
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.network import QNetwork
from impala_mm.algorithms.q_learning.settings import ActionValueSettings
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class QPlayer(Algorithm):
    """An algorithm that plays by the values of actions, without its `update`."""

    masks = True
    _config: ActionValueSettings

    def __init__(
        self,
        config: ActionValueSettings,
        environment: EnvironmentSpec,
        setup: Setup,
        overlap: int,
        network: str = "",
    ):
        """Make the network; unrolls have `overlap` entries of the unroll before.

        `network` is the name of another one than --agent_name stands for. A subclass then calls
        `_prepare_learning`, if it learns, and `_group_variables`.
        """
        self._config = config
        self.features = features = setup.features
        # In tests and evaluation, the share of random actions.
        self._eval_epsilon = config.eval_epsilon if setup.role is Role.EVALUATOR else None
        self.explores_less_by_number = config.schedule == "ladder"
        self.network_name = network or networks.chosen_name(config, environment)
        self._normaliser = normalisers.Normaliser(config, environment.observation)
        self._online = self._make_network(environment)
        state = self.initial_state(1)
        distribution = action_policies.choose(environment.actions)
        features.attach(Host(distribution, bool(tf.nest.flatten(state))))
        self._epsilon = tf.Variable(config.epsilon_start, trainable=False, name="epsilon")
        self.unroll = UnrollSpec(
            config.unroll_length,
            overlap,
            entry_spec(environment, extras=features.extras_spec(self._recorded_spec())),
            start_spec(state),
        )

    def _make_network(self, environment: EnvironmentSpec) -> QNetwork:
        return QNetwork(self._config, environment, self._normaliser.mean, self.network_name)

    def _prepare_learning(self) -> list[tf.Variable]:
        """Make the optimizer; return the variables that only learners need."""
        config = self._config
        self._optimizer = optimizers.make(
            config.optimizer, config.learning_rate, config.decay, config.momentum, config.epsilon
        )
        self._optimizer.initialize([*self._online.trainable_variables, *self.features.trained])
        return list(self._optimizer.variables)

    def _group_variables(
        self, carried: Sequence[tf.Variable], weights: Sequence[tf.Variable] = ()
    ) -> Variables:
        """Return the variables; `carried` are the subclass's own, besides its `weights`."""
        trained, inputs = list(self._online.trainable_variables), self._normaliser
        own = Variables(
            trained=trained,
            carried=[*weights, *carried, self._epsilon, *inputs.carried],
            acting=[*trained, self._epsilon, *inputs.acting],
            weights=[*weights, *inputs.carried],
        )
        return self.features.with_variables(own)

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        return self._normaliser.initial_state(self._online.initial_state(batch), batch)

    def act_by_number(
        self, entry: Entry, core_state: Any, exploration: tf.Tensor, environment: EnvironmentNumber
    ) -> tuple[Any, Any, Any]:
        """Choose the best actions, or random ones with each environment's probability.

        In tests and evaluation, the probability is --eval_epsilon, and nothing has noise.
        """
        plays = self._eval_epsilon is None
        draws = q_draws.Acting(exploration) if plays else q_draws.Calm()
        values, core_state = self._read(entry, core_state, draws)
        share = self._share_of_random(environment)
        action = epsilon.choose(values, entry.mask, exploration * share)
        recorded = self._recorded(values, action, entry.mask)
        return action, core_state, self.features.extras(recorded, values.shape[0])

    def _recorded_spec(self) -> Any:
        """Return the specs of what actors record in each entry."""
        return ()

    def _recorded(self, values: tf.Tensor, action: tf.Tensor, mask: Any) -> Any:
        """Return what actors record of values [B, A] and actions [B]."""
        return ()

    def _share_of_random(self, environment: EnvironmentNumber) -> tf.Tensor | float:
        """Return the share of random actions, [] or for each environment [B]."""
        config = self._config
        if self._eval_epsilon is not None:
            return self._eval_epsilon
        if config.schedule == "ladder":
            return epsilon.of_ladder(environment, config.epsilon_base)
        return self._epsilon if config.schedule == "decay" else 0.0

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the greedy policy and its values."""
        values, _ = self._read(entry, core_state, q_draws.Calm())
        return self._greedy(values, entry.mask)

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""
        _, state = self._normaliser.split(start)
        values = self._online.unroll(
            self._normaliser.read(entries),
            state,
            q_draws.Calm(),
            self._config.num_policy_quantiles,
        ).mean
        return self._greedy(values, entries.mask)

    def _greedy(self, values: tf.Tensor, mask: Any) -> PolicyOutput:
        """Return the policy that takes the allowed action of the largest value, [..., A]."""
        best = masking.best_choice(values, mask)
        values = self._in_rewards(values)
        value = tf.gather(values, best, batch_dims=best.shape.rank)
        return PolicyOutput(tf.one_hot(best, values.shape[-1]), value, values=values)

    def _in_rewards(self, values: tf.Tensor) -> tf.Tensor:
        """Return the network's values in the unit of rewards."""
        return q_values.in_rewards(values, self._config.value_rescaling)

    def _read(self, entry: Entry, core_state: Any, draws: q_draws.Draws) -> tuple[tf.Tensor, Any]:
        """Return (values [B, A], core state) after reading entries [B, ...]."""
        returns, state = self._normaliser.split(core_state)
        returns = self._normaliser.step(entry, returns)
        values, state = self._online.step(self._normaliser.read(entry), state, draws)
        return values, self._normaliser.join(returns, state)

    def start_after(self, entries: Entry) -> Any:
        """Return the core state [B, ...] after the frames of entries [N, B, ...]."""
        return self._normaliser.start_after(entries, self._online.state_after)

    def _reading(self, batch: Batch, exchange: GradientReducer, update: tf.Tensor) -> Reading:
        """Return the means by which features prepare a batch in the update of this number."""
        _, state = self._normaliser.split(batch.start)
        seed = self._config.seed
        return Reading(
            exchange,
            lambda use: update_seeds.of_update(seed, update, use),
            lambda: self._online.earlier_images(state),
        )

    def _schedule_rate(self, context: Context) -> tf.Tensor:
        """Set the learning rate to that of this update, and return it."""
        rate = optimizers.scheduled_rate(self._config, context.frames, context.total)
        rate = self.features.learning_rate(rate)
        self._optimizer.learning_rate.assign(rate)
        return rate

    def _schedule_epsilon(self, context: Context) -> dict[str, tf.Tensor]:
        """Set the share of random actions; return it as a metric, if it is that of the actors."""
        config, share = self._config, self._epsilon
        first, last = config.epsilon_start, config.epsilon_end
        share.assign(epsilon.decayed(context.frames, first, last, config.epsilon_frames))
        return {"epsilon": share.read_value()} if config.schedule == "decay" else {}


def make_student(
    config: ActionValueSettings,
    values: tf.Tensor,
    actions: tf.Tensor,
    masks: Any,
    live: tf.Tensor,
    weight: tf.Tensor,
    recorded: tf.Tensor | None = None,
    copies: int = 1,
) -> Student:
    """Return what features may read, for values [T, copies x B, A] and actions [T, copies x B].

    `masks` are those of the T steps, which allow all where not live. They, `live` [T, B], `weight`
    [B] or [T, B] and `recorded` [B], the columns of recorded games, are those of one copy.
    """
    masks = tf.nest.map_structure(lambda x: q_values.repeat(x, copies), masks)
    values = losses.mask(q_values.repeat(live, copies), values)
    rescaling = config.value_rescaling

    def softmax(temperature: float) -> action_policies.Categorical:
        return action_policies.categorical(
            q_values.in_rewards(values, rescaling) / temperature, masks
        )

    if recorded is not None:
        recorded = q_values.repeat(tf.broadcast_to(recorded, tf.shape(live)), copies)
    return Student(
        live=q_values.repeat(live, copies),
        weight=weight,
        reduction=config.loss_reduction,
        actions=actions,
        make=lambda given: action_policies.categorical(tf.cast(given, values.dtype), masks),
        policy=softmax(config.teacher_temperature),
        values=values,
        allowed=masks,
        as_learnt=lambda x: q_values.rescale(x, rescaling) if rescaling else x,
        softmax=softmax,
        recorded=recorded,
        copies=copies,
    )
