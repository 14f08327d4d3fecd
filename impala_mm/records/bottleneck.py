"""A row of metrics in words: the progress line, and a line on the run's bottleneck with advice.

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

_OF_ACTORS = ("waiting", "acting", "stepping", "policy_wait")
UNKNOWN = "bottleneck: not known yet"
ENDED = "ended: "  # begins the verdict of the last row, which says why the training has ended
_FASTER = "a GPU or another learner would help"

# Metrics by which one sees how well a student learns from recorded games.
_OFFLINE = ("kl_teacher_pi", "cloning_loss")


def progress_line(row: dict[str, Any], eta: float | None) -> str:
    """Return the progress line of a row of metrics, which fits a terminal of 100 columns.

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
    return " | ".join(parts)


def offline_line(row: dict[str, Any], left: int, planned: int) -> str:
    """Return the progress line of a row while a student learns from recorded games."""
    made, rate = planned - left, row["updates_per_second"]
    parts = [f"offline: {made:,} of {planned:,} updates", f"{rate:,.0f}/s"]
    parts += [f"{name} {row[name]:.3g}" for name in _OFFLINE if name in row]
    if rate > 0:
        parts.append(f"ETA {format_duration(left / rate)}")
    return " | ".join(parts)


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
    times = _Times(row)
    if filling[1] and not times.trains:
        return f"bottleneck: actors ({describe_filling(filling)})"
    if "wait_share" not in row:
        return UNKNOWN
    arrived, columns = round_progress
    if columns and not times.trains:
        return (
            f"bottleneck: actors (a round is being played: {arrived} of its {columns} unrolls have "
            f"arrived)"
        )
    return _slow_learner(times) or _overall_bottleneck(times, actors)


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
        return UNKNOWN
    return (
        f"bottleneck: --deterministic_run (the actor plays while the learner waits, "
        f"{row['wait_share']:.0%} of the time, and waits while it trains)"
    )


def describe_without_actors(row: dict[str, Any], offline: bool = False) -> str:
    """Return the verdict for a run whose batches all come from the algorithm's own source.

    `offline`: from recorded games instead.
    """
    if "wait_share" not in row:
        return UNKNOWN
    times, what = _Times(row), "recorded games" if offline else "the algorithm's own source"
    if times.wait > _LEARNERS_WAIT:
        return (
            f"bottleneck: source ({times.waits} for batches of {what}"
            f"{'' if offline else '; no actor is connected'}); a faster source would help"
        )
    if times.several and times.exchange > _EXCHANGE:
        return f"bottleneck: all-reduce ({times.exchange:.0%} of the learners' time)"
    return (
        f"bottleneck: {times.learners} ({times.train:.0%} of the time is training, on batches of "
        f"{what}); {_FASTER}"
    )


class _Times:
    """The shares of time in a row of metrics, and the words in which they are evidence."""

    def __init__(self, row: dict[str, Any]):
        self.row = row
        self.wait, self.train = row.get("wait_share", 0.0), row.get("train_share", 0.0)
        self.exchange = row.get("exchange_share", 0.0)
        self.held, self.acting = (row.get(f"actor/{name}_share", 0.0) for name in _OF_ACTORS[:2])
        self.stepping, self.policy_wait = (
            row.get(f"actor/{name}_share", 0.0) for name in _OF_ACTORS[2:]
        )
        self.trains = max(row["frames_per_second"], row.get("updates_per_second", 0.0)) > 0
        self.several = len(self.by_learner("wait_share")) > 1
        self.learners = "learners" if self.several else "learner"
        self.their = "their" if self.several else "its"
        # SAC has a replay and flags of its own.
        self.is_sac = {"q/value", "optimizer_steps"} <= row.keys()
        self.replays = "replay_share" in row
        # Whether all actors share the learners' hosts, and no core is idle.
        self.shares_busy_cores = (
            row.get("actors_elsewhere") == 0 and row.get("idle_cores", _IDLE) < _IDLE
        )

    def by_learner(self, name: str) -> dict[int, float]:
        """Return each learner's own value of a metric, by rank."""
        begin = f"{name}/learner"
        return {int(k.removeprefix(begin)): v for k, v in self.row.items() if k.startswith(begin)}

    @property
    def waits(self) -> str:
        """How long learners wait for their batches."""
        verb = "wait" if self.several else "waits"
        return f"the {self.learners} {verb} {self.wait:.0%} of {self.their} time"

    @property
    def actors_main_work(self) -> str:
        """What actors spend most of their time on; empty where that is not known."""
        most = max(self.stepping, self.acting)
        where = "in environments" if self.stepping > self.acting else "computing actions"
        return f", actors spend {most:.0%} of theirs {where}" if most else ""

    @property
    def busy_cores(self) -> str:
        """Advice to add hosts, if all actors share the learners' hosts and no core is idle."""
        whose = "the learners' machines' cores" if self.several else "this machine's cores"
        return f"; {whose} are busy, add hosts" if self.shares_busy_cores else ""


