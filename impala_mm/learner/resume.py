"""What a run that goes on from a checkpoint must share with it, may change, and is told of it.

`monitor` asks before it resumes, and for a new run that starts from another's weights.
"""

from typing import Any

from impala_mm.config.flags import differences
from impala_mm.config.settings import Config
from impala_mm.learner.limits import RunLimits
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch

# Of what a run is made of: what its weights depend on; the rest its counts and curves do.
_WEIGHTS = ("--algorithm", "--agent_name", "actions", "observations")


def check_resumable(about: CheckpointInfo, made_of: dict[str, Any], where: str) -> None:
    """Raises Mismatch where a run made of this cannot go on from what is in `where`."""
    wrong = _describe_differences(about, made_of, tuple(made_of))
    if wrong:
        fits = not _describe_differences(about, made_of, _WEIGHTS)
        starts = f" (--mode=train_from --checkpoint={where} begins it with these weights)"
        raise Mismatch(
            f"{wrong} in {where}: give what it has, or another --logdir{starts if fits else ''}"
        )


def check_weights(about: CheckpointInfo, made_of: dict[str, Any], where: str) -> None:
    """Raises Mismatch where a network made of this cannot take the weights in `where`."""
    wrong = _describe_differences(about, made_of, _WEIGHTS)
    if wrong:
        raise Mismatch(f"--checkpoint={where}: {wrong} there, and its weights do not fit")


def _describe_differences(
    about: CheckpointInfo, made_of: dict[str, Any], names: tuple[str, ...]
) -> str:
    theirs = about.made_of
    return ", ".join(
        f"{name} {'is' if name.startswith('-') else 'are'} {made_of[name]} here and "
        f"{theirs.get(name)}"
        for name in names
        if theirs.get(name) != made_of[name]
    )


def resume_messages(about: CheckpointInfo, config: Config, learners: int) -> list[str]:
    """What who resumes should know, a sentence each."""
    lines = [f"resumed at {about.frames:,.0f} frames, update {about.updates}"]
    if learners != about.learners:
        batch = config.batch_size * learners
        before = about.settings.get("batch_size", config.batch_size) * about.learners
        shared, rest = divmod(before, learners)
        keeps = f" (--batch_size={shared} keeps them)" if batch != before and not rest else ""
        lines.append(
            f"{learners} learners go on where {about.learners} left off: frames and schedules "
            f"count on, an update has {batch} unrolls instead of {before}{keeps}"
        )
    changed = differences(config, about.settings)
    if changed:
        lines.append(f"changed since: {', '.join(changed)}")
    return lines


def why_finished(about: CheckpointInfo, limits: RunLimits) -> str:
    """Why there is nothing left to do, and what would be; empty where there is."""
    if about.frames >= limits.frames:
        why = f"its {limits.frames:,.0f} frames are reached"
        return f"{why}; a higher --total_environment_frames goes on"
    known = about.episode_return
    if known is not None and known >= limits.episode_return:
        why = f"its mean return of {limits.episode_return:g} is reached ({known:.2f})"
        return f"{why}; a higher --stop_at_return goes on"
    if about.seconds >= limits.seconds:
        why = f"its {limits.seconds:g} seconds are over"
        return f"{why}; a higher --max_seconds goes on"
    return ""
