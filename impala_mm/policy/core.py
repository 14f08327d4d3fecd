"""The network of a checkpoint, made for a level: what evaluation, export and videos need.

`policy.Policy` adds what users call.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.algorithms import agent, contract
from impala_mm.algorithms.interface import PolicyOutput, Role, defines
from impala_mm.algorithms.parts import networks
from impala_mm.config import auto, command_line, flag_values, user_modules
from impala_mm.config.algorithm_settings import BadAlgorithm
from impala_mm.config.environment_flags import FILE_SUFFIX
from impala_mm.config.errors import ImpalaError, UserMistake
from impala_mm.config.flags import info
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags
from impala_mm.environments.make import level_names, level_spec
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.records import checkpoint, saved_variables


class CannotTeach(UserMistake):
    """A policy's algorithm has no method `judge_unroll`; the message says which."""


class PolicyCore:
    """A checkpoint's network for a level; `step` and `judge` take batches of entries."""

    def __init__(
        self,
        path: Path,
        about: checkpoint.CheckpointInfo,
        level_name: str = "",
        spec: EnvironmentSpec | None = None,
        **changes: Any,
    ):
        """Load the checkpoint at `path`, for its own level or another one that the network fits.

        `spec` is that of all levels, if the caller has it, such as a learner whose threads already
        compute: no environment is then made, and TensorFlow's seed stays. `changes`: flags that
        replace the run's, such as `sticky_actions` and `seed`. Raises checkpoint.Mismatch where the
        network does not fit, or `eval_epsilon` has no effect.
        """
        with blaming_settings(about.settings):
            self._make(about, level_name, spec, changes, path)
        self.load(path, about)
        self._act = tf.function(contract.evaluated_act(self.algorithm), autograph=False)
        judge = functools.partial(contract.judge, self.algorithm)
        self._judge = tf.function(judge, autograph=False)
        value_of = self.algorithm.value_of if defines(self.algorithm.value_of) else None
        self._value_of = tf.function(value_of, autograph=False) if value_of else None

    def _make(
        self,
        about: checkpoint.CheckpointInfo,
        level_name: str,
        spec: EnvironmentSpec | None,
        changes: dict[str, Any],
        path: Path,
    ) -> None:
        """Make the algorithm with its network; raises as `__init__`."""
        self.config = config_for_playing(about.settings, level_name, **changes)
        levels = dict.fromkeys(level_names(self.config.level_name), spec) if spec else None
        options = from_flags.environment_options(self.config)
        for name in level_names(self.config.level_name):
            read = spec or level_spec(name, **options)
            if reason := why_unsuitable(about, read):
                raise checkpoint.Mismatch(reason)
        if self.config.agent_name == "auto":
            # `auto` may have stood for another network in the version that trained the policy.
            recorded = about.made_of["--agent_name"]
            if networks.chosen_name(self.config, read) != recorded:
                self.config = dataclasses.replace(self.config, agent_name=recorded)
        made = agent.make_agent(
            self.config,
            None if spec else 0,
            levels,
            Role.EVALUATOR,
            trained_on=about.made_of["--level_name"].split(","),
        )
        if "eval_epsilon" in changes and "eval_epsilon" not in made.flags_read:
            raise checkpoint.Mismatch(
                f"--eval_epsilon={self.config.eval_epsilon:g} has no effect on {path}, whose "
                f"--algorithm={self.config.algorithm} draws actions from its policy: leave it out, "
                f"or give --deterministic"
            )
        self.algorithm, self.levels, self.spec = made.algorithm, made.levels, made.spec
        self.flags_read = made.flags_read  # until now: `act` and `judge` may add some

    def load(self, path: Path, about: checkpoint.CheckpointInfo) -> None:
        """Load the weights of another checkpoint of the same run; raises Mismatch."""
        saved_variables.load(path, saved_variables.named_for_acting(self.algorithm.variables))
        self.path, self.about = path, about

    def portable_about(self) -> checkpoint.CheckpointInfo:
        """Return the checkpoint's description without what belongs to this machine, as paths do."""
        own = {f.name for f in dataclasses.fields(self.config) if info(f).own}
        texts = {name: str(value) for name, value in self.about.settings.items()}
        paths = {name for name, text in texts.items() if text.startswith(("/", "~"))}
        # Files of environments are saved beside the weights.
        own |= {name for name in paths if FILE_SUFFIX not in texts[name]}
        settings = {name: v for name, v in self.about.settings.items() if name not in own}
        return self.about._replace(settings=settings)

    def initial_state(self, batch: int) -> Any:
        """Return the network's recurrent state at the start of `batch` episodes."""
        return self.algorithm.initial_state(batch)

    def step(self, entry: Entry, state: Any, explore: bool) -> tuple[Any, Any, Any]:
        """Return (actions, next state, extras) for entries [B, ...].

        The actions are a nest of arrays [B, ...] like `spec.actions.specs`.
        """
        exploration = tf.constant(1.0 if explore else 0.0, shape=entry.first.shape)
        actions, state, extras = self._act(entry, state, exploration)
        return tf.nest.map_structure(lambda part: part.numpy(), actions), state, extras

    def next_state(self, entry: Entry, state: Any) -> Any:
        """Return the state after entries [B, ...] as tensors, also within a tf.function."""
        return self._act(entry, state, tf.zeros_like(entry.reward))[1]

    def judge(self, entry: Entry, state: Any) -> PolicyOutput:
        """Return policy and value for entries [B, ...] and the state before them."""
        return self._judge(entry, state)

    def value_of(self, entry: Entry, state: Any, action: Any, output: PolicyOutput) -> tf.Tensor:
        """Return the values [B] of actions, or those of the states if the algorithm has no others.

        `action` is a nest of [B, ...], and `output` what `judge` has returned for the entries.
        """
        if self._value_of:
            return self._value_of(entry, state, action)
        if output.values is not None:
            return tf.gather(output.values, action, batch_dims=1)
        return output.value

    def judge_unroll(self, entries: Entry, start: Any) -> PolicyOutput:
        """Return what `judge` returns for each of the entries [T+1, B, ...] of an unroll.

        It computes with tensors, and may be called in a student's `update` with its
        `batch.unrolls`. `start` is this policy's own state before entry 0; where that is not known,
        `initial_state(B)` serves, if the student ignores the outputs for the first entries.
        Raises CannotTeach if the policy's algorithm has no `judge_unroll`.
        """
        self.check_teaches()
        return contract.judge(self.algorithm, entries, start, "judge_unroll")

    def check_teaches(self) -> None:
        """Raise CannotTeach if the policy's algorithm has no `judge_unroll`."""
        if not defines(self.algorithm.judge_unroll):
            raise CannotTeach(
                f"{self.path} cannot teach: its --algorithm={self.config.algorithm} has no method "
                f"judge_unroll (impala_mm/algorithms/interface.py explains it)"
            )

    def entry(
        self, observation: Any, reward: Any, action: Any, first: Any, mask: Any = ()
    ) -> Entry:
        """Return entries [B, ...] with the fields that acting reads, see `make_entry`."""
        return make_entry(self.spec, observation, reward, action, first, mask)


