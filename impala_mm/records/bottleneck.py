"""A row of metrics in words: the progress line, and what binds, by how much, and what to add.

Every stage of a run waits for the slowest. Learners that wait for nothing bind themselves; learners
that wait for unrolls wait for the actors, or, where these wait to hand them over, for the network
between; learners that wait for each other all alike wait for the all-reduce. `metrics` says what
the shares are of; `tests/test_verdicts.py` makes each of these run.
"""

import math
from typing import Any

_LEARNERS_WAIT = 0.1  # of their time, for unrolls, from which they do not bind
# Of their time, with learners that wait, too: 0.4 and more was seen over slow links, 0.24 at most
# elsewhere (many processes on two cores).
_ACTORS_WAIT = 0.3
_EXCHANGE = 0.3  # of each learner's time, in averaging with the others, from which that binds
_INFERENCE = 0.5  # of actors' time, in waiting for the learner's actions, from which these bind
_IDLE = 0.2  # cores of a host, below which more actors there would play no more
_ALMOST = 1 - 1e-9
_FULL = 0.5  # of the queue, from which actors are held back


def progress_line(row: dict[str, Any], total: float) -> str:
    """The progress line; a row brings its verdict."""
    parts = [f"{row['frames']:,.0f} frames", f"{row['frames_per_second']:,.0f}/s"]
    if "episode_return" in row:
        parts.append(f"return {row['episode_return']:.2f}")
    if "policy_lag" in row:
        parts.append(f"lag {row['policy_lag']:.1f}")
    if row["frames_per_second"] > 0:
        eta = (total - row["frames"]) / row["frames_per_second"]
        parts.append(f"at most {_duration(eta)} to go")
    return " | ".join([*parts, row["verdict"]])


def describe_bottleneck(row: dict[str, Any], actors: int | None) -> str:
    """What binds, with so many actors (None: it is not known how many)."""
    if actors == 0:
        return "no actor is here"
    wait, moves = row.get("wait_share"), row["frames_per_second"] > 0
    if wait is None and moves:
        return "too early to say what binds"
    if wait is None:
        return "an update is running (the first is compiled, too)"
    return _slow_learner(row, wait, moves) or _overall_bottleneck(row, wait, moves, actors)


def _overall_bottleneck(row: dict[str, Any], wait: float, moves: bool, actors: int | None) -> str:
    several = len(_by_learner(row, "wait_share")) > 1
    held = row.get("actor/waiting_share", 0.0)
    if wait > _LEARNERS_WAIT:
        return _starved(row, wait, moves, actors)
    if row.get("queue_fill", 0.0) <= _FULL:
        return "learner and actors are balanced"
    trains = f"{row['train_share']:.0%} of the time"
    binds = f"the learner binds: it trains {trains}"
    if several:
        exchange = row.get("exchange_share", 0.0)
        binds = f"the learners bind: they train {trains} and wait for each other {exchange:.0%}"
    if held <= _ACTORS_WAIT:  # so little, or not known yet
        return f"{binds}, actors wait; a GPU or another learner would help"
    return (
        f"{binds}, actors wait {held:.0%} of theirs; a GPU or another learner would help"
        f"{_fewer_actors(held, actors)}"
    )


def _starved(row: dict[str, Any], wait: float, moves: bool, actors: int | None) -> str:
    """What learners wait for that have no unrolls."""
    held, acting = row.get("actor/waiting_share", 0.0), row.get("actor/acting_share", 0.0)
    several = len(_by_learner(row, "wait_share")) > 1
    who = f"the learner{'s wait' if several else ' waits'}"
    waits = f"{who} {wait:.0%} of the time"
    if not moves:
        return f"{who} for unrolls, and none came: see what the actors say, or add some"
    if "inference_batch" in row and acting > _INFERENCE:
        return (
            f"inference binds: {waits} for unrolls, actors {acting:.0%} of theirs for the "
            f"learner's actions; a GPU, more --num_envs or --inference=actor would help"
        )
    if held > _ACTORS_WAIT:
        return (
            f"the network between actors and learner binds: {waits} for unrolls, actors {held:.0%} "
            f"of theirs to hand them over; fewer bytes (--parameter_dtype=float16, a larger "
            f"--min_pull_secs), more learners on other hosts or a faster link would help"
        )
    return (
        f"the actors bind: {waits}{_what_actors_do(row)}; {_more_actors(wait, actors)} would feed "
        f"{'them' if several else 'it'}{_on_other_hosts(row)}"
    )


