"""The teachers that --teacher names, checked against the student's levels.

runs/old, runs/old/checkpoints/0000012000, pong, exported      `trained`
my_package:function                                            `functions`
a SavedModel of another program, with --trust_teacher          `saved_models`
a checkpoint of Dopamine                                       `dopamine`
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nets
from impala_mm.algorithms.feature_settings import TeacherSettings, action_numbers
from impala_mm.config import flags, user_modules
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.errors import ImpalaError
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.policy.core import PolicyCore, blaming_settings
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Damaged, resolve
from impala_mm.teachers import dopamine_files
from impala_mm.teachers.action_order import ActionOrder, Reordered
from impala_mm.teachers.dopamine import DopamineTeacher
from impala_mm.teachers.functions import FunctionTeacher
from impala_mm.teachers.kinds import NoTeacher, PlayingTeacher
from impala_mm.teachers.saved_models import SavedModelTeacher
from impala_mm.teachers.trained import TrainedTeacher

_KINDS = (
    "a teacher is the folder of a run, of one of its checkpoints or of an export, a policy of this "
    "package, my_package:function, a checkpoint of Dopamine or a SavedModel"
)

# Flags that say for which returns values stand.
_OF_RETURNS = (
    *("discounting", "reward_clipping", "normalize_rewards"),
    *("reward_scaling", "max_abs_reward"),
)
# As Dopamine trains; its checkpoints do not have the discount.
_DOPAMINES = {"reward_clipping": "abs_one", "normalize_rewards": False, "reward_scaling": 1.0}


def load_teachers(config: TeacherSettings, spec: EnvironmentSpec) -> list[PlayingTeacher]:
    """Return the teachers of a student of levels with this spec; raise NoTeacher."""
    return [_load(name.strip(), config, spec) for name in config.teacher.split(",")]


def _load(name: str, config: TeacherSettings, spec: EnvironmentSpec) -> PlayingTeacher:
    order = ActionOrder(action_numbers(config.teacher_actions)) if config.teacher_actions else None
    try:
        if order and spec.actions.discrete is None:
            raise NoTeacher(
                f"--teacher_actions orders Discrete actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}"
            )
        with flags.refusals_raised():
            loaded = _load_kind(name, config, spec, order)
        teacher = loaded.teacher
        _check_values(teacher, config, order)
        if "value" in config.distilled:
            teacher.notes += _other_values(name, loaded.trained_with, config)
        if not order:
            return teacher
        assert loaded.num_actions
        return Reordered(teacher, order, loaded.num_actions)
    except (ImpalaError, nets.Unsuitable) as error:
        raise NoTeacher(f"--teacher={name}: {error}") from error.__cause__
    except OSError as error:
        raise NoTeacher(
            f"--teacher={name}: {error.filename or resolve(name)} cannot be read: "
            f"{error.strerror or error}: make it readable for this user, or give another teacher"
        ) from None


class _Loaded(NamedTuple):
    """A teacher in its own order of actions."""

    teacher: PlayingTeacher
    num_actions: int | None  # None for numbers
    trained_with: Mapping[str, Any]  # those of _OF_RETURNS that are known


def _load_kind(
    name: str, config: TeacherSettings, spec: EnvironmentSpec, order: ActionOrder | None
) -> _Loaded:
    fit = functools.partial(_with_actions, spec, order)
    path, temperature = resolve(name), config.teacher_temperature
    if ":" in name and not Path(name).exists():
        hint = (
            "; with more actions than --teacher_actions names, it must return their probabilities"
        )
        function = FunctionTeacher(name, fit, hint if order else "")
        return _Loaded(function, function.num_actions, {})
    if (path / "saved_model.pb").exists():
        if not config.trust_teacher:
            raise NoTeacher(
                "it is a SavedModel that --mode=export of this version has not written. A "
                "SavedModel is a program, which may read and write your files: give "
                "--trust_teacher if you know where it is from"
            )
        model = SavedModelTeacher(name, path, fit, temperature)
        return _Loaded(model, model.num_actions, {})
    if bundle := dopamine_files.find(path):
        values = DopamineTeacher(name, bundle, fit, temperature)
        return _Loaded(values, values.num_actions, _DOPAMINES)
    try:
        found, about = checkpoint.find(path, best=True)
    except Damaged as error:
        raise NoTeacher(f"{error}: copy it again, or give another checkpoint") from None
    except checkpoint.Missing as error:
        if not path.exists() or (path / "metrics.jsonl").exists():
            raise
        raise NoTeacher(f"{error}: {_KINDS}") from None
    _check_code(about, config)
    theirs = fit(about.made_of.get("actions"))
    try:
        policy = PolicyCore(found, about, config.level_name, theirs, preset="")
    except checkpoint.Mismatch as error:
        raise NoTeacher(f"{error}{_hint(about, spec, order)}") from None
    _check_choices(policy.config, config)
    with blaming_settings(about.settings):
        teacher = TrainedTeacher(name, policy, temperature)
    differs = policy.config.box_policy != config.box_policy and spec.actions.has_box
    if differs and "box_policy" in policy.flags_read:
        raise NoTeacher(
            f"it has --box_policy={policy.config.box_policy}: there is no divergence from it to "
            f"another one, so give the same here"
        )
    teacher.notes += _differences(name, about, config, spec)
    trained_with = {flag: getattr(policy.config, flag) for flag in _OF_RETURNS}
    return _Loaded(teacher, theirs.actions.discrete, trained_with)


def _check_code(about: CheckpointInfo, config: TeacherSettings) -> None:
    """Raise NoTeacher if the algorithm or imports of a run are code of somebody else.

    They are all that recorded settings can name which loading it would execute: a teacher is made
    for the student's levels and wrappers.
    """
    settings = about.settings
    ours = user_modules.module_names(config.imports)
    theirs = user_modules.module_names(f"{settings.get('imports', '')}")
    foreign = [f"--import={module}" for module in theirs if module not in ours]
    algorithm = settings.get("algorithm", config.algorithm)
    if algorithm not in (*BUILT_IN, config.algorithm):
        foreign.append(f"--algorithm={algorithm}")
    if foreign and not config.trust_teacher:
        raise NoTeacher(
            f"its {foreign[0]} is a module, which would be executed and may read and write your "
            f"files: give --trust_teacher if you know where it is from"
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


def _check_values(
    teacher: PlayingTeacher, config: TeacherSettings, order: ActionOrder | None
) -> None:
    """Raise NoTeacher if --distill compares values that the teacher lacks."""
    if "value" not in config.distilled:
        return
    asked = f"--distill={config.distill} compares values"
    if not config.computes_action_values:
        if not (teacher.greedy or isinstance(teacher, TrainedTeacher)):
            raise NoTeacher(f"{asked}, and the teacher has none: use --distill=policy")
    elif not teacher.greedy:
        raise NoTeacher(
            f"{asked} of actions, and the teacher is a policy, which has none: use "
            f"--distill=policy, or a teacher of --algorithm=dqn or r2d2"
        )
    elif order and None in order.numbers:
        raise NoTeacher(
            f"{asked} of actions, and --teacher_actions={config.teacher_actions} has actions that "
            f"the teacher lacks: use --distill=policy"
        )


def _other_values(name: str, theirs: Mapping[str, Any], ours: Config) -> list[str]:
    """Return why the teacher's values stand for other returns than the student's, as sentences.

    `theirs` are the values of flags with which the teacher was trained.
    """
    return [
        f"the teacher {name} was trained with --{flag}={there}, and its student has {here}: their "
        f"values stand for different returns, which --distill compares"
        for flag, there in theirs.items()
        if there != (here := getattr(ours, flag))
    ]


def _with_actions(
    spec: EnvironmentSpec, order: ActionOrder | None, count: object = None
) -> EnvironmentSpec:
    """Return the spec as a teacher with `count` actions sees it; None: as many as are named.

    Raises NoTeacher if the order does not fit.
    """
    if not order:
        return spec
    assert spec.actions.discrete
    known = count if isinstance(count, int) else 1 + max(n for n in order.numbers if n is not None)
    order.check(spec.actions.discrete, known)
    actions = ActionSpec(Discrete(known))
    return spec._replace(actions=actions, masks=actions.mask_specs if spec.masks else ())


def _hint(about: CheckpointInfo, spec: EnvironmentSpec, order: ActionOrder | None) -> str:
    """Return how a teacher with another number of actions can teach; empty if it cannot."""
    here, there = from_flags.describe_spaces(spec), about.made_of
    same = here["observations"] == there.get("observations")
    if order or not same or not isinstance(there.get("actions"), int):
        return ""
    return "; --teacher_actions says which of the teacher's actions are those of the student"


def _differences(
    name: str, about: CheckpointInfo, config: TeacherSettings, spec: EnvironmentSpec
) -> list[str]:
    """Return what differs between the teacher's levels and the student's, as sentences."""
    level, repeats = (
        about.made_of.get(each, here)
        for each, here in (
            ("--level_name", config.level_name),
            ("--num_action_repeats", spec.action_repeats),
        )
    )
    notes = []
    if level != config.level_name:
        notes.append(f"the teacher {name} was trained on {level}, not on {config.level_name}")
    if repeats != spec.action_repeats:
        notes.append(
            f"the teacher {name} was trained with --num_action_repeats={repeats}, and its student "
            f"acts every {spec.action_repeats} frames"
        )
    return notes
