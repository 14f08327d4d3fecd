"""The measurements of learners: each has a Meter, and rank 0 makes rows of all their readings.

training thread -> Meter -> (reports of all learners) -> MetricsAggregator -> rows

`Throughput` counts from the end of one update to that of another. An update may take longer than
the time between two rows: counted over the time between rows, the rate would then be 0 in one row
and too high in the next one.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from impala_mm.data.episodes import ReportedEpisodes
from impala_mm.records.ratings import OpponentRatings

_GAMES = 100  # games over which returns are averaged
# The parts of an actor's time while it plays: computing actions, stepping environments, waiting for
# its learner, and waiting for the next policy. The rest of its time is bookkeeping.
ACTOR_TIMES = ("acting", "stepping", "waiting", "policy_wait")
_KNOWN_SHARE = 0.25  # share of a row's seconds that must be measured before shares are reported
# The parts of the training thread's time: waiting for its own unrolls; waiting for the other
# learners, including the averaging with them; training; and the rest.
LEARNER_TIMES = ("wait", "exchange", "train", "rest")


class MeterReading(NamedTuple):
    """The contents of a Meter, which learners send to each other."""

    sums: Counter  # sums over updates of the values that are averaged
    counts: Counter  # updates in each sum: those that measured the value
    times: Counter  # seconds, by name
    actor_times: Counter  # seconds summed over its actors, by name
    # Whether the first update ended during this reading; earlier times are then discarded.
    first_update_ended: bool
    steps: int  # environment steps that this learner trained on
    episodes: list[ReportedEpisodes]


class Meter:
    """The measurements of one learner since the last reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_at = math.inf  # time.monotonic() when the first update ended
        self._reading = _empty_reading()
        # Seconds of the training thread since the start: waiting for its own unrolls, and in total.
        self.waited = self.timed = 0.0

    def add(self, metrics: dict[str, float], steps: int) -> None:
        """Add one update: its values, which are averaged, and the steps that it trained on.

        A value that is NaN was not measured in this update, and does not count in the average.
        """
        with self._lock:
            measured = {name: float(x) for name, x in metrics.items() if not math.isnan(x)}
            self._reading.sums.update(measured)
            self._reading.counts.update(measured.keys())
            self._reading = self._reading._replace(steps=self._reading.steps + steps)

    def add_times(self, **seconds: float) -> None:
        """Add seconds of the training thread, by the names of LEARNER_TIMES.

        The times up to the end of the first update say nothing about the bottleneck, since actors
        were still starting and the update was being compiled. When it ends, they are discarded.
        """
        with self._lock:
            if self._began_at == math.inf and "train" in seconds:
                self._began_at = time.monotonic()
                self._reading = self._reading._replace(times=Counter(), first_update_ended=True)
                return
            self._reading.times.update(seconds)
            self.waited += seconds.get("wait", 0.0)
            self.timed += sum(seconds.values())

    def add_actor_times(self, seconds: dict[str, float]) -> None:
        """Add seconds of an actor, by the names of ACTOR_TIMES, and `playing` for the total.

        Times that began before the end of the first update are discarded, since the actor waited
        for it.
        """
        with self._lock:
            if seconds["playing"] <= time.monotonic() - self._began_at:
                self._reading.actor_times.update(seconds)

    def add_episodes(self, reported: ReportedEpisodes) -> None:
        """Add the episodes that an actor reported."""
        with self._lock:
            self._reading.episodes.append(reported)

    def take_reading(self) -> MeterReading:
        """Return the measurements since the last call, and start over."""
        with self._lock:
            part, self._reading = self._reading, _empty_reading()
            return part


def _empty_reading() -> MeterReading:
    return MeterReading(Counter(), Counter(), Counter(), Counter(), False, 0, [])


