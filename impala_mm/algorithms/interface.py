"""The interface of an algorithm: all that actors, learners and transport know about it.

An algorithm is a module with a function `make(config, environment, role) -> Algorithm`, or without
the last argument. Actors call `act`, the learner calls `update`. Transport and `UnrollWriter` use
only `unroll` and the bytes of `variables.acting`. A new algorithm is a new module in this package,
or a module anywhere that --algorithm=package.module names. Its own flags are in the module
`<module>_settings` beside it (`impala_mm/config/algorithm_settings.py`).
"""

import enum
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec


class Role(enum.Enum):
    """The use that a process makes of an algorithm.

    Only a learner calls `update`: what `update` alone needs (optimizer slots, targets, replay,
    teachers) need not exist in the other roles. The trained variables and those for acting are the
    same, in the same order, in all roles.
    """

    LEARNER = "learner"
    ACTOR = "actor"
    INFERENCE = "inference"  # a learner's second copy, which acts for its actors
    EVALUATOR = "evaluator"  # tests, exports and `load_policy`


class EnvironmentNumber(NamedTuple):
    """The numbers of the environments for which `act` chooses actions.

    A number belongs to one environment of the run, also after its actor was restarted. In tests,
    evaluation and exports all have number 0 of 1.
    """

    number: tf.Tensor  # int32 [B]: from 0
    # int32 []: larger than all numbers. It is the number of environments in the run, if all
    # learners have equally many; it grows when actors join.
    count: tf.Tensor


class PolicyOutput(NamedTuple):
    """The outputs of an algorithm for the entries it just read, for evaluation and videos."""

    # float32 [B, A]: the probabilities of Discrete actions while exploring; for other actions
    # [B, P], the parameters of their distribution.
    policy: tf.Tensor
    value: tf.Tensor  # float32 [B]: expected sum of the discounted rewards that the loss uses
    # float32 [B, P]: the parameters of the distribution of the actions (logits, for Discrete ones),
    # from which a student computes its divergence; None if the algorithm has no distribution.
    parameters: tf.Tensor | None = None
    # float32 [B, A]: the value of each Discrete action, if the algorithm computes them.
    values: tf.Tensor | None = None


