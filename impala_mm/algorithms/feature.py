"""The seam of features: optional parts of learning, such as a teacher, that no algorithm names.

Actors and learners make a run's features (`features.make`) and give them to the algorithm, which
calls them in its update, in this order:

    begun = features.begin(batch, context, reading)           may exchange
    rate = features.learning_rate(rate)                       at any time after `begin`
    advantages, prepared = features.advantages(judged, begun.prepared)    policy gradients alone
    added, measured = features.loss(student, begun.prepared)  in the loss, compiled: no exchange
    metrics |= features.after(measured, exchange)             after the step; may exchange

`begun` has the batch to learn from, what is added to its rewards, and what `loss` takes: a nest of
[T+1, B, ...], which an algorithm cuts into transitions, and into minibatches, as it cuts the batch.
Features and their order are the same on all learners, so their exchanges are, too.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import tensorflow as tf

from impala_mm.algorithms.parts import losses
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.algorithms.types import Context, PolicyLoader
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer

F = TypeVar("F", bound="Feature")


class Host(NamedTuple):
    """The facts about an algorithm that its features may need."""

    distribution: PolicyDistribution  # of the actions
    remembers: bool  # whether the core state holds anything
    records_policy: bool = False  # whether its first extra is the acting policy's parameters
    num_features: int = 0  # F of `Student.torso`; 0: there is none


class Reading(NamedTuple):
    """The means by which a feature prepares a batch."""

    exchange: GradientReducer
    seed: Callable[[int], tf.Tensor]  # of an update's draws for a use (`update_seeds`), int64 [2]
    # Returns the images before the entries that the network stacks, [frame_stack-1, B, ...]; () if
    # there are none.
    earlier_images: Callable[[], Any]
    own_extras: Any = ()  # nest of [T+1, B, ...]: what the algorithm's `act` has recorded


class Student(NamedTuple):
    """The outputs of an algorithm for the steps of a batch or minibatch, N columns of T steps.

    What they contain is 0, or finite, at steps that are not `live`.
    """

    live: tf.Tensor  # bool [T, N]: steps of the agent
    weight: tf.Tensor  # [N] or [T, N]: of the columns, of one copy of the batch
    reduction: str  # "sum" or "mean", see `losses.reduce`
    actions: Any  # nest of [T, N, ...]: those that were played
    # Makes policies [T, N] of parameters [T, N, P], with the masks of these steps.
    make: Callable[[tf.Tensor], Distribution]
    policy: Distribution  # [T, N]: the one in training; of values of actions, their softmax
    # [T, N, F]: what the policy's head reads of the network; () in updates from recorded games, and
    # of DQN and SAC.
    torso: Any = ()
    behaviour: Any = ()  # [T, N, P]: parameters of the policy that played
    # Of the observations, [T, N], or of actions, [T, N, A], as the network learns them.
    values: Any = ()
    allowed: Any = ()  # bool [T, N, A]: the actions that the masks allow; (): all
    unit: Any = 1.0  # []: by which differences of values are divided
    # Returns values in the unit of rewards as the network would learn them.
    as_learnt: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    # Of a student with values of actions: its policy at a temperature.
    softmax: Callable[[float], Distribution] | None = None
    # Of IMPALA, bool [N]: the columns that are new; None: all, or not known.
    fresh: tf.Tensor | None = None
    # Of DQN and R2D2, bool [T, N]: the columns of recorded games; None: none, or not known.
    recorded: tf.Tensor | None = None
    trusted: tf.Tensor | None = None  # bool [T, N]: the steps in a trust region; None: all
    # Numbers of copies of a batch that the columns are, one after the other: terms are their means.
    copies: int = 1

    def reduce(self, terms: tf.Tensor, counted: tf.Tensor | None = None) -> tf.Tensor:
        """Return the sum or mean, as the loss has it, of the terms [T, N] that are counted."""
        terms, counted = self._fold(terms, counted)
        return losses.reduce(terms, counted, self.weight, self.reduction)

    def sums(self, terms: tf.Tensor, counted: tf.Tensor | None = None) -> tf.Tensor:
        """Return the sum of the terms [T, N] that are counted, and their number, [2]."""
        terms, counted = self._fold(tf.stop_gradient(terms), counted)
        counts = tf.reduce_sum(tf.cast(counted, terms.dtype))
        return tf.stack([tf.reduce_sum(losses.mask(counted, terms)), counts])

    def _fold(self, terms: tf.Tensor, counted: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Return terms and where they count, of one copy of the batch."""
        counted = self.live if counted is None else self.live & counted
        if self.copies == 1:
            return terms, counted
        parts = tf.split(losses.mask(counted, terms), self.copies, axis=1)
        return tf.add_n(parts) / self.copies, tf.split(counted, self.copies, axis=1)[0]