class MetricsAggregator:
    """The measurements of all learners: sums since the last row, and the last games."""

    def __init__(
        self,
        scores: dict[str, tuple[float, float] | None],
        learners: int = 1,
        keeps_games: bool = False,
        opponents: Sequence[str] = (),
    ):
        """Take for each level the low and the high score that returns are compared with, if known.

        `opponents` are the names in --opponents, if agents take turns.
        With `keeps_games`, games are kept until `take_games` returns them.
        """
        self._scores = scores
        self._lock = threading.RLock()  # `collect` holds it around `merge`
        self._returns = {level: deque[float](maxlen=_GAMES) for level in scores}  # raw
        # (raw return, steps, whether of the quarter of environments with the largest numbers)
        self._games: deque[tuple[float, float, bool]] = deque(maxlen=_GAMES)
        self._shaped: deque[float] = deque(maxlen=_GAMES)
        self.ratings = OpponentRatings(opponents)
        self._kept: list[dict[str, Any]] | None = [] if keeps_games else None
        self._readings = [_empty_reading() for _ in range(learners)]  # since the last row
        self._steps = [0] * learners  # trained on by each learner since this process started
        self._readings_began_at = time.monotonic()
        self.start(0.0, 0.0)
        self._closed = False

    def close(self) -> None:
        """Accept no more games, because the mean return of the current ones ends the run."""
        self._closed = True

    def collect(self, rank: int, meter: Meter) -> None:
        """Add what a meter has measured; whichever threads ask, games stay in their order."""
        with self._lock:
            self.merge(rank, meter.take_reading())

    def merge(self, rank: int, part: MeterReading) -> None:
        """Add a learner's reading."""
        with self._lock:
            reading = self._readings[rank]
            reading.sums.update(part.sums)
            reading.counts.update(part.counts)
            if part.first_update_ended:
                reading.times.clear()
            reading.times.update(part.times)
            reading.actor_times.update(part.actor_times)
            self._steps[rank] += part.steps
            for reported in [] if self._closed else part.episodes:
                for episode in reported.episodes():
                    if episode.whole_game:
                        last = episode.environment >= 0.75 * (reported.environments - 1)
                        self._games.append((episode.episode_return, episode.length, last))
                        self._returns[reported.level].append(episode.episode_return)
                        self.ratings.add(episode.opponent, episode.score)
                        if self._kept is not None:
                            against = self.ratings.describe(episode.opponent, episode.score)
                            self._kept.append(reported.describe(episode) | against)
                    else:
                        self._shaped.append(episode.episode_return)

    def take_games(self) -> list[dict[str, Any]]:
        """Return the complete games since the last call, if they are kept."""
        with self._lock:
            games = self._kept or []
            if games:
                self._kept = []
        return games

    def forget_games(self) -> None:
        """Let no mean count the games so far: they were not the policy's own."""
        with self._lock:
            self._games.clear()
            for returns in (self._shaped, *self._returns.values()):
                returns.clear()

    def mean_return(self) -> float:
        """Return the mean raw return of the last 100 games; NaN before there are 100."""
        with self._lock:
            full = len(self._games) == _GAMES
            return float(np.mean([r for r, *_ in self._games])) if full else math.nan

    def mean_return_of_last_quarter(self) -> float:
        """Return that of the same games in the environments with the largest numbers, a quarter.

        Without such games, and with several levels, of which the quarter may play one alone, all of
        the games count.
        """
        mean = self.mean_return()
        with self._lock:
            chosen = [r for r, _, last in self._games if last] if len(self._scores) == 1 else []
            return float(np.mean(chosen)) if chosen and not math.isnan(mean) else mean

    def start(self, frames: float, steps: float, updates: int = 0) -> None:
        """Start counting rates at these numbers."""
        self.throughput = Throughput(Progress(frames, steps, updates, time.monotonic()))

    def row(
        self, frames: float, steps: float, updates: int = 0, updated_at: float | None = None
    ) -> dict[str, Any]:
        """Return the row of metrics since the last call, without values that are not known yet.

        `updated_at` is the time.monotonic() at which the last of these updates ended; None: now.
        Between two updates, measurements are kept for the row after the next update: until then
        the time that the running update takes is not known.
        """
        with self._lock:
            now = time.monotonic()
            at = now if updated_at is None else updated_at
            row: dict[str, Any] = {**self.throughput.count(Progress(frames, steps, updates, at))}
            if self._games:
                row["episode_return"] = float(np.mean([r for r, *_ in self._games]))
                row["episode_length"] = float(np.mean([s for _, s, _ in self._games]))
                row["games"] = len(self._games)
            if self._shaped:
                row["shaped_return"] = float(np.mean(self._shaped))
            empty = [_empty_reading() for _ in self._readings]
            readings, seconds = self._readings, max(now - self._readings_began_at, 1e-9)
            if self.throughput.is_between_updates:
                readings = empty
            else:
                self._readings, self._readings_began_at = empty, now
            row |= self._by_level() | self.ratings.row() | _averages(readings, seconds)
            if len(readings) > 1:
                for rank, part in enumerate(readings):
                    named = _averages([part], seconds) | {"steps": self._steps[rank]}
                    row |= {
                        f"{name}/learner{rank}": named[name] for name in _PER_LEARNER & named.keys()
                    }
            return {name: value for name, value in row.items() if math.isfinite(value)}

    def _by_level(self) -> dict[str, float]:
        """Return the returns of each level, if there are several, and the normalised ones."""
        returns = {level: float(np.mean(r)) for level, r in self._returns.items() if r}
        row: dict[str, float] = {}
        if len(self._scores) > 1:
            row |= {f"episode_return/{level}": value for level, value in returns.items()}
        normalised = {}
        for level, value in returns.items():
            known = self._scores[level]
            if known:
                low, high = known
                normalised[level] = (value - low) / (high - low)
        if len(normalised) > 1:
            row |= {f"normalised_score/{level}": value for level, value in normalised.items()}
            row["capped_score"] = float(np.minimum(list(normalised.values()), 1.0).mean())
        if normalised:  # the median as for Atari, and the capped mean as for DMLab-30
            row["normalised_score"] = float(np.median(list(normalised.values())))
        return row


