"""A row of metrics in words: the progress line, and the run's bottleneck with advice.

Each stage of a run waits for the slowest one. A learner that waits for nothing is itself the
bottleneck. If it waits for unrolls, the actors are, or the network between them if actors wait to
send their unrolls. If all learners wait for each other, the all-reduce is.
`metric_descriptions` explains the shares; `tests/test_verdicts.py` produces each bottleneck in a
real run.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from impala_mm.runtime.timing import format_duration

# Shares of a process's time, from 0 to 1.
_LEARNERS_WAIT = 0.1  # a learner that waits longer for unrolls is not the bottleneck
# Actors that wait longer, while learners wait too, have a slow network: over slow links 0.4 and
# more was measured, elsewhere at most 0.24 (many processes on two cores).
_ACTORS_WAIT = 0.3
_EXCHANGE = 0.3  # learners that wait longer for each other have the all-reduce as bottleneck
_INFERENCE = 0.5  # actors that wait longer for the learner's actions have inference as bottleneck
_IDLE = 0.2  # idle cores of a host below which another actor there would not play more
_ALMOST = 1 - 1e-9
_FULL = 0.5  # fill level of the queue from which actors have to wait
# Beyond this factor, the number of actors that would be needed, or enough, is a guess: it takes all
# else to be as fast as now.
_MOST_FACTOR = 5.0

# Metrics by which one sees how well a student learns from recorded games.
_OFFLINE = ("kl_teacher_pi", "cloning_loss")


def progress_line(row: dict[str, Any], eta: float | None) -> str:
    """Return the progress line of a row of metrics.

    `eta` is the number of seconds until the run reaches its limit, or None if not known yet.
    """
    # Without any frames, no unroll of the algorithm's own source counts as played.
    what = "frames" if row["frames"] or not row["updates"] else "updates"
    parts = [f"{row[what]:,.0f} {what}", f"{row[f'{what}_per_second']:,.0f}/s"]
    if "episode_return" in row:
        parts.append(f"return {row['episode_return']:.2f}")
    if "policy_lag" in row:
        parts.append(f"lag {row['policy_lag']:.1f}")
    if "loss_per_step/total" in row:
        parts.append(f"loss {row['loss_per_step/total']:.3g}")
    if eta is not None:
        parts.append(f"ETA {format_duration(eta)}")
    return " | ".join([*parts, row["verdict"]])


def offline_line(row: dict[str, Any], left: int, planned: int) -> str:
    """Return the progress line of a row while a student learns from recorded games."""
    made, rate = planned - left, row["updates_per_second"]
    parts = [f"offline: {made:,} of {planned:,} updates", f"{rate:,.0f}/s"]
    parts += [f"{name} {row[name]:.3g}" for name in _OFFLINE if name in row]
    if rate > 0:
        parts.append(f"ETA {format_duration(left / rate)}")
    return " | ".join([*parts, row["verdict"]])


def describe_bottleneck(
    row: dict[str, Any],
    actors: int | None,
    round_progress: tuple[int, int] = (0, 0),
    filling: tuple[int, int] = (0, 0),
) -> str:
    """Return "bottleneck: NAME (evidence); advice" for a row of metrics.

    `actors` is the number of connected actors, or None if it is not known. `round_progress` holds
    the unrolls that have arrived of the rounds that actors play, and the columns of these rounds;
    `filling` the unrolls in the learners' replays, and those that first updates need.
    """
    if actors == 0:
        return "bottleneck: actors (none is connected); they may still be starting, see their logs"
    arrived, columns = round_progress
    wait = row.get("wait_share")
    trains = max(row["frames_per_second"], row.get("updates_per_second", 0.0)) > 0
    if filling[1] and not trains:
        return f"bottleneck: actors ({describe_filling(filling)})"
    if wait is None:
        return "bottleneck: not known yet"
    if columns and not trains:
        return (
            f"bottleneck: actors (a round is being played: {arrived} of its {columns} unrolls have "
            f"arrived)"
        )
    return _slow_learner(row, wait, trains) or _overall_bottleneck(row, wait, trains, actors)


def describe_filling(filling: tuple[int, int]) -> str:
    """Return how far the replays are filled, which the first update waits for."""
    return "the replay is filling: {:,} of the {:,} unrolls before the first update".format(
        *filling
    )


def describe_running_update(is_first: bool) -> str:
    """Return the verdict for a run at a standstill whose update has not ended."""
    if is_first:
        return "bottleneck: not known yet (an update is running; the first one is also compiled)"
    return "bottleneck: not known yet (an update is running, longer than those before it)"


def describe_silence(silent: str) -> str:
    """Return the verdict for a run whose learners wait for those that `silent` names."""
    return f"bottleneck: {silent}; check the host and its network"


def describe_turns(row: dict[str, Any]) -> str:
    """Return the verdict for a run of --deterministic_run, in which one of two always waits."""
    if "wait_share" not in row:
        return "bottleneck: not known yet"
    return (
        f"bottleneck: --deterministic_run (the actor plays while the learner waits, "
        f"{row['wait_share']:.0%} of the time, and waits while it trains)"
    )


def describe_without_actors(row: dict[str, Any], offline: bool = False) -> str:
    """Return the verdict for a run whose batches all come from the algorithm's own source.

    `offline`: from recorded games instead.
    """
    what = "recorded games" if offline else "the algorithm's own source"
    wait = row.get("wait_share")
    if wait is None:
        return "bottleneck: not known yet"
    several = _several_learners(row)
    if wait > _LEARNERS_WAIT:
        whose = "the learners wait" if several else "the learner waits"
        time = "their time" if several else "its time"
        return (
            f"bottleneck: source ({whose} {wait:.0%} of {time} for batches of {what}"
            f"{'' if offline else '; no actor is connected'}); a faster source would help"
        )
    exchange = row.get("exchange_share", 0.0)
    if several and exchange > _EXCHANGE:
        return f"bottleneck: all-reduce ({exchange:.0%} of the learners' time)"
    return (
        f"bottleneck: learner{'s' * several} ({row['train_share']:.0%} of the time is training, on "
        f"batches of {what}); a GPU or another learner would help"
    )


def _overall_bottleneck(row: dict[str, Any], wait: float, trains: bool, actors: int | None) -> str:
    """Return the verdict for a run whose learners all behave alike."""
    held = row.get("actor/waiting_share", 0.0)
    is_sent = held <= _ACTORS_WAIT or _share_busy_cores(row)  # else the network is slow
    if row.get("actor/policy_wait_share", 0.0) and trains and is_sent:
        return _taking_turns(row, wait, actors)
    if wait > _LEARNERS_WAIT:
        return _starving(row, wait, trains, actors)
    if row.get("queue_fill", 0.0) <= _FULL:
        return "balanced: learner and actors keep pace"
    evidence = f"it trains {row['train_share']:.0%} of its time"
    if _several_learners(row):
        evidence = (
            f"they train {row['train_share']:.0%} of their time and wait for each other "
            f"{row.get('exchange_share', 0.0):.0%}"
        )
    advice = "a GPU or another learner would help"
    if "replay_share" in row:
        less = "a smaller --updates_per_step" if _is_sac(row) else "fewer old unrolls in --replay"
        advice = f"a GPU, another learner or {less} would help"
    if held > _ACTORS_WAIT:  # otherwise actors wait little, or their times are not known yet
        evidence += f", actors wait {held:.0%} of theirs"
        advice += _fewer_actors(held, actors)
    return f"bottleneck: learner{'s' if _several_learners(row) else ''} ({evidence}); {advice}"


def _taking_turns(row: dict[str, Any], wait: float, actors: int | None) -> str:
    """Return the verdict for rounds, which actors play and the learner trains on in turn.

    Whichever takes longer is the bottleneck.
    """
    actors_wait = f"actors wait for the next policy {row['actor/policy_wait_share']:.0%} of"
    several = _several_learners(row)
    if wait < row["train_share"]:
        who = "the learners train" if several else "the learner trains"
        whose = "their time" if several else "its time"
        return (
            f"bottleneck: learner{'s' if several else ''} ({who} {row['train_share']:.0%} of "
            f"{whose}, {actors_wait} theirs); a GPU or another learner would help"
        )
    waits = f"the learner waits {wait:.0%} of its time for the round's unrolls"
    if several:
        waits = f"the learners wait {wait:.0%} of their time for the round's unrolls"
    now = "" if actors is None else f" ({actors} now)"
    return (
        f"bottleneck: actors ({waits}, {actors_wait} theirs{_actors_main_work(row)}); more actors "
        f"with fewer --num_envs each would help{now}{_busy_cores(row)}"
    )


def _starving(row: dict[str, Any], wait: float, trains: bool, actors: int | None) -> str:
    """Return the verdict for learners that wait for unrolls."""
    held, acting = row.get("actor/waiting_share", 0.0), row.get("actor/acting_share", 0.0)
    waits = f"the learner waits {wait:.0%} of its time"
    if _several_learners(row):
        waits = f"the learners wait {wait:.0%} of their time"
    if not trains:
        return "bottleneck: actors (no unrolls arrive); check the actors' logs or add actors"
    if "inference_batch" in row and acting > _INFERENCE:
        return (
            f"bottleneck: inference ({waits} for unrolls, actors wait {acting:.0%} of theirs for "
            f"the learner's actions); a GPU, more --num_envs or --inference=actor would help"
        )
    if held > _ACTORS_WAIT and _share_busy_cores(row):
        return (
            f"bottleneck: cores ({waits} for unrolls, actors wait {held:.0%} of theirs to send "
            f"them; all share busy cores); fewer processes or actors on other hosts would help"
        )
    # A full queue is not what a slow network leaves.
    mixes = "replay_share" in row and not _is_sac(row)
    if held > _ACTORS_WAIT and mixes and row.get("queue_fill", 0.0) > _FULL:
        return (
            f"bottleneck: replay ({waits} for batches, actors wait {held:.0%} of theirs to send "
            f"unrolls); a faster disk for --replay_spill, or fewer old unrolls in --replay (elite "
            f"and attentive also compare features) would help"
        )
    if held > _ACTORS_WAIT:
        return (
            f"bottleneck: network ({waits} for unrolls, actors wait {held:.0%} of theirs to send "
            f"them); fewer bytes (--parameter_dtype=float16, a larger --min_pull_secs), more "
            f"learners on other hosts or a faster link would help"
        )
    needed = _needed_actors(wait, actors)
    if "replay_share" in row:
        flag = "--updates_per_step" if _is_sac(row) else "--replay_ratio"
        needed += f", or a larger {flag}, which trains more on each unroll"
    return f"bottleneck: actors ({waits}{_actors_main_work(row)}); {needed}{_busy_cores(row)}"


def _is_sac(row: dict[str, Any]) -> bool:
    """Return whether the algorithm is SAC, whose replay and flags are its own."""
    return {"q/value", "optimizer_steps"} <= row.keys()


def _actors_main_work(row: dict[str, Any]) -> str:
    """Return what actors spend most of their time on, or nothing where that is not known."""
    steps, acts = (row.get(f"actor/{name}_share", 0.0) for name in ("stepping", "acting"))
    if not max(steps, acts):
        return ""
    where = "in environments" if steps > acts else "computing actions"
    return f", actors spend {max(steps, acts):.0%} of theirs {where}"


def _share_busy_cores(row: dict[str, Any]) -> bool:
    """Return whether all actors share the learners' hosts, and no core is idle."""
    return row.get("actors_elsewhere") == 0 and row.get("idle_cores", _IDLE) < _IDLE