class Judged(NamedTuple):
    """The findings of a policy gradient about a batch, before its optimizer steps.

    It has no gradients, and what it contains is 0, or finite, at steps that are not `live`.
    """

    advantages: tf.Tensor  # [T, B]: in the unit in which they weigh, before they are scaled
    live: tf.Tensor  # bool [T, B]: steps of the agent
    torso: tf.Tensor  # [T+1, B, F]: what the policy's head reads at each entry


class Added(NamedTuple):
    """A feature's part of a loss."""

    loss: tf.Tensor | float  # []
    # For `after`, by key: the sum and the number of terms [2] (`Student.sums`), or a number [].
    measured: Mapping[str, tf.Tensor] = MappingProxyType({})


class Teacher:
    """A policy that a student learns from, and that may act in its place (`teachers`)."""

    # Whether it takes its most likely action: a teacher that computes values of actions, which are
    # its parameters x --teacher_temperature.
    greedy: bool = False

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes."""
        raise NotImplementedError

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        raise NotImplementedError

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters of its policy for the student's entries [T+1, B, ...] of unrolls.

        They are those of the student's distribution, float32 [T+1, B, P]. The unrolls begin without
        a memory.
        """
        raise NotImplementedError

    def judge(self, entries: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Return these parameters, and the values of the observations, float32 [T+1, B].

        A teacher that is greedy, or does not teach values, need not define it.
        """
        raise NotImplementedError


# From an algorithm's settings to the teachers that its actors ask.
TeacherLoader = Callable[[Any], Sequence[Teacher]]


class ActingHook(Protocol):
    """A change of the actions of E environments, in Python, after `act`."""

    def take_over(self, entry: Entry, actions: Any, extras: list[Any]) -> tuple[Any, list[Any]]:
        """Return the actions to take, and the extras to record, for entries [E, ...]."""


class SendingHook(Protocol):
    """A change of the finished unrolls of E environments before they are sent."""

    failed: int  # environments that had a fault in the last call of `add`
    policies: list[Any]  # those that played the unrolls which it returned

    def add(
        self, numbers: Sequence[int], contents: Sequence[bytes], policy: Any = None
    ) -> list[bytes]:
        """Take an unroll of each of these environments, and return those that may be sent."""


class Feature:
    """A feature. A method that it does not define does nothing.

    Methods marked (graph) are traced into the graph of an update or of `act`; the others are called
    from Python.
    """

    # The place of its part in the extras of an entry, which `Features` sets: those of the algorithm
    # itself are at place 0.
    place = 1
    carried: Sequence[tf.Variable] = ()  # those that neither act nor say how far a schedule is
    weights: Sequence[tf.Variable] = ()  # of the carried ones, see `Variables.weights`
    schedules: Sequence[tf.Variable] = ()  # see `Variables.schedules`
    guides: Sequence[tf.Variable] = ()  # schedules that actors receive, too
    trained: Sequence[tf.Variable] = ()  # by gradients of the loss, with the algorithm's own
    # What actors record for it: of actor-critics "value" and "features", of values of actions
    # "all_values", since another action than the policy's may be taken.
    records: frozenset[str] = frozenset()
    # Whether it counts in an actor-critic's updates from recorded games, before actors play, and
    # in the others. DQN and SAC make no difference between them.
    offline, online = False, True
    # Why only actors that choose actions themselves can play for it, for a message. Features with
    # hooks in actors need them, too.
    needs_actors = ""

    def attach(self, host: Host) -> None:
        """Take the facts about the algorithm; raise UserMistake if they do not allow it."""

    def load_policies(self, load: PolicyLoader) -> None:
        """Load the policies of other runs that the flags name, in a learner, before anything."""

    def extras_spec(self) -> Any:
        """Return the specs of what actors record for it in each entry; None for nothing."""

    def no_extras(self, batch: int | tf.Tensor) -> Any:
        """Return what `act` records in the place of its extras, for `batch` entries (graph)."""

    def acting_hook(self, size: int, seed: Sequence[int], load: TeacherLoader) -> ActingHook | None:
        """Return what changes the actions of `size` environments of an actor, if anything."""

    def sending_hook(
        self, unroll: UnrollSpec, environments: Any, size: int, seed: Sequence[int]
    ) -> SendingHook | None:
        """Return what changes the unrolls of `size` environments of an actor, if anything."""

    def begin_update(self, context: Context) -> dict[str, tf.Tensor]:
        """Set what follows the run's progress; return its metrics (graph)."""
        return {}

    def learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of this update, for the one of its schedule (graph)."""
        return rate

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Any]:
        """Return the batch to learn from, and a nest of [T+1, B, ...] for `loss` (graph).

        It may exchange with the other learners. The entries are those that actors sent.
        """
        return batch, ()

    def bonus(self, batch: Batch, prepared: Any) -> tf.Tensor | float:
        """Return what is added to the rewards to learn from, [T+1, B], of a batch (graph).

        The network reads the rewards without it, and so do metrics of returns.
        """
        return 0.0

    def advantages(self, judged: Judged, prepared: Any) -> tuple[tf.Tensor, Any]:
        """Return the advantages to learn from, [T, B], and what `loss` takes as prepared (graph).

        `prepared` has the transitions [T, B, ...] of what `prepare` has returned. A policy gradient
        calls it once for a batch, and with --recompute_advantages again before each pass.
        """
        return judged.advantages, prepared

    def loss(self, student: Student, prepared: Any) -> Added:
        """Return what is added to the loss of these steps (graph, compiled, without exchange)."""
        return Added(0.0)

    def after(
        self, measured: Mapping[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Take what `loss` has measured, after the optimizer's step; return metrics (graph)."""
        return {key: mean(x) for key, x in measured.items()}


def mean(measured: tf.Tensor) -> tf.Tensor:
    """Return the mean of `Student.sums`, NaN if nothing was counted; a number as it is."""
    return measured if measured.shape.rank == 0 else measured[0] / measured[1]


class Begun(NamedTuple):
    """A batch as the features let an algorithm learn from it."""

    batch: Batch
    prepared: Any  # nest of [T+1, B, ...]: what `Features.loss` takes with the batch
    bonus: tf.Tensor  # [T+1, B]: what is added to the rewards to learn from
    metrics: dict[str, tf.Tensor]


class Features:
    """The features of an algorithm, in the order in which they are called."""

    def __init__(self, features: Sequence[Feature] = ()):
        self._features = tuple(features)
        # Those for which extras are recorded, in the order of their parts.
        self._recording = [f for f in self._features if f.extras_spec() is not None]
        for place, feature in enumerate(self._recording, start=1):
            feature.place = place
        self.called = set[str]()  # the names of the calls below that an update has made

    def get(self, kind: type[F]) -> F | None:
        """Return the feature of a class, for what sets up a run; None if it is not used."""
        return next((f for f in self._features if isinstance(f, kind)), None)

    def __iter__(self) -> Iterator[Feature]:
        """Yield the features in the order of their calls."""
        return iter(self._features)

    def named_parts(self) -> dict[str, Feature]:
        """Return the features by their classes' names, as `variable_names` has them."""
        names = (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(f).__name__) for f in self._features)
        return {n.lower(): f for n, f in zip(names, self._features, strict=True)}

    @property
    def trained(self) -> list[tf.Variable]:
        """The variables of `Feature.trained`."""
        return [v for feature in self._features for v in feature.trained]

    def with_variables(self, own: Variables) -> Variables:
        """Return an algorithm's variables, which are its own until now, with those of features."""
        guides = [v for feature in self._features for v in feature.guides]
        schedules = [v for feature in self._features for v in feature.schedules] + guides
        carried = [v for feature in self._features for v in feature.carried]
        weights = [v for feature in self._features for v in feature.weights]
        return own._replace(
            trained=[*own.trained, *self.trained],
            carried=[*own.carried, *carried, *schedules],
            acting=[*own.acting, *guides],
            weights=[*(own.weights or ()), *weights],
            schedules=[*own.schedules, *schedules],
        )

    @property
    def records(self) -> frozenset[str]:
        """What actors record for the features, besides extras of the features' own."""
        return frozenset().union(*(feature.records for feature in self._features))

    @property
    def needs_actors(self) -> str:
        """Why only actors that choose actions themselves can play; empty if they need not."""
        for feature in self._features:
            kind = type(feature)
            if feature.needs_actors:
                return feature.needs_actors
            if (kind.acting_hook, kind.sending_hook) != (Feature.acting_hook, Feature.sending_hook):
                return f"{kind.__name__} changes what actors play"
        return ""

    def of_offline_updates(self) -> "Features":
        """Return the features that count in updates from recorded games."""
        return self._only([feature for feature in self._features if feature.offline])

    def of_online_updates(self) -> "Features":
        """Return the features that count in the other updates."""
        return self._only([feature for feature in self._features if feature.online])

    def _only(self, features: Sequence[Feature]) -> "Features":
        """Return some of the features; extras are recorded for all, as before."""
        some = copy.copy(self)
        some._features = tuple(features)
        return some

    def attach(self, host: Host) -> None:
        """Tell the features about the algorithm."""
        for feature in self._features:
            feature.attach(host)

    def load_policies(self, load: PolicyLoader) -> None:
        """Load the policies of other runs."""
        for feature in self._features:
            feature.load_policies(load)

    def extras_spec(self, own: Any) -> Any:
        """Return the specs of an entry's extras, of which the algorithm's own are `own`."""
        specs = [feature.extras_spec() for feature in self._recording]
        return (own, *specs) if specs else own

    def extras(self, own: Any, batch: int | tf.Tensor) -> Any:
        """Return the extras of `act`, of which these are the algorithm's own."""
        parts = [feature.no_extras(batch) for feature in self._recording]
        return (own, *parts) if parts else own

    def own_extras(self, extras: Any) -> Any:
        """Return the algorithm's own part of an entry's extras."""
        return extras[0] if self._recording else extras

    def acting_hooks(self, size: int, seed: Sequence[int], load: TeacherLoader) -> list[ActingHook]:
        """Return what changes the actions of E environments, each by random numbers of its own."""
        hooks: list[ActingHook] = []
        for feature in self._features:
            if hook := feature.acting_hook(size, [*seed, len(hooks)] if hooks else seed, load):
                hooks.append(hook)
        return hooks

    def sending_hooks(
        self, unroll: UnrollSpec, environments: Any, size: int, seed: Sequence[int]
    ) -> list[SendingHook]:
        """Return what changes the unrolls of E environments; there may be one at most."""
        asked = [f.sending_hook(unroll, environments, size, seed) for f in self._features]
        hooks = [hook for hook in asked if hook]
        if len(hooks) > 1:
            raise UserMistake("two features hold back unrolls before they are sent: leave one out")
        return hooks

    def begin(self, batch: Batch, context: Context, reading: Reading) -> Begun:
        """Begin an update: set schedules and costs, and prepare the batch."""
        self.called.add("begin")
        metrics = dict[str, tf.Tensor]()
        for feature in self._features:
            metrics |= feature.begin_update(context)
        prepared = []
        reading = reading._replace(own_extras=self.own_extras(batch.unrolls.extras))
        for feature in self._features:
            batch, own = feature.prepare(batch, reading)
            prepared.append(own)
        bonus = tf.zeros_like(batch.unrolls.reward)
        for feature, own in zip(self._features, prepared, strict=True):
            bonus += feature.bonus(batch, own)
        return Begun(batch, tuple(prepared), bonus, metrics)

    def learning_rate(self, rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of this update."""
        for feature in self._features:
            rate = feature.learning_rate(rate)
        return rate

    def advantages(self, judged: Judged, prepared: Any) -> tuple[tf.Tensor, Any]:
        """Return the advantages to learn from, [T, B], and what `loss` takes."""
        self.called.add("advantages")
        for_loss = []
        for feature, own in zip(self._features, prepared, strict=True):
            advantages, kept = feature.advantages(judged, own)
            judged = judged._replace(advantages=advantages)
            for_loss.append(kept)
        return judged.advantages, tuple(for_loss)

    def loss(self, student: Student, prepared: Any) -> tuple[tf.Tensor | float, Any]:
        """Return what all add to the loss, and what `after` takes."""
        self.called.add("loss")
        added = [f.loss(student, own) for f, own in zip(self._features, prepared, strict=True)]
        return sum(each.loss for each in added), [dict(each.measured) for each in added]

    def after(self, measured: Any, exchange: GradientReducer) -> dict[str, tf.Tensor]:
        """Take what `loss` has measured; return metrics."""
        self.called.add("after")
        metrics = dict[str, tf.Tensor]()
        for feature, own in zip(self._features, measured, strict=True):
            metrics |= feature.after(own, exchange)
        return metrics


NO_FEATURES: Features = Features()
