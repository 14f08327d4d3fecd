"""The rules for resuming: what a run must share with its checkpoint, and what may change.

`checkpointing` applies them before a run resumes, or starts with the weights of another run, and
`jobs.validate` does so without starting it.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.features.teacher import UNKNOWN
from impala_mm.config import environment_flags
from impala_mm.config.flags import differences, format_value, kept
from impala_mm.config.settings import Config
from impala_mm.data.variables import Variables
from impala_mm.learner.learner import RunLimits
from impala_mm.records import checkpoint, run_folder, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch

# The properties of a run that its weights do not depend on; its counts and curves do.
_NOT_OF_WEIGHTS = {"--level_name", "--num_action_repeats", *kept(Config(), "run")}
# Flags that are newer than some checkpoints, whose runs had what is now the default.
_DEFAULTS = {f"--{f.name}": f.default for f in dataclasses.fields(Config)}


def recorded_flags(config: Config, logdir: str) -> dict[str, Any] | None:
    """Return the flags that `auto` keeps to: those of the run in `logdir`, if it has started.

    With --mode=train_from, a new run keeps to those of the run whose weights it starts with. None:
    there is no such run.
    """
    if logdir and (recorded := run_folder.recorded_settings(Path(logdir))):
        return recorded
    if config.mode == "train_from":
        with contextlib.suppress(checkpoint.Damaged, checkpoint.Missing):  # refused later
            return checkpoint.find(config.checkpoint)[1].settings
    return None


def check_resumable(about: CheckpointInfo, made_of: dict[str, Any], where: str) -> None:
    """Raise Mismatch if a run with these properties cannot resume the one in `where`."""
    wrong = _describe_differences(about, made_of, tuple(made_of))
    if wrong:
        fits = not _describe_differences(about, made_of, _weights(about, made_of))
        starts = f" (--mode=train_from --checkpoint={where} starts it with these weights)"
        settings = Path(where) / "settings.json"
        raise Mismatch(
            f"{wrong} in {where}: give the same (or --config={settings} in place of these flags), "
            f"or another --logdir{starts if fits else ''}"
        )


def check_teacher(about: CheckpointInfo, config: Config, where: str) -> None:
    """Raise Mismatch if the run in `where` had no teacher, or knows another one's mean return."""
    former = about.settings.get("teacher")
    if not (isinstance(config, TeacherSettings) and config.teacher):
        return
    teacher = config.teacher
    if not former:
        raise Mismatch(
            f"--teacher={teacher}: the run in {where} had no teacher: leave it out, or start "
            f"another run with these weights (--mode=train_from --checkpoint={where})"
        )
    is_measured = config.teacher_return != UNKNOWN
    if teacher != former and config.follows_score and not is_measured:
        raise Mismatch(
            f"--teacher={teacher}: the run in {where} learns from {former}, whose mean return its "
            f"checkpoint has: give that teacher, or the mean return of yours by --teacher_return"
        )


def with_changes(error: Mismatch, about: CheckpointInfo, config: Config) -> Mismatch:
    """Return why variables of a checkpoint do not fit, with the flags that have changed since."""
    changed = ", ".join(differences(config, about.settings))
    since = f"; flags have changed since, perhaps one that needs it: {changed}"
    return Mismatch(f"{error}{since if changed else ''}")


def start_from(
    config: Config, variables: Variables, made_of: dict[str, Any]
) -> tuple[Path, CheckpointInfo]:
    """Load what --mode=train_from starts with from --checkpoint; return that checkpoint.

    Raises Damaged, Mismatch or Missing.
    """
    where = config.checkpoint
    path, about = checkpoint.find(where)
    check_weights(about, made_of, where)
    if config.reload_replay and not any(about.own_states):
        raise Mismatch(
            f"--reload_replay: {path} was saved without a replay: leave it out, or take a run that "
            f"was trained with --replay_save"
        )
    if not config.reload_optimizer:
        saved_variables.load(path, saved_variables.named_weights(variables))
        return path, about
    if wrong := _describe_differences(about, made_of, tuple(made_of)):
        raise Mismatch(f"--reload_optimizer: {wrong} in {where}: give the same, or leave it out")
    try:
        saved_variables.load(path, saved_variables.named_with_optimizer(variables))
    except Mismatch as error:
        raise Mismatch(f"--reload_optimizer: {error}: leave it out") from None
    return path, about