def _busy_cores(row: dict[str, Any]) -> str:
    """Return advice to add hosts if all actors share the learners' hosts and no core is idle."""
    if not _share_busy_cores(row):
        return ""
    whose = "the learners' machines' cores" if _several_learners(row) else "this machine's cores"
    return f"; {whose} are busy, add hosts"


def _needed_actors(wait: float, actors: int | None) -> str:
    """Return how many actors would keep the learners from waiting."""
    factor = _rate_without_waits(wait)
    if factor > _MOST_FACTOR:
        now = "" if actors is None else f" ({actors} now)"
        return f"more than {_MOST_FACTOR:g} times as many actors needed{now}"
    if actors is None:
        return f"about {factor:.1f} times as many actors needed"
    return f"about {_actors_for(factor, 1 / actors)} actors needed ({actors} now)"


def _fewer_actors(held: float, actors: int | None) -> str:
    """Return how many actors would supply the same unrolls, if fewer would."""
    if not actors:
        return ""
    enough = _actors_for(1.0, min(_rate_without_waits(held), _MOST_FACTOR) / actors)
    return f", or {enough} of the {actors} actors would be enough" if enough < actors else ""


def _rate_without_waits(share: float) -> float:
    """Return by which factor a process that waits this share of its time could be faster."""
    return 1 / (1 - min(share, 0.99))