def _what_actors_do(row: dict[str, Any]) -> str:
    """What actors do most of their time, where it is known."""
    steps, acts = (row.get(f"actor/{name}_share", 0.0) for name in ("stepping", "acting"))
    if not max(steps, acts):
        return ""
    what = "in environments" if steps > acts else "computing actions"
    return f", they spend {max(steps, acts):.0%} of theirs {what}"


def _on_other_hosts(row: dict[str, Any]) -> str:
    """Where learners share their hosts with all actors, and there is no core left for more."""
    if row.get("actors_elsewhere") != 0 or row.get("idle_cores", _IDLE) >= _IDLE:
        return ""
    whose = "learners'" if len(_by_learner(row, "wait_share")) > 1 else "learner's"
    return f", on other hosts: all cores of the {whose} are busy"


def _more_actors(wait: float, actors: int | None) -> str:
    """How many actors would leave no time to wait."""
    possible = _rate_without_waits(wait)
    if actors is None:
        return f"some {possible:.1f} times as many"
    return f"some {_actors_for(possible, 1 / actors)} actors (now {actors})"


def _fewer_actors(held: float, actors: int | None) -> str:
    """How many actors would be as good, if fewer are."""
    if not actors:
        return ""
    enough = _actors_for(1.0, _rate_without_waits(held) / actors)
    return f", or {enough} of the {actors} actors would do" if enough < actors else ""


def _rate_without_waits(share: float) -> float:
    """How many times its rate a process would reach if it never waited; it waits this share."""
    return 1 / (1 - min(share, 0.99))


def _actors_for(rate: float, rate_of_one: float) -> int:
    """The number of actors that reach a rate; what exceeds it by rounding alone is no more."""
    return math.ceil(rate / rate_of_one * _ALMOST)


def _slow_learner(row: dict[str, Any], wait: float, moves: bool) -> str:
    """Which learner the others wait for, if they wait for one; or that all wait alike."""
    waits, exchanges = _by_learner(row, "wait_share"), _by_learner(row, "exchange_share")
    if len(waits) < 2:
        return ""
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    if waits[most] > _LEARNERS_WAIT and waits[most] > 2 * waits[least]:
        if not moves:
            return f"learner {most} has no unrolls, and the others wait for it: give it actors"
        return (
            f"learner {most} waits for unrolls {waits[most]:.0%} of the time, and the others for "
            f"it: give it actors"
        )
    most, least = (pick(exchanges, key=exchanges.__getitem__) for pick in (max, min))
    if max(waits.values()) <= _LEARNERS_WAIT and exchanges[most] > 0.1 + 2 * exchanges[least]:
        return (
            f"learner {least} is the slowest: learner {most} waits for it "
            f"{exchanges[most]:.0%} of the time"
        )
    if exchanges[least] > max(_EXCHANGE, wait):
        return (
            f"the all-reduce binds: learners spend {row['exchange_share']:.0%} of the time in it; "
            f"a larger --batch_size or fewer learners would help, and with a large network fewer "
            f"bytes (--gradient_dtype=float16) or a faster link"
        )
    return ""


def _by_learner(row: dict[str, Any], name: str) -> dict[int, float]:
    """A value that each learner has of its own, by rank."""
    begin = f"{name}/learner"
    return {int(k.removeprefix(begin)): v for k, v in row.items() if k.startswith(begin)}


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