# Metrics that a row of several learners also holds for each learner.
_PER_LEARNER = {
    *("steps", "queue_fill", "policy_lag", "replay_age", "replay_uses"),
    *(f"{name}_share" for name in LEARNER_TIMES),
}


def _averages(parts: list[MeterReading], seconds: float) -> dict[str, float]:
    """Return the values averaged over all updates of these learners, and the shares of their time.

    The shares are left out where few of the `seconds` were measured: the first updates find a full
    queue, which is not typical.
    """
    row: dict[str, float] = {}
    times = {name: sum(part.times[name] for part in parts) for name in LEARNER_TIMES}
    total = sum(times.values())
    if total and total >= _KNOWN_SHARE * seconds * len(parts):
        row |= {f"{name}_share": value / total for name, value in times.items()}
    if playing := sum(part.actor_times["playing"] for part in parts):
        for name in ACTOR_TIMES:
            spent = sum(part.actor_times[name] for part in parts)
            # Without rounds, no actor ever waits for a policy.
            if spent or name != "policy_wait":
                row[f"actor/{name}_share"] = spent / playing
    for name in {name for part in parts for name in part.sums}:
        row[name] = sum(part.sums[name] for part in parts) / sum(
            part.counts[name] for part in parts
        )
    return row


# Mean times between updates without a new one, after which a run is at a standstill.
_LATE = 3.0


class Progress(NamedTuple):
    """The frames, steps and updates of a run so far."""

    frames: float
    steps: float
    updates: int
    at: float  # time.monotonic() when its last update ended


class Throughput:
    """The frames, steps and updates per second of a run."""

    def __init__(self, begin: Progress):
        """Count from `begin`, whose `at` is now."""
        self._counted = begin
        self._update_seconds = 0.0  # mean time between the last updates that were counted
        self._rates = dict.fromkeys(("frames", "steps", "updates"), 0.0)
        self.is_between_updates = False  # no update has ended since the last one counted, but will
        self.has_updated = False  # an update was counted

    def count(self, progress: Progress) -> dict[str, float]:
        """Return the rates by their metrics' names.

        They are those up to the last update. Between two updates they stay as they are, and they
        are 0 while the next one takes `_LATE` times as long as those before.
        """
        last = self._counted
        if progress[:3] != last[:3]:
            seconds = max(progress.at - last.at, 1e-9)
            done = {name: getattr(progress, name) - getattr(last, name) for name in self._rates}
            self._rates = {name: number / seconds for name, number in done.items()}
            self._update_seconds = seconds / max(done["updates"], 1)
            self._counted, self.has_updated, self.is_between_updates = progress, True, False
        else:
            late = time.monotonic() - last.at > _LATE * self._update_seconds
            self.is_between_updates = self.has_updated and not late
            if late:
                self._rates = dict.fromkeys(self._rates, 0.0)
        return {f"{name}_per_second": rate for name, rate in self._rates.items()}


_ROWS = 6  # rows of metrics over which the rate is averaged
# The largest difference between the mean rates of the older and the newer half of these rows, as a
# share of the mean, for a rate to become stable and to stay so. With one threshold the ETA would
# appear and disappear.
_BECOMES_STABLE, _STAYS_STABLE = 0.25, 0.5


class EtaEstimator:
    """An estimate of the seconds until a run ends, made once its rate is stable.

    The run ends at its total frames or its maximum of seconds, whichever comes first. A mean return
    that ends it earlier cannot be foreseen.
    """

    def __init__(self, total_frames: float, max_seconds: float):
        """Take the run's limits; those of a resumed run include what it trained before."""
        self._total_frames, self._max_seconds = total_frames, max_seconds
        self._rates: deque[float] = deque(maxlen=_ROWS)  # frames per second, the newest last
        self._stable = False

    def update(self, row: dict[str, Any], seconds: float) -> float | None:
        """Take the next row of metrics; return the seconds left, or None while rates vary.

        `seconds` are those that count towards the maximum.
        """
        by_seconds = max(self._max_seconds - seconds, 0.0)
        if not row["frames"] and row.get("updates_per_second"):  # no unroll counts as played
            return by_seconds if math.isfinite(by_seconds) else None
        self._rates.append(row["frames_per_second"])
        rate = sum(self._rates) / len(self._rates)
        self._stable = self._is_stable(rate)
        if not self._stable:
            return None
        by_frames = (self._total_frames - row["frames"]) / rate
        left = max(min(by_frames, by_seconds), 0.0)
        return left if math.isfinite(left) else None

    def _is_stable(self, mean: float) -> bool:
        """Return whether the last rows' rates, of this mean, are about the same."""
        if len(self._rates) < _ROWS or mean <= 0:
            return False
        rates, half = list(self._rates), _ROWS // 2
        change = abs(sum(rates[half:]) - sum(rates[:half])) / half
        return change <= mean * (_STAYS_STABLE if self._stable else _BECOMES_STABLE)