def _actors_for(rate: float, rate_of_one: float) -> int:
    """Return the number of actors that reach a rate; a rounding error adds none."""
    return math.ceil(rate / rate_of_one * _ALMOST)


def _slow_learner(row: dict[str, Any], wait: float, trains: bool) -> str:
    """Return the verdict if learners wait for one of them, or all of them for the all-reduce.

    Return an empty string otherwise.
    """
    waits, exchanges = _by_learner(row, "wait_share"), _by_learner(row, "exchange_share")
    if len(waits) < 2:
        return ""
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    if waits[most] > _LEARNERS_WAIT and waits[most] > 2 * waits[least]:
        evidence = f"it waits {waits[most]:.0%} of its time for unrolls" if trains else "no unrolls"
        return (
            f"bottleneck: learner {most} ({evidence}, the other learners wait for it); "
            f"assign actors to it"
        )
    most, least = (pick(exchanges, key=exchanges.__getitem__) for pick in (max, min))
    if max(waits.values()) <= _LEARNERS_WAIT and exchanges[most] > 0.1 + 2 * exchanges[least]:
        return (
            f"bottleneck: learner {least} (the slowest: learner {most} waits for it "
            f"{exchanges[most]:.0%} of its time); a faster machine for it would help"
        )
    if exchanges[least] > max(_EXCHANGE, wait):
        return (
            f"bottleneck: all-reduce ({row['exchange_share']:.0%} of the learners' time); a larger "
            f"--batch_size or fewer learners would help; for a large network also "
            f"--gradient_dtype=float16 or a faster link"
        )
    return ""


