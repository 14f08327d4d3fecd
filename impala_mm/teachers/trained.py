"""A teacher that is a trained policy of ours: of a run, one of its checkpoints, or an export."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.algorithms.interface import PolicyOutput, zero_entry
from impala_mm.config import user_modules
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags
from impala_mm.policy.core import PolicyCore, blaming_settings
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Damaged
from impala_mm.teachers.teacher import NoTeacher, PlayingTeacher, Request
from nets import State

# Flags that say for which returns values stand.
_OF_RETURNS = (
    *("discounting", "reward_clipping", "normalize_rewards"),
    *("reward_scaling", "max_abs_reward", "life_loss_ends"),
)


class TrainedTeacher(PlayingTeacher):
    """A policy with its network; that of a Q-learner is softmax(values / temperature)."""

    in_words = (
        "the folder of a run, of one of its checkpoints or of an export, a policy of this package"
    )

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether a path holds a checkpoint or a run, or nothing at all."""
        is_run = (path / "metrics.jsonl").exists() or not checkpoint.why_missing(path)
        return is_run or not path.exists()

    def __init__(self, request: Request):
        """Load the policy; raise NoTeacher if it does not fit the student."""
        super().__init__(request)
        config, spec = request.config, request.spec
        try:
            path, about = checkpoint.find(request.path, best=True)
        except Damaged as error:
            raise NoTeacher(f"{error}: copy it again, or give another checkpoint") from None
        _demand_trust(about, request)
        num_actions = about.made_of.get("actions")
        theirs = request.fit(num_actions if isinstance(num_actions, int) else None)
        try:
            policy = PolicyCore(path, about, config.level_name, theirs, preset="")
        except checkpoint.Mismatch as error:
            raise NoTeacher(f"{error}{_hint(about, request)}") from None
        _check_choices(policy.config, config)
        self._policy, self._temperature = policy, config.teacher_temperature
        # PopArt has a unit of values for each level: which one is played is not known otherwise.
        levels = f"{about.made_of['--level_name']}".split(",")
        has_units = policy.config.value_normalization == "popart" and len(levels) > 1
        self.has_values = not has_units or config.level_name in levels
        with blaming_settings(about.settings):
            self._try(policy)
        differs = policy.config.box_policy != config.box_policy and spec.actions.has_box
        if differs and "box_policy" in policy.flags_read:
            raise NoTeacher(
                f"it has --box_policy={policy.config.box_policy}: there is no divergence from it "
                f"to another one, so give the same here"
            )
        self.notes += _differences(about, request)
        self.num_actions = theirs.actions.discrete
        self.trained_with = {flag: getattr(policy.config, flag) for flag in _OF_RETURNS}

    def _try(self, policy: PolicyCore) -> None:
        """Let the policy judge an entry; raise NoTeacher if it gives no parameters or values."""
        policy.check_teaches()
        start = policy.initial_state(1)
        judged = policy.judge(zero_entry(policy.spec), start)
        self.greedy = judged.parameters is None
        if self.greedy and judged.values is None:
            raise NoTeacher(
                f"its --algorithm={policy.config.algorithm} computes neither the parameters of a "
                f"policy nor values of actions"
            )
        # Earlier frames are known, and the state of normalised rewards is no part of the policy.
        others = _count_frames(start) + bool(policy.config.normalize_rewards)
        if len(tf.nest.flatten(start)) > others:
            self.notes.append(
                f"the teacher {self.name} remembers earlier observations, and begins each unroll "
                f"without a memory: for the first entries it is another policy than the one that "
                f"was trained; a larger --unroll_length makes them fewer, but all are first ones "
                f"for a student that learns from single steps (SAC without a memory, --her_ratio)"
            )

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return its memory at the start of `batch` episodes."""
        return self._policy.initial_state(batch)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], memory) after entries [B, ...]."""
        parameters = self._read(self._policy.judge(entry, state))
        return parameters, self._policy.next_state(entry, state)

    def parameters(self, entries: Entry) -> tf.Tensor:
        """Return the parameters [T+1, B, P] for entries [T+1, B, ...] of unrolls."""
        return self.judge(entries)[0]

    def judge(self, entries: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Return these parameters, and the values [T+1, B] of the observations."""
        start = self.initial_state(tf.shape(entries.first)[1])
        judged = self._policy.judge_unroll(entries, start)
        return self._read(judged), tf.cast(judged.value, tf.float32)

    def _read(self, judged: PolicyOutput) -> tf.Tensor:
        """Return the parameters in what the policy's algorithm has judged."""
        if judged.parameters is not None:
            return tf.cast(judged.parameters, tf.float32)
        return tf.cast(judged.values, tf.float32) / self._temperature


def _demand_trust(about: CheckpointInfo, request: Request) -> None:
    """Raise NoTeacher if the algorithm or imports of a run are code of somebody else.

    They are all that recorded settings can name which loading it would execute: a teacher is made
    for the student's levels and wrappers.
    """
    ours, theirs = request.config, about.settings
    imports = user_modules.module_names(f"{theirs.get('imports', '')}")
    shared = user_modules.module_names(ours.imports)
    foreign = [f"--import={module}" for module in imports if module not in shared]
    algorithm = theirs.get("algorithm", ours.algorithm)
    if algorithm not in (*BUILT_IN, ours.algorithm):
        foreign.append(f"--algorithm={algorithm}")
    if foreign:
        request.demand_trust(
            f"its {foreign[0]} is a module, which would be executed and may read and write your "
            f"files"
        )


def _check_choices(theirs: Config, ours: Config) -> None:
    """Raise NoTeacher if choices of the teacher stand for other numbers than the student's."""
    names = ["discretization"]
    if theirs.discretization == ours.discretization != "none":
        names += ["n_actions_per_dim"] + ["action_ratio"] * (ours.discretization == "log")
    for name in names:
        there, here = getattr(theirs, name), getattr(ours, name)
        if there != here:
            raise NoTeacher(
                f"it has --{name}={there}, and the student {here}: the same choice would be "
                f"another number, so give --{name}={there} here"
            )


def _hint(about: CheckpointInfo, request: Request) -> str:
    """Return how a teacher with another number of actions can teach; empty if it cannot."""
    here, there = from_flags.describe_spaces(request.spec), about.made_of
    same = here["observations"] == there.get("observations")
    if request.order or not same or not isinstance(there.get("actions"), int):
        return ""
    return "; --teacher_actions says which of the teacher's actions are those of the student"


def _differences(about: CheckpointInfo, request: Request) -> list[str]:
    """Return what differs between the teacher's levels and the student's, as sentences."""
    name, here, ours = request.name, request.config.level_name, request.spec.action_repeats
    level = about.made_of.get("--level_name", here)
    repeats = about.made_of.get("--num_action_repeats", ours)
    notes = []
    if level != here:
        notes.append(f"the teacher {name} was trained on {level}, not on {here}")
    if repeats != ours:
        notes.append(
            f"the teacher {name} was trained with --num_action_repeats={repeats}, and its student "
            f"acts every {ours} frames"
        )
    return notes


def _count_frames(state: Any) -> int:
    """Return how many arrays of a nest of states hold earlier frames."""
    if isinstance(state, State):
        return len(tf.nest.flatten(state.frames))
    if isinstance(state, dict):
        state = tuple(state.values())
    return sum(map(_count_frames, state)) if isinstance(state, tuple | list) else 0
