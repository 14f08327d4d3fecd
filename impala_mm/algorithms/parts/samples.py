"""The steps of a round, as minibatches are drawn from them (`round_settings` has the flags).

A minibatch consists of columns: of whole unrolls, T steps each, or of single steps, if the network
remembers nothing. In both cases the leading axes are [T, N], with T = 1 for single steps.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.parts import losses, masking, networks
from impala_mm.algorithms.parts.round_settings import RoundSettings
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.minibatches import Metrics, MinibatchResult


class Division(NamedTuple):
    """The division of a batch by each pass over it."""

    single_steps: bool  # whether minibatches consist of single steps, and not of whole unrolls
    parts: int  # minibatches
    epochs: int  # passes
    compiled: bool  # whether XLA compiles all of them

    def run_passes(
        self,
        exchange: GradientReducer,
        step: Callable[["Samples", Any], Metrics],
        unrolls: "Samples",
        goals: Any,
        initial_state: Callable[[int], Any],
        stop_above: Mapping[str, float] | None = None,
        renew: Callable[[], Any] | None = None,
    ) -> MinibatchResult:
        """Call `step` for each minibatch of all passes, with its columns and their goals.

        `goals` are a nest of [T, B, ...]; `renew` returns those of each pass but the first, if they
        change. `initial_state` is the algorithm's; for the rest see `GradientReducer.minibatches`.
        """

        def arrange(nest: Any) -> Any:
            if not self.single_steps:
                return nest
            return tf.nest.map_structure(lambda x: tf.reshape(x, [1, -1, *x.shape[2:]]), nest)

        columns = arrange(unrolls._replace(start=()))
        starts = initial_state(columns.live.shape[1]) if self.single_steps else unrolls.start

        def step_of(chosen: tf.Tensor, goals: Any) -> Metrics:
            part, of_part = tf.nest.map_structure(
                lambda x: tf.gather(x, chosen, axis=1), (columns, goals)
            )
            start = tf.nest.map_structure(lambda x: tf.gather(x, chosen), starts)
            return step(part._replace(start=start), of_part)

        return exchange.minibatches(
            step_of,
            columns.live.shape[1],
            self.epochs,
            self.parts,
            stop_above=stop_above,
            renewed=(arrange(goals), (lambda: arrange(renew())) if renew else None),
            compiled=self.compiled,
        )


def divide(config: RoundSettings, name: str, network: Any, observation: Any) -> Division:
    """Return how the flags divide a batch; raise UserMistake if they cannot.

    `network` has this name, and reads observations of this spec.
    """
    remembers = bool(tf.nest.flatten(network.initial_state(1)))
    of_steps = config.minibatch_of == "steps" or (config.minibatch_of == "auto" and not remembers)
    if of_steps and remembers:
        raise UserMistake(
            f"--minibatch_of=steps: {name} remembers earlier observations, so it must read "
            f"whole unrolls: use --minibatch_of=unrolls"
        )
    try:
        count = config.count_minibatches(of_steps=of_steps)
    except ValueError as error:
        raise UserMistake(
            f"{error}; minibatches consist of whole unrolls here, since {name} remembers "
            f"earlier observations"
        ) from None
    compiled = config.compiles_updates and of_steps and networks.suits_xla(observation, network)
    return Division(of_steps, count, config.epochs, compiled)


class Samples(NamedTuple):
    """N columns of T steps; entry t of a column is the one that its action t was chosen from."""

    entries: Entry  # [T, N, ...]: what the network reads; other fields are ()
    start: Any  # nest of [N, ...]: the core state before entry 0
    live: tf.Tensor  # bool [T, N]: steps of the agent; nothing else of others is ever used
    weight: tf.Tensor  # [T, N]: that of the column
    actions: Any  # nest of [T, N, ...]
    masks: Any  # nest of bool [T, N, ...]: the choices that were allowed; () without masks
    behaviour_log_probs: tf.Tensor  # [T, N]: of the actions
    behaviour: Any = ()  # [T, N, P]: parameters of the policy that played
    level: Any = ()  # int32 [T, N]: number of the column's level


def of_batch(
    batch: Batch, steps: losses.Transitions, behaviour: Any = (), level: Any = ()
) -> Samples:
    """Return the B unrolls of a batch, whose entries a normaliser has read, as columns.

    Where an algorithm reads them, `behaviour` are the parameters of the policy that played,
    [T, B, P], and `level` [B] the numbers of the columns' levels.
    """
    read, live = batch.unrolls, steps.live
    entries = read._replace(terminated=(), truncated=(), extras=(), mask=())
    return Samples(
        entries=tf.nest.map_structure(lambda x: x[:-1], entries),
        start=batch.start,
        live=live,
        weight=tf.broadcast_to(batch.weight, tf.shape(live)),
        actions=steps.actions,
        masks=masking.allow_all(~live, read.mask),
        behaviour_log_probs=steps.behaviour_log_probs,
        behaviour=tf.nest.map_structure(lambda x: losses.mask(live, x), behaviour),
        level=tf.nest.map_structure(lambda x: tf.broadcast_to(x, tf.shape(live)), level),
    )