class LoadedPolicy(Protocol):
    """The policy of another run, such as a teacher, for an algorithm's updates."""

    config: Config  # the flags of that run
    flags_read: set[str]  # those of them that its algorithm has read

    def initial_state(self, batch: Any) -> Any:
        """Return the network's recurrent state at the start of `batch` episodes, a number."""

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll."""


class Teacher(Protocol):
    """A policy that a student learns from (`teachers`)."""

    # Whether it computes values of actions: its parameters are these / --teacher_temperature.
    greedy: bool

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters of its policy for the student's entries [T+1, B, ...] of unrolls.

        They are those of the student's distribution, float32 [T+1, B, P]. A recurrent teacher
        begins the unrolls without a memory.
        """

    def judge(self, entries: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Return these parameters, and the values of the observations, float32 [T+1, B].

        A teacher that is greedy, or does not teach values, need not have this method.
        """


class PolicyLoader(Protocol):
    """A function that loads policies, `impala_mm.load_policy`."""

    def __call__(self, logdir: str, *, level_name: str, as_teacher: bool = False) -> LoadedPolicy:
        """Return the policy of a run or checkpoint, for this level.

        Raises UserMistake if there is none, or if it does not fit the level; with `as_teacher`
        also if its algorithm has no `judge_unroll`.
        """


class Context(NamedTuple):
    """Inputs of an update besides its batch; equal on all ranks."""

    frames: tf.Tensor  # float32 []: environment frames that all learners together trained on
    total: tf.Tensor  # float32 []: environment frames at which the run ends
    episode_return: tf.Tensor  # float32 []: mean raw return of 100 games; NaN before the 100th


class Algorithm(Protocol):
    """An algorithm: it chooses actions and learns from unrolls.

    Members that it may leave out are read by `registry.optional`, which knows their defaults.
    """

    unroll: UnrollSpec
    variables: Variables
    # An algorithm may also have `rounds = True`: all unrolls of a batch are then played by the
    # policy that the update is to improve, and actors wait for the next one. A batch always has
    # --batch_size columns: those whose unrolls are missing have weight 0 and are not fresh.
    # With `rounds_overlap = True` besides, the next round is played while the learner trains on the
    # last one, and while slower actors still play that one, so its policy is one update older, or
    # more where the algorithm's own source returns replayed batches between rounds.

    # Optional: True if `act`, `judge` and `update` give a probability of 0 to the choices that
    # `Entry.mask` forbids. Environments that offer masks are refused for other algorithms.
    # `masking` has what it takes.
    masks: bool = False

    # An algorithm whose `make` takes an argument `features` is given the `feature.Features` that
    # the flags ask for, and has them in an attribute of that name.

    # Optional: a sentence for the user, which the learner prints at the start.
    note: str = ""
    # Optional: the name of the network, which a resumed run must share, such as
    # `networks.chosen_name` returns. Empty: not known, unless --agent_name gives it.
    network_name: str = ""
    # An algorithm with a `source` of its own may say the entries and columns of its batches, for
    # which --validate traces `update`: `batch_shape`, two numbers.
    # An algorithm may also have `made_of`, values by flag, such as {"--v_min": 0.0}, which decide
    # what its network's outputs mean: a run is resumed, and weights are loaded, only with the same.

    def initial_state(self, batch: int) -> Any:
        """Return the core state at the start of an episode: nest of [B, ...]."""

    def act(self, entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        """Choose actions: return (actions, core state, extras) for entries [B, ...].

        The actions are a nest of [B, ...] like `EnvironmentSpec.actions.specs`, int32 [B] for
        Discrete ones; `impala_mm.environments.actions` explains those of each space. An algorithm
        that supports only Discrete actions reads `EnvironmentSpec.num_actions`, which refuses all
        others in a sentence.

        Only observation, reward, action, first and mask of the entries may be read. `exploration`,
        float32 [B], is 0 where actions shall be greedy and 1 where they explore as in training.

        It may take a fourth argument, an `EnvironmentNumber`, to explore differently in each
        environment.
        """

    def judge(self, entry: Entry, core_state: Any) -> PolicyOutput:
        """Return the policy and value for entries [B, ...]; it reads the same fields as `act`."""

    # An algorithm may also have this method, by which it receives the policies of other runs that
    # its flags name:
    #
    #   load_policies(load: PolicyLoader) -> None
    #
    # It is called once for a learner's algorithm, before anything else, and may raise UserMistake.

    # An algorithm may also have this method, for prioritised replay (--replay):
    #
    #   first_priorities(entries, start) -> priorities
    #
    # It returns the priorities, float32 [B], with which unrolls of entries [T+overlap, B, ...] are
    # stored, for example from errors that `act` has recorded as extras. Without it, new unrolls
    # have the largest priority; `update` returns the later ones.

    # An algorithm may also have this method, which elite and attentive replay need (--replay):
    #
    #   compare_features(entries, start) -> (recorded, present)
    #
    # It returns the features of the T steps of unrolls, float32 [T, B, F] each: those that the
    # policy that played has recorded as extras, and those that the present network computes.

    # An algorithm may also have this method, for videos:
    #
    #   value_of(entry, core_state, action) -> value
    #
    # It returns the values, float32 [B], of actions that were chosen after the entries that `judge`
    # reads. Without it, a video shows the action's value if `judge` returns `values`, and otherwise
    # the value of the state.

    # An algorithm may also have this method, which makes it a teacher of other algorithms:
    #
    #   judge_unroll(entries, start) -> PolicyOutput
    #
    # It returns what `judge` returns for each of the entries [T+1, B, ...] of an unroll, with a
    # leading axis [T+1, ...]; `start` is the core state before entry 0, as in a batch.

    # An algorithm may also have this method, which lets it learn from recorded unrolls before it
    # plays (--offline_updates):
    #
    #   offline_update(batch, context, exchange) -> (metrics, priorities)
    #
    # It takes the place of `update` for the first --offline_updates updates, and keeps to the same
    # rules. Another policy played the unrolls of these batches, such as a teacher. They have the
    # algorithm's own length and overlap, but all extras are 0, and keys are -1. `start` is
    # `initial_state`: what the network remembers begins with the unroll. No unroll is fresh, and
    # `context` is that of the beginning: 0 frames, and no mean return, so that a teacher's cost
    # does not fall. The priorities are ignored.
    #
    # Where environments stack frames, it also has a method start_after(entries) -> core state: the
    # one after N recorded entries [N, B, ...], which precede an unroll, and of which the network
    # remembers the frames alone.
    #
    # With --teacher_data_share, such unrolls are also in the batches of `update`, as the last ones,
    # if the algorithm's settings say that it `learns_from_any_policy`. An algorithm with a `source`
    # of its own needs this method besides:
    #
    #   recorded_source(unrolls, share, seed) -> BatchSource
    #
    # `unrolls` is a batch of arrays of all recorded unrolls. A share of 1 is that of whole batches;
    # for a smaller one, the columns are those beside a batch of `source`. The attribute
    # `minibatch_columns`, if it has one, is the number of columns that it gave to
    # `phase_settings.columns_beside`.

    def update(
        self, batch: Batch, context: Context, exchange: GradientReducer
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
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