def check_weights(about: CheckpointInfo, made_of: dict[str, Any], where: str) -> None:
    """Raise Mismatch if a network with these properties cannot load the weights in `where`."""
    wrong = _describe_differences(about, made_of, _weights(about, made_of))
    if wrong:
        raise Mismatch(f"--checkpoint={where}: {wrong} there, so its weights do not fit")


def _weights(about: CheckpointInfo, ours: dict[str, Any]) -> tuple[str, ...]:
    """Return the properties that weights depend on; the value head's are PopArt's own."""
    unit = "--value_normalization"
    is_popart = "popart" in {ours.get(unit), _value_there(about, unit, "")}
    free = _NOT_OF_WEIGHTS - ({unit} if is_popart else set())
    return tuple(name for name in ours if name not in free)


def _value_there(about: CheckpointInfo, name: str, here: Any) -> Any:
    """Return a property of a checkpoint's run, which has this value `here`.

    A flag that an earlier version did not record as a property is among all flags, or is newer.
    """
    if name == "--agent_name" and about.settings.get("agent_name") == here == "auto":
        return here  # the algorithm chooses; earlier versions recorded what they would have chosen
    if name in about.made_of or not name.startswith("--"):
        return about.made_of.get(name)
    return about.settings.get(name.removeprefix("--"), _DEFAULTS.get(name, here))


def _describe_differences(
    about: CheckpointInfo, ours: dict[str, Any], names: tuple[str, ...]
) -> str:
    """Return "NAME is VALUE here and OTHER VALUE" for each property that differs."""
    theirs = {name: _value_there(about, name, ours[name]) for name in names}
    wrong = [name for name in names if _place_free(ours[name]) != _place_free(theirs[name])]
    earlier = "observations" in wrong and "convert_observations" not in about.settings
    hint = " (earlier versions read them as --convert_observations=false does)" if earlier else ""
    return ", ".join(
        f"{name} {'is' if name.startswith('-') else 'are'} {format_value(ours[name])} here and "
        f"{format_value(theirs[name])}{hint if name == 'observations' else ''}"
        for name in wrong
    )


def _place_free(value: Any) -> Any:
    """Return a property in which files of environments are named without their folders."""
    return environment_flags.without_folders(value) if isinstance(value, str) else value


def resume_messages(about: CheckpointInfo, config: Config, learners: int) -> list[str]:
    """Return the messages for a user who resumes a run: its progress and what has changed."""
    lines = [f"resumed at {about.frames:,.0f} frames, update {about.updates}"]
    if learners != about.learners:
        batch = config.batch_size * learners
        before = about.settings.get("batch_size", config.batch_size) * about.learners
        shared, rest = divmod(before, learners)
        keeps = f" (--batch_size={shared} keeps it)" if batch != before and not rest else ""
        lines.append(
            f"the run continues on {learners} learner{'s' * (learners > 1)} instead of "
            f"{about.learners}: frames and schedules continue, and an update has {batch} unrolls "
            f"instead of {before}{keeps}"
        )
    unused = [str(rank) for rank in range(learners, len(about.own_states))]
    if unused and not config.replay:  # --replay deals out what they stored
        lines.append(
            f"the own state{'s' * (len(unused) > 1)} of learner{'s' * (len(unused) > 1)} "
            f"{' and '.join(unused)} (source and local variables) will not be used"
        )
    changed = differences(config, about.settings)
    if changed:
        lines.append(f"changed since: {', '.join(changed)}")
    return lines


def why_finished(about: CheckpointInfo, limits: RunLimits) -> str:
    """Return why a run is finished, and which flag would continue it; empty if it is not."""
    mean_return = about.episode_return
    if about.offline_updates >= limits.offline_updates:
        reached, flag = f"{limits.offline_updates:,} offline updates", "offline_updates"
    elif about.frames >= limits.frames:
        reached, flag = f"{limits.frames:,.0f} frames", "total_environment_frames"
    elif mean_return is not None and mean_return >= limits.episode_return:
        reached = f"mean return of {limits.episode_return:g} ({mean_return:.2f})"
        flag = "stop_at_return"
    elif about.seconds >= limits.seconds:
        reached, flag = f"{limits.seconds:g} seconds", "max_seconds"
    else:
        return ""
    return f"it has reached its {reached}; a higher --{flag} continues it"