def _overall_bottleneck(times: _Times, actors: int | None) -> str:
    """Return the verdict for a run whose learners all behave alike."""
    is_sent = times.held <= _ACTORS_WAIT or times.shares_busy_cores  # else the network is slow
    if times.policy_wait and times.trains and is_sent:
        return _taking_turns(times, actors)
    if times.wait > _LEARNERS_WAIT:
        return _starving(times, actors)
    if times.row.get("queue_fill", 0.0) <= _FULL:
        return "balanced: learner and actors keep pace"
    evidence = f"it trains {times.train:.0%} of its time"
    if times.several:
        evidence = (
            f"they train {times.train:.0%} of their time and wait for each other "
            f"{times.exchange:.0%}"
        )
    advice = f"{_FASTER}{times.busy_cores}"
    if times.replays:
        less = "a smaller --updates_per_step" if times.is_sac else "fewer old unrolls in --replay"
        advice = f"a GPU, another learner or {less} would help"
    if times.held > _ACTORS_WAIT:  # otherwise actors wait little, or their times are not known yet
        evidence += f", actors wait {times.held:.0%} of theirs"
        advice += _fewer_actors(times.held, actors)
    return f"bottleneck: {times.learners} ({evidence}); {advice}"


def _taking_turns(times: _Times, actors: int | None) -> str:
    """Return the verdict for rounds, which actors play and the learner trains on in turn.

    Whichever takes longer is the bottleneck.
    """
    actors_wait = f"actors wait for the next policy {times.policy_wait:.0%} of theirs"
    if times.wait < times.train:
        verb = "train" if times.several else "trains"
        return (
            f"bottleneck: {times.learners} (the {times.learners} {verb} {times.train:.0%} of "
            f"{times.their} time, {actors_wait}); {_FASTER}"
        )
    now = "" if actors is None else f" ({actors} now)"
    return (
        f"bottleneck: actors ({times.waits} for the round's unrolls, {actors_wait}"
        f"{times.actors_main_work}); more actors with fewer --num_envs each would help"
        f"{now}{times.busy_cores}"
    )


def _starving(times: _Times, actors: int | None) -> str:
    """Return the verdict for learners that wait for unrolls."""
    if not times.trains:
        return "bottleneck: actors (no unrolls arrive); check the actors' logs or add actors"
    waits, held = times.waits, times.held
    if "inference_batch" in times.row and times.acting > _INFERENCE:
        return (
            f"bottleneck: inference ({waits} for unrolls, actors wait {times.acting:.0%} of theirs "
            f"for the learner's actions); a GPU, more --num_envs or --inference=actor would help"
        )
    if held > _ACTORS_WAIT and times.shares_busy_cores:
        return (
            f"bottleneck: cores ({waits} for unrolls, actors wait {held:.0%} of theirs to send "
            f"them; all share busy cores); fewer processes or actors on other hosts would help"
        )
    # A full queue is not what a slow network leaves.
    is_full = times.row.get("queue_fill", 0.0) > _FULL
    if held > _ACTORS_WAIT and times.replays and not times.is_sac and is_full:
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
    needed = _needed_actors(times.wait, actors)
    if times.replays:
        flag = "--updates_per_step" if times.is_sac else "--replay_ratio"
        needed += f", or a larger {flag}, which trains more on each unroll"
    return f"bottleneck: actors ({waits}{times.actors_main_work}); {needed}{times.busy_cores}"


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


