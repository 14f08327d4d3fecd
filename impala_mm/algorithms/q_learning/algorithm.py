"""Q-learning: the update that DQN and R2D2 share.

    unrolls, new ones and replayed ones by priority (--replay)
        -- target network, without gradient: the values that follow, or their distributions
        -- network: the errors of the actions that were played, weighted by importance
           + what features add to the loss, such as teachers
        -- exchange.apply, then the target network follows
        -- the errors' sizes, or the losses of distributions, are the unrolls' new priorities

DQN and R2D2 say how unrolls overlap.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import Begun
from impala_mm.algorithms.interface import DEFAULT_SETUP, Context, Role, Setup, Updated
from impala_mm.algorithms.parts import losses, masking, networks, targets
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.network import ActionValues, QNetwork
from impala_mm.algorithms.q_learning.player import QPlayer, make_student
from impala_mm.algorithms.q_learning.settings import DQNSettings, QLearningSettings, R2D2Settings
from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class _Loss(NamedTuple):
    """The loss of a batch, and what is measured of it."""

    total: tf.Tensor  # []
    error: tf.Tensor  # []: mean absolute difference of values from their targets
    best: q_values.Best  # the values of the best actions, in the unit of rewards
    sizes: tf.Tensor  # [T, B]: what priorities are made of, 0 where not live
    live: tf.Tensor  # bool [T, B]
    measured: Any  # what the features have measured


class QLearning(QPlayer):
    """Values of actions, trained towards targets of `n_steps` rewards and a later value."""

    _config: QLearningSettings

    def __init__(
        self,
        config: QLearningSettings,
        environment: EnvironmentSpec,
        setup: Setup,
        overlap: int,
        burn_in: int = 0,
        network: str = "",
    ):
        """Make the networks; unrolls have `overlap` entries of the unroll before.

        The first `burn_in` of them only fill the network's memory. `network` is the name of another
        one than --agent_name stands for.
        """
        self._burn_in = burn_in
        # The value of the chosen action, or of each that a guide may choose, and the largest one.
        self._records_all = "all_values" in setup.features.records
        networks.check_shift(config, environment)
        super().__init__(config, environment, setup, overlap, network)
        if config.stops_learning:
            self.note = (
                f"--td_cost={config.td_cost:g} without --teacher_data_share: recorded actions "
                f"alone are learnt, so after --offline_updates={config.offline_updates} the "
                f"network only plays"
            )
        self._rule = q_values.Rule(config.discounting, config.n_steps, config.value_rescaling)
        learns = setup.role is Role.LEARNER
        copied, slots = self._prepare_updates(environment) if learns else ([], [])
        self.variables = self._group_variables(slots, weights=copied)

    def _prepare_updates(
        self, environment: EnvironmentSpec
    ) -> tuple[list[tf.Variable], list[tf.Variable]]:
        """Make what only `update` needs; return the target network's variables, and the others."""
        self._target = self._make_network(environment)
        copied = list(self._target.trainable_variables)
        targets.follow(copied, self._online.trainable_variables)
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        return copied, [*self._prepare_learning(), self._updates]

    def _recorded_spec(self) -> tf.TensorSpec:
        numbers = 1 + (self._online.num_actions if self._records_all else 1)
        return tf.TensorSpec([numbers], tf.float32)

    def _recorded(self, values: tf.Tensor, action: tf.Tensor, mask: Any) -> tf.Tensor:
        """Return the value of the chosen action, or those of all, and the largest value.

        They are for `first_priorities`; a guide may choose another action.
        """
        best = tf.reduce_max(masking.allowed_only(values, mask), -1)
        # Not tf.gather, so that actors can compute this function by NumPy.
        chosen = tf.reduce_sum(tf.one_hot(action, values.shape[-1]) * values, -1, keepdims=True)
        return tf.concat([values if self._records_all else chosen, best[:, tf.newaxis]], -1)

    def first_priorities(self, entries: Entry, start: Any) -> tf.Tensor:
        """Return the priorities [B] of new unrolls, by the values that their actors recorded.

        The value of the last entry is recorded in the next unroll, so errors are those of the steps
        before the last one. Without such steps, and where distributions are learnt, whose losses
        are the later priorities, they are NaN, which stands for a large priority.
        """
        del start
        entries = tf.nest.map_structure(lambda x: x[self._burn_in :], entries)
        entries = self._normaliser.read(entries)
        if entries.first.shape[0] < 3 or self._config.value_distribution != "none":
            return tf.fill(tf.shape(entries.first)[1:], float("nan"))
        recorded = self.features.own_extras(entries.extras)
        played, best = recorded[1:, :, :-1], recorded[1:, :, -1]
        chosen = played[..., 0]
        if self._records_all:
            chosen = q_values.chosen(played, entries.action[1:])
        reward, terminated, live = (
            x[1:-1] for x in (entries.reward, entries.terminated, ~entries.first)
        )
        values = self._in_rewards(best)
        goals = q_values.n_step_targets(values, reward, terminated, live, self._rule)
        if self._rule.rescaling:
            goals = q_values.rescale(goals, self._rule.rescaling)
        # Later steps are those of the next unroll.
        sizes = tf.where(live, tf.abs(goals - chosen[:-1]), 0.0)[: self._config.unroll_length]
        live = live[: self._config.unroll_length]
        return q_values.priorities(sizes, live, self._config.largest_error_share)

    def offline_update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make one update from recorded games, which the normaliser counts like new unrolls."""
        return self.update(batch._replace(fresh=batch.weight > 0), context, exchange)

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Make one update; return the unrolls' new priorities with its metrics."""
        config, trained = self._config, self.variables.trained
        update, columns = self._updates.read_value(), batch.weight.shape[0]
        reading = self._reading(batch, exchange, update)
        begun = self.features.begin(batch, context, reading)
        batch = begun.batch

        def read(use: int, network: QNetwork, num_quantiles: int, copies: int) -> ActionValues:
            drawn = batch.weight.shape[0]
            draws = q_draws.Trained(exchange.group, config.seed, update, use, drawn, copies)
            return self._unroll(network, batch, draws, num_quantiles, copies)

        future = read(1, self._target, config.num_target_quantiles, config.target_shifts)

        def loss() -> _Loss:
            values = read(0, self._online, config.num_quantiles, config.value_shifts)
            return self._loss(values, future, begun)

        found, gradients = exchange.differentiate(loss, trained)
        rate = self._schedule_rate(context)
        exchange.apply(self._optimizer, gradients, trained)
        follows = self._updates.assign_add(1) % config.target_period == 0
        share = tf.where(follows, config.target_share, 0.0)
        targets.follow(self._target.trainable_variables, self._online.trainable_variables, share)
        self._normaliser.update(batch, self.unroll.overlap, exchange)
        total = {"total": found.total}
        metrics = losses.as_metrics(total, found.live, config.loss_reduction) | {
            "q/error": found.error,
            "q/value": found.best.mean,
            "q/largest": found.best.largest,
            "q/action_gap": found.best.gap,
            "learning_rate": rate,
        }
        metrics |= self._schedule_epsilon(context)
        # With hindsight, a column is one step of an unroll.
        sizes, live = (tf.reshape(x, [-1, columns]) for x in (found.sizes, found.live))
        metrics |= begun.metrics | self.features.after(found.measured, exchange)
        return metrics, q_values.priorities(sizes, live, config.largest_error_share)

    def _unroll(
        self,
        network: QNetwork,
        batch: Batch,
        draws: q_draws.Trained,
        num_quantiles: int,
        copies: int,
    ) -> ActionValues:
        """Return a network's outputs for a batch's entries but those of the burn-in.

        With --random_shift they are those of `copies` of the batch, one after the other, whose
        images are shifted.
        """
        entries = self._normaliser.read(batch.unrolls)
        _, state = self._normaliser.split(batch.start)
        if most := self._config.random_shift:
            entries, state = (
                tf.nest.map_structure(lambda x, axis=axis: tf.concat([x] * copies, axis), part)
                for axis, part in ((1, entries), (0, state))
            )
            entries, state = network.shift_images(entries, state, draws.offsets(most), most)
        return network.unroll(entries, state, draws, num_quantiles, self._burn_in)

    def _loss(self, values: ActionValues, future: ActionValues, begun: Begun) -> _Loss:
        """Return the loss of a batch by the outputs of the network and of the target network.

        Both may be those of several copies of the batch.
        """
        config, kind, batch = self._config, self._online.distribution, begun.batch
        entries = tf.nest.map_structure(lambda x: x[self._burn_in :], batch.unrolls)
        entries = self._normaliser.read(entries)
        copies, of_targets = config.value_shifts, config.target_shifts
        means, judging = (
            q_values.mean_of_copies(x.mean, count)
            for x, count in ((values, copies), (future, of_targets))
        )
        best = masking.best_choice(means if config.double_q else judging, entries.mask)
        numbers = q_values.chosen(future.numbers, q_values.repeat(best, of_targets))
        following = q_values.mixture(kind.outcomes(numbers), of_targets)
        learnt = entries._replace(reward=entries.reward + begun.bonus[self._burn_in :])
        goals, live = q_values.find_targets(following, learnt, batch.weight, self._rule)
        # Later steps only complete the targets: they are steps of the next unroll.
        steps = min(config.unroll_length, live.shape[0])  # with hindsight 1
        allowed = masking.allowed_only(means, entries.mask)
        prepared = tf.nest.map_structure(lambda x: x[self._burn_in :], begun.prepared)
        goals, live, taken, outputs, prepared, allowed = tf.nest.map_structure(
            lambda x: x[:steps],
            (goals, live, entries.action[1:], values, prepared, allowed),
        )
        actions = q_values.repeat(losses.mask(live, taken), copies)
        played = q_values.chosen(outputs.numbers, actions)
        goals = Outcomes(*(q_values.repeat(x, copies) for x in goals))
        terms = kind.losses(played, outputs.levels, goals)
        terms, errors = (
            q_values.mean_of_copies(x, copies)
            for x in (terms, tf.abs(goals.mean() - kind.mean(played)))
        )
        sizes = tf.stop_gradient(errors if config.value_distribution == "none" else terms)
        sizes = tf.where(live, tf.maximum(sizes, 0.0), 0.0)  # rounding may make a divergence less
        masks = tf.nest.map_structure(lambda x: x[: steps + 1], entries.mask)
        masks = masking.allow_all(~live, masks)
        student = make_student(
            config, outputs.mean, actions, masks, live, batch.weight, batch.key < 0, copies
        )
        prepared = tf.nest.map_structure(
            lambda x: q_values.repeat(losses.mask(live, x), copies), prepared
        )
        added, measured = self.features.loss(student, prepared)
        of_targets = losses.reduce(terms, live, batch.weight, config.loss_reduction)
        return _Loss(
            config.td_cost * of_targets + added,
            losses.reduce(errors, live, batch.weight, "mean"),
            q_values.best(allowed, live, self._in_rewards),
            sizes,
            live,
            measured,
        )