def make_entry(
    spec: EnvironmentSpec, observation: Any, reward: Any, action: Any, first: Any, mask: Any = ()
) -> Entry:
    """Return entries [B, ...] of an environment, with the fields that acting reads.

    `mask` is needed if the environment offers masks of its actions (see `masks`).
    """
    return Entry(
        action=tf.nest.map_structure(tf.constant, spec.actions.as_arrays(action)),
        reward=tf.constant(reward, tf.float32),
        terminated=None,
        truncated=None,
        observation=tf.nest.map_structure(
            lambda spec, part: tf.constant(part, spec.dtype), spec.observation, observation
        ),
        first=tf.constant(first, tf.bool),
        extras=None,
        mask=tf.nest.map_structure(
            lambda spec, part: tf.constant(part, spec.dtype), spec.masks, mask
        ),
    )


def why_unsuitable(about: checkpoint.CheckpointInfo, spec: EnvironmentSpec) -> str:
    """Return why a checkpoint's network cannot play a level, as a sentence; empty if it can."""
    here, there = from_flags.describe_spaces(spec), about.made_of
    stacked = there.get("--frame_stack", Config.frame_stack)
    if spec.emulator and spec.frame_stack != stacked:
        return (
            f"{spec.level_name} with --frame_stack={spec.frame_stack} does not fit the network, "
            f"which was made for {stacked} frames: give --frame_stack={stacked}"
        )
    if all(there.get(name) == value for name, value in here.items()):
        return ""
    hint = "; train with --full_action_space to have one network for all Atari games"
    return (
        f"{spec.level_name} has {from_flags.in_words(here['actions'])} and observations "
        f"{here['observations']}, but the network was made for "
        f"{from_flags.in_words(there.get('actions'))} and {there.get('observations')}"
        f"{hint if spec.emulator and here['observations'] == there.get('observations') else ''}"
    )


@contextlib.contextmanager
def blaming_settings(recorded: dict[str, Any]) -> Iterator[None]:
    """Raise checkpoint.Mismatch for an error to which a run's recorded flags have led.

    Flags that this version refuses but does not read do no harm, so all is tried with them first.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ImpalaError):
            raise
        algorithm = recorded.get("algorithm", Config.algorithm)
        if not isinstance(algorithm, str):
            reason = f"--algorithm={algorithm}: it needs text"
        else:
            reason = flag_values.why_refused(recorded, Config.of_algorithm(algorithm))
        if not reason:
            raise
        raise checkpoint.Mismatch(
            f"the run has recorded flags that cannot be used ({reason}): its checkpoint is damaged "
            f"or of another version: copy it again, or give another one"
        ) from None


def config_for_playing(recorded: dict[str, Any], level_name: str = "", **changes: Any) -> Config:
    """Return a run's recorded flags with these changes, in float32 for a CPU.

    `env_kwargs` may be a dictionary. Raises BadSettings for changes that the command line refuses,
    and checkpoint.Mismatch if its modules cannot be imported.
    """
    algorithm = recorded.get("algorithm", Config.algorithm)
    if not isinstance(algorithm, str):
        raise TypeError(algorithm)  # `blaming_settings` says what it must be
    try:
        user_modules.import_all(changes.get("imports", recorded.get("imports", "")))
        settings = Config.of_algorithm(algorithm)
    except user_modules.BadModule as error:
        raise checkpoint.Mismatch(f"the run's {error}") from error.__cause__
    except BadAlgorithm as error:
        raise checkpoint.Mismatch(f"the run's --algorithm={algorithm}: {error}") from error
    names = {f.name for f in dataclasses.fields(settings)}
    # Opponents of a training are not those of a test, nor is the trust in them.
    names -= {"opponents", "trust_teacher"}
    kept = {name: value for name, value in recorded.items() if name in names}
    kept.setdefault("convert_observations", False)  # as earlier versions did, which lack the flag
    kept = auto.former_defaults(settings) | kept
    asked, named = command_line.parse_settings(changes | {"algorithm": algorithm}, Config)
    changes = {name: getattr(asked, name) for name in named if name != "algorithm"}
    config = dataclasses.replace(settings(**kept), **{"precision": "float32"} | changes)
    return dataclasses.replace(config, level_name=level_name) if level_name else config
