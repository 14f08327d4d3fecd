"""The interface of an algorithm: all that actors, learners and transport know about it.

    def make(config, environment, setup):   # or without the last argument
        return Mine(config, environment, setup)

    class Mine(Algorithm): ...

Actors call `act`, the learner calls `update`. Transport and `UnrollWriter` use only `unroll` and
the bytes of `variables.acting`. A user's algorithm is a module anywhere with such a function
`make`, which --algorithm=package.module names. Its own flags are in the module `<module>_settings`
beside it (`impala_mm/config/algorithm_settings.py`, which also lists the built-in ones).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.types import (
    Context,
    EnvironmentNumber,
    LoadedPolicy,
    PolicyLoader,
    PolicyOutput,
    Role,
    Updated,
)
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec

__all__ = [
    "DEFAULT_SETUP",
    "Algorithm",
    "Context",
    "EnvironmentNumber",
    "LoadedPolicy",
    "PolicyLoader",
    "PolicyOutput",
    "Role",
    "Setup",
    "Updated",
    "defines",
    "entry_spec",
    "start_spec",
]


class Setup(NamedTuple):
    """The facts about a process that `make` may need besides the flags and the environment."""

    role: Role = Role.LEARNER
    features: Features = NO_FEATURES  # those that the flags ask for
    rank: int = 0  # the number of this learner, from which its own random numbers follow
    learners_here: int = 1  # the learners on this machine, which share its memory
    levels: int = 1  # that the run is trained on
    level: int = 0  # the number of the one that is played, where there is one


DEFAULT_SETUP = Setup()


class Algorithm:
    """An algorithm: it chooses actions and learns from unrolls.

    A subclass sets `unroll` and `variables`, and defines `initial_state`, `act`, `judge` and
    `update`. Everything else it may leave out.
    """

    unroll: UnrollSpec
    variables: Variables

    # The features that it calls in its update: those of `Setup.features`, and others of its own.
    features: Features = NO_FEATURES
    # Whether it trains in rounds: all unrolls of a batch are then played by the policy that the
    # update is to improve, and actors wait for the next one. A batch always has --batch_size
    # columns: those whose unrolls are missing have weight 0 and are not fresh.
    rounds: bool = False
    # With rounds: whether the next one is played while the learner trains on the last one, and
    # while slower actors still play that one, so that its policy is one update older, or more where
    # the algorithm's own source returns replayed batches between rounds.
    rounds_overlap: bool = False
    # Whether `act`, `judge` and `update` give a probability of 0 to the choices that `Entry.mask`
    # forbids. Environments that offer masks are refused for other algorithms. `parts.masking` has
    # what it takes.
    masks: bool = False
    # Whether an environment explores less, the larger its number is: a student's score is then that
    # of the games of the last quarter of them.
    explores_less_by_number: bool = False
    # A sentence for the user, which the learner prints at the start.
    note: str = ""
    # The name of the network, which a resumed run must share, such as `networks.chosen_name`
    # returns. Empty: not known, unless --agent_name gives it.
    network_name: str = ""
    # Values by flag, such as {"--v_min": 0.0}, which decide what its network's outputs mean: a run
    # is resumed, and weights are loaded, only with the same.
    made_of: Mapping[str, Any] = MappingProxyType({})
    # With a `source` of its own: the entries and columns of its batches, for which --validate
    # traces `update`.
    batch_shape: tuple[int, int] | None = None
    # With a `recorded_source`: the columns that it gives to `feature_settings.columns_beside`.
    minibatch_columns: int = 0

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""
        raise NotImplementedError

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Choose actions: return (actions, core state, extras) for entries [B, ...].

        The actions are a nest of [B, ...] like `EnvironmentSpec.actions.specs`, int32 [B] for
        Discrete ones; `impala_mm.environments.actions` explains those of each space. An algorithm
        that supports only Discrete actions reads `EnvironmentSpec.num_actions`, which refuses all
        others in a sentence.

        Only observation, reward, action, first and mask of the entries may be read. `exploration`,
        float32 [B], is 0 where actions shall be greedy and 1 where they explore as in training.
        """
        raise NotImplementedError

    def act_by_number(
        self, entry: Entry, core_state: Any, exploration: tf.Tensor, environment: EnvironmentNumber
    ) -> tuple[Any, Any, Any]:
        """Choose actions by the environments' numbers, too, to explore differently in each.

        An algorithm defines it in place of `act`.
        """
        return self.act(entry, core_state, exploration)

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy and value for entries [B, ...]; it reads the same fields as `act`."""
        raise NotImplementedError

    def update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Learn from one batch; return (metrics, priorities float32 [B] for the batch's source).

        It is traced as part of one tf.function without AutoGraph: for a condition on a tensor, use
        `tf.cond` instead of `if`, or a tf.function of your own. It may make any number of optimizer
        steps, each by `exchange.differentiate` and `exchange.apply`; `exchange.minibatches` makes
        several of them on parts of the batch. Compute the losses in the function that is passed to
        `exchange.differentiate`, which --xla compiles. All learners must make the same calls of
        `exchange`: compare an `exchange.mean` where a condition decides about them.

        The metrics, float scalars, become keys of metrics.jsonl. One that this update did not
        measure is NaN, which does not count in the row's average. `grad_norm` (the largest norm of
        the update's averaged gradients) and `clipped_share` are added unless they are returned. An
        update with a gradient that is not finite ends the run and is not saved.
        """
        raise NotImplementedError

    def load_policies(self, load: PolicyLoader) -> None:
        """Load the policies of other runs that its flags name; it may raise UserMistake.

        It is called once for a learner's algorithm, before anything else.
        """

    # The methods from here on need not be defined: `defines` says whether one is.

    def source(self, fresh: Any) -> Any:
        """Return a source of batches of its own, see `learner.sources.batch_source.BatchSource`.

        `fresh` is the source of the actors' new unrolls.
        """
        raise NotImplementedError

    def first_priorities(self, entries: Entry, start: Any) -> tf.Tensor:
        """Return the priorities, float32 [B], with which prioritised replay stores new unrolls.

        They follow from unrolls of entries [T+overlap, B, ...], for example from errors that `act`
        has recorded as extras. Otherwise new unrolls have the largest priority; `update` returns
        the later ones.
        """
        raise NotImplementedError

    def compare_features(self, entries: Entry, start: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features of the T steps of unrolls, for elite and attentive replay.

        They are float32 [T, B, F] each: those that the policy that played has recorded as extras,
        and those that the present network computes.
        """
        raise NotImplementedError

    def value_of(self, entry: Entry, core_state: Any, action: Any) -> tf.Tensor:
        """Return the values, float32 [B], of actions chosen after the entries that `judge` reads.

        Without it, a video shows the action's value if `judge` returns `values`, and otherwise the
        value of the state.
        """
        raise NotImplementedError

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll.

        It makes the algorithm a teacher of others. `start` is the core state before entry 0, as in
        a batch.
        """
        raise NotImplementedError

    def offline_update(self, batch: Batch, context: Context, exchange: GradientReducer) -> Updated:
        """Learn from recorded unrolls in the first --offline_updates updates, before actors play.

        It keeps to the rules of `update`. Another policy played the unrolls of these batches, such
        as a teacher. They have the algorithm's own length and overlap, but all extras are 0, and
        keys are -1. `start` is `initial_state`: what the network remembers begins with the unroll.
        No unroll is fresh, and `context` is that of the beginning: 0 frames, and no mean return, so
        that a teacher's cost does not fall. In a run without actors it counts these updates in
        place of frames, by which learning rates fall. The priorities are ignored.

        With --teacher_data_share, such unrolls are also in the batches of `update`, as the last
        ones, if the algorithm's settings say that it `learns_from_any_policy`.
        """
        raise NotImplementedError

    def start_after(self, entries: Entry) -> Any:
        """Return the core state after N recorded entries [N, B, ...], which precede an unroll.

        Of these, the network remembers the frames alone, where environments stack frames.
        """
        raise NotImplementedError

    def recorded_source(self, unrolls: Batch, share: float, seed: list[int]) -> Any:
        """Return the source of recorded games beside an own `source`, which then needs it.

        `unrolls` is a batch of arrays of all recorded unrolls. A share of 1 is that of whole
        batches; for a smaller one, the columns are those beside a batch of `source`.
        """
        raise NotImplementedError


def defines(method: Callable[..., Any]) -> bool:
    """Return whether an algorithm defines this method of its own, rather than `Algorithm` alone."""
    base = getattr(Algorithm, getattr(method, "__name__", ""), None)
    return getattr(method, "__func__", method) is not base


def start_spec(initial_state: Any) -> Any:
    """Return the specs of one environment's state, for `UnrollSpec`, from `initial_state(B)`."""
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), initial_state)


def entry_spec(environment: EnvironmentSpec, extras: Any) -> Entry:
    """Return the specs of one entry, for `UnrollSpec`; `extras` are the specs of act()'s extras."""
    flag = tf.TensorSpec([], tf.bool)
    return Entry(
        action=environment.actions.specs,
        reward=tf.TensorSpec([], tf.float32),
        terminated=flag,
        truncated=flag,
        observation=environment.observation,
        first=flag,
        extras=extras,
        mask=environment.masks,
    )


def zero_entry(environment: EnvironmentSpec) -> Entry:
    """Return an entry [1, ...] of zeros, the first of an episode, in which all is allowed."""
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([1, *spec.shape], spec.dtype), entry_spec(environment, ())
    )
    allowed = tf.nest.map_structure(tf.ones_like, entry.mask)
    return entry._replace(first=tf.ones_like(entry.first), mask=allowed)