class DQN(QLearning):
    """Deep Q-learning (Mnih et al. 2015), and the parts of Rainbow that change its targets.

    An unroll overlaps the one before by as many entries as a target has rewards, so that each of
    its steps has a whole target, and is trained on in one unroll alone.
    """

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = DQNSettings.of(config)
        super().__init__(config, environment, setup, overlap=config.n_steps)
        if setup.role is Role.LEARNER and not self._online.short_memory:
            raise UserMistake(
                f"--agent_name={self.network_name} remembers, and its unrolls would be replayed "
                f"from states that older weights have made: use --algorithm=r2d2, which reads "
                f"--burn_in entries before an unroll, or a network without an LSTM or GRU"
            )


class R2D2(QLearning):
    """Recurrent Q-learning from replayed sequences (Kapturowski et al. 2019).

    Before its steps, an unroll has `burn_in` entries of the unroll before, which only fill the
    networks' memory, from the state that the actor recorded. So unrolls overlap by these. The
    network is by default the one with an LSTM that suits the observations.
    """

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = R2D2Settings.of(config)
        network = networks.chosen_name(config, environment)
        if config.agent_name == "auto":
            network = network.replace("Agent", "LSTMAgent")
        super().__init__(
            config,
            environment,
            setup,
            overlap=1 + config.burn_in,
            burn_in=config.burn_in,
            network=network,
        )
        if remembered := self._online.short_memory:
            memory = f"R2D2 with {self.network_name}, which remembers {remembered}"
            if config.burn_in:
                memory += (
                    f": --burn_in={config.burn_in} entries of each unroll are read for nothing: "
                    f"give --burn_in=0, or leave --agent_name out for a network with an LSTM"
                )
            self.note = "; ".join(filter(None, [memory, self.note]))