def _slow_learner(times: _Times) -> str:
    """Return the verdict if learners wait for one of them, or all of them for the all-reduce.

    Return an empty string otherwise.
    """
    waits, exchanges = times.by_learner("wait_share"), times.by_learner("exchange_share")
    if len(waits) < 2:
        return ""
    most, least = max(waits, key=waits.__getitem__), min(waits, key=waits.__getitem__)
    if waits[most] > _LEARNERS_WAIT and waits[most] > 2 * waits[least]:
        evidence = (
            f"it waits {waits[most]:.0%} of its time for unrolls" if times.trains else "no unrolls"
        )
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
    if exchanges[least] > max(_EXCHANGE, times.wait):
        return (
            f"bottleneck: all-reduce ({times.exchange:.0%} of the learners' time); a larger "
            f"--batch_size or fewer learners would help; for a large network also "
            f"--gradient_dtype=float16 or a faster link"
        )
    return ""


_ROWS = 4  # measured rows, one every 2 s, that must name the same bottleneck before advice is given
# Measured rows in succession that must name others before such a bottleneck is given up, or as many
# as have named it, if these are fewer: an actor that is restarted, for example, is not one.
_OTHER_ROWS = 15
_ADVICE = "); "  # what separates the evidence of a verdict from its advice


def name_of(verdict: str) -> tuple[str, bool]:
    """Return the part of a verdict that says what the bottleneck is, and whether it has advice."""
    return verdict.partition(" (")[0], _ADVICE in verdict


class VerdictWriter:
    """The verdicts of the rows of one run."""

    def __init__(self) -> None:
        self._rows: deque[dict[str, Any]] = deque(maxlen=_ROWS)  # those with shares of time
        self._verdict = self._name = ""  # the last one, and what it names
        # Rows with which all of the last `_ROWS` named it, and rows in succession that did not.
        self._agreeing = self._others = 0

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
        advice; with them, a verdict is held until `_OTHER_ROWS` rows have named others. `actors`
        is the number of connected actors, or None if it is not known; `without_actors`: none is
        needed, since the algorithm's own source returns all batches. `round_progress` holds, for
        each learner, the unrolls that have arrived of the round that its actors play, and the
        round's columns. For `filling` see `describe_bottleneck`.
        """
        if without_actors:
            return describe_without_actors(row)
        if "wait_share" not in row or not row["frames_per_second"] or actors == 0:
            arrived, columns = map(sum, zip(*round_progress, (0, 0), strict=True))
            return describe_bottleneck(row, actors, (arrived, columns), filling)
        self._rows.append(row)
        verdict = describe_bottleneck(self._mean(row), actors)
        name = name_of(verdict)[0]
        names = {name_of(describe_bottleneck(each, actors))[0] for each in self._rows}
        agree = len(self._rows) == _ROWS and names == {name}
        self._others = 0 if name == self._name else self._others + 1
        if self._others:
            if self._others < min(self._agreeing, _OTHER_ROWS):
                return self._verdict
            self._name, self._agreeing, self._others = name, 0, 0
        self._agreeing += agree
        evidence, separator, _ = verdict.partition(_ADVICE)
        self._verdict = verdict if self._agreeing or not separator else f"{evidence})"
        return self._verdict

    def _mean(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the newest row with the mean of each share of time, as far as rows have it."""
        means = {}
        for name in (each for each in row if "_share" in each):
            values = [each[name] for each in self._rows if name in each]
            means[name] = sum(values) / len(values)
        return row | means
