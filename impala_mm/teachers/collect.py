"""The games that teachers play for their student before it learns, for `learner.phases`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.interface import entry_spec
from impala_mm.environments import seeds
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.evaluation import games, recording
from impala_mm.replay.data_set import About, BadData, DataSetWriter, unroll_spec
from impala_mm.runtime.log import Say
from impala_mm.runtime.timing import Interval, format_duration
from impala_mm.teachers.kinds import PlayingTeacher
from impala_mm.teachers.scores import TeachersGames

_LINE_SECONDS = 3.0  # seconds between progress lines
_STEPS_EACH = 500  # of each environment, below which fewer play at a time: games end late


def collect(
    teachers: Sequence[PlayingTeacher],
    config: TeacherSettings,
    spec: EnvironmentSpec,
    folder: Path,
    about: About,
    steps: int,
    learner: int,
    meanwhile: Callable[[], None],
    say: Say,
) -> None:
    """Add games of at least `steps` steps to a data set.

    All teachers and levels shall have equal parts of it, those of an earlier start counted in.
    `about` describes the data, and `learner` is the rank of the learner whose teachers they are.
    Games are played to their ends. `meanwhile` is called between steps, and may raise an exception.
    Raises BadData if the games cannot be written or played.
    """
    levels = config.level_name.split(",")
    parts = [(teacher, level.strip()) for teacher in teachers for level in levels]
    unroll = unroll_spec(entry_spec(spec, ()), about.unroll_length)
    data = DataSetWriter(folder, about)
    line = _Progress(steps, say)
    say(f"collect: the teacher plays {steps:,} steps into {folder}")
    try:
        names = [f"{teacher.name} on {level}" for teacher, level in parts]
        before = [(data.about.parts or {}).get(name, 0) for name in names]
        for (teacher, level), data.part, most in zip(
            parts, names, _fill(steps, before), strict=True
        ):
            if not most:
                continue
            num_envs = max(1, min(games.NUM_ENVS, most // _STEPS_EACH))
            # Other games than those that are there already.
            start = seeds.of_recorded(config.seed, data.next_stream, learner)

            def is_enough(environment: int, of_it: int, made: int, most: int = most) -> bool:
                return made >= most

            def proceed(played: recording.Played) -> bool:
                meanwhile()
                line.show(played.steps)
                return True

            with TeachersGames(teacher, config, spec, level, num_envs, start) as made:
                line.add(
                    recording.record(
                        *(made.player, made.environments, num_envs, unroll, data),
                        is_enough,
                        explore=True,
                        idle_steps=made.idle_steps,
                        meanwhile=proceed,
                        say=say,
                    ).steps
                )
    except games.Unplayable as error:
        raise BadData(f"the teacher cannot play: {error}") from None
    finally:
        data.close()
    kept = data.about
    mean = "" if kept.mean_return is None else f", mean return {kept.mean_return:.2f}"
    say(f"collect: {kept.episodes:,} complete games, {kept.steps:,} steps{mean}")


def _fill(steps: int, before: Sequence[int]) -> list[int]:
    """Return how many of `steps` each part gets, of which `before` has so many, to be equal."""
    filled = list(range(len(before)))
    total = steps + sum(before)
    while above := [i for i in filled if before[i] * len(filled) > total]:
        filled = [i for i in filled if i not in above]
        total = steps + sum(before[i] for i in filled)
    found = [0] * len(before)
    for number, i in enumerate(filled):
        until, since = total * (number + 1) // len(filled), total * number // len(filled)
        found[i] = until - since - before[i]
    return found


class _Progress:
    """Lines that say how far the teachers are."""

    def __init__(self, steps: int, say: Say):
        self._steps, self._say, self._before = steps, say, 0
        self._began, self._line = time.monotonic(), Interval(_LINE_SECONDS)

    def add(self, steps: int) -> None:
        """Count the steps of a teacher that has played its part."""
        self._before += steps

    def show(self, steps: int) -> None:
        """Print a line if it is time; `steps` are those of the teacher that plays."""
        if not self._line.due(now := time.monotonic()):
            return
        made = self._before + steps
        rate = made / (now - self._began)
        left = max(self._steps - made, 0) / max(rate, 1e-9)
        self._say(
            f"collect: {made:,} of {self._steps:,} steps | {rate:,.0f}/s | "
            f"ETA {format_duration(left)}"
        )
