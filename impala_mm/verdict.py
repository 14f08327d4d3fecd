"""A row of metrics in words: the progress line, and what binds."""

from typing import Any


def line(row: dict[str, Any], total: float, actors: int) -> str:
    """The progress line."""
    parts = [f"{row['frames']:,.0f} frames", f"{row['frames_per_second']:,.0f}/s"]
    if "episode_return" in row:
        parts.append(f"return {row['episode_return']:.2f}")
    if "policy_lag" in row:
        parts.append(f"lag {row['policy_lag']:.1f}")
    if row["frames_per_second"] > 0:
        eta = (total - row["frames"]) / row["frames_per_second"]
        parts.append(f"at most {_duration(eta)} to go")
    return " | ".join([*parts, verdict(row, actors)])


def verdict(row: dict[str, Any], actors: int) -> str:
    """What binds: the shares of time that the learners wait decide."""
    if not actors:
        return "no actor is here"
    wait, moves = row.get("wait_share"), row["frames_per_second"] > 0
    if wait is None and moves:
        return "too early to say what binds"
    if wait is None:
        return "an update is running (the first is compiled, too)"
    return _of_several(row, moves) or _of_all(row, wait, moves)


def _of_all(row: dict[str, Any], wait: float, moves: bool) -> str:
    if wait > 0.1 and not moves:
        return "waits for unrolls, and none came: see what the actors say, or add some"
    if wait > 0.1:
        return f"waits for unrolls {wait:.0%} of the time: add actors"
    if row.get("queue_fill", 0.0) <= 0.5:
        return "learner and actors are balanced"
    if len(_each(row, "wait_share")) > 1:
        return (
            f"the learners bind: they train {row['train_share']:.0%} of the time and wait for each "
            f"other {row.get('exchange_share', 0.0):.0%}, actors wait"
        )
    return f"the learner binds: it trains {row['train_share']:.0%} of the time, actors wait"


def _of_several(row: dict[str, Any], moves: bool) -> str:
    """Which learner the others wait for, if they wait for one."""
    waits, exchanges = _each(row, "wait_share"), _each(row, "exchange_share")
    if len(waits) < 2:
        return ""
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    if waits[most] > 0.1 and waits[most] > 2 * waits[least]:
        if not moves:
            return f"learner {most} has no unrolls, and the others wait for it: give it actors"
        return (
            f"learner {most} waits for unrolls {waits[most]:.0%} of the time, and the others for "
            f"it: give it actors"
        )
    most, least = (pick(exchanges, key=exchanges.__getitem__) for pick in (max, min))
    if max(waits.values()) <= 0.1 and exchanges[most] > 0.1 + 2 * exchanges[least]:
        return (
            f"learner {least} is the slowest: learner {most} waits for it "
            f"{exchanges[most]:.0%} of the time"
        )
    return ""


def _each(row: dict[str, Any], name: str) -> dict[int, float]:
    """A value that each learner has of its own, by rank."""
    begin = f"{name}/learner"
    return {int(k.removeprefix(begin)): v for k, v in row.items() if k.startswith(begin)}


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