def _several_learners(row: dict[str, Any]) -> bool:
    return len(_by_learner(row, "wait_share")) > 1


def _by_learner(row: dict[str, Any], name: str) -> dict[int, float]:
    """Return each learner's own value of a metric, by rank."""
    begin = f"{name}/learner"
    return {int(k.removeprefix(begin)): v for k, v in row.items() if k.startswith(begin)}


_ROWS = 4  # measured rows, one every 2 s, that must name the same bottleneck before advice is given
_ADVICE = "); "  # what separates the evidence of a verdict from its advice


class VerdictWriter:
    """The verdicts of the rows of one run."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=_ROWS)  # those with shares of time

    def update(
        self,
        row: dict[str, Any],
        actors: int | None,
        without_actors: bool = False,
        round_progress: Sequence[tuple[int, int]] = (),
        filling: tuple[int, int] = (0, 0),
    ) -> str:
        """Take the next row of metrics; return "bottleneck: NAME (evidence); advice".

        The figures are means over the last rows. Without `_ROWS` rows that agree there is no
        advice. `actors` is the number of connected actors, or None if it is not known;
        `without_actors`: none is needed, since the algorithm's own source returns all batches.
        `round_progress` holds, for each learner, the unrolls that have arrived of the round that
        its actors play, and the round's columns. For `filling` see `describe_bottleneck`.
        """
        if without_actors:
            return describe_without_actors(row)
        if "wait_share" not in row or not row["frames_per_second"] or actors == 0:
            arrived, columns = map(sum, zip(*round_progress, (0, 0), strict=True))
            return describe_bottleneck(row, actors, (arrived, columns), filling)
        self._rows.append(row)
        verdict = describe_bottleneck(self._mean(row), actors)
        names = {describe_bottleneck(each, actors).partition(" (")[0] for each in self._rows}
        if len(self._rows) == _ROWS and len(names) == 1:
            return verdict
        evidence, separator, _ = verdict.partition(_ADVICE)
        return f"{evidence})" if separator else verdict

    def _mean(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the newest row with the mean of each share of time, as far as rows have it."""
        means = {}
        for name in (each for each in row if "_share" in each):
            values = [each[name] for each in self._rows if name in each]
            means[name] = sum(values) / len(values)
        return row | means
