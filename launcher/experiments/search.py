"""The kinds of search, by which the values of trials are chosen; another kind registers itself.

@SEARCHES.register("mine")
class Mine(Search):
    OPTIONS = {"step": 2}      # its own settings in the table [search], and their defaults
"""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

from impala_mm.config.registry import Registry
from launcher.experiments.file import Experiment, Values
from launcher.plan.request import UserError

CONTINUE, PRUNE, PAUSE = "continue", "prune", "pause"  # answers of `tell`


class Search:
    """The choice of the values of trials, which are numbered from 0; this one chooses none.

    It is made anew when an experiment is resumed: `asked` has the values of all trials so far.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {}
    CHOOSES_AHEAD: ClassVar[bool] = True  # whether values follow from no returns
    together = 0  # the number of trials that must run at the same time

    def __init__(self, experiment: Experiment, asked: Mapping[int, Values]):
        """Choose for an experiment, whose folder may get files of the search's own."""
        self.experiment, self.asked = experiment, dict(asked)

    def ask(self, number: int) -> Values | None:
        """Return the values of a new trial; None if there is none to start now."""
        return None

    def tell(self, number: int, frames: float, score: float) -> str:
        """Take the return of a running trial, and return CONTINUE, PRUNE or PAUSE.

        A trial that is paused is saved, stopped and started again.
        """
        return CONTINUE

    def starts(self, number: int, values: Values) -> Values:
        """Return the values with which a trial starts now, for the first time or again.

        No process of it is running, so its folder may be changed.
        """
        return values

    def ended(self, number: int, score: float | None, state: str) -> bool:
        """Take the last return of a trial that has "ended", "pruned" or "failed".

        Return whether it is to be started again.
        """
        return False


SEARCHES: Registry[type[Search]] = Registry("kind of search")


@SEARCHES.register("grid")
class Grid(Search):
    """Every combination of the axes' values; the last axis varies first."""

    def __init__(self, experiment: Experiment, asked: Mapping[int, Values]):
        super().__init__(experiment, asked)
        axes = experiment.axes
        if wrong := [name for name, axis in axes.items() if axis.kind != "choices"]:
            raise UserError(
                f"{experiment.path}: a grid needs lists of values, and {wrong[0]} is an "
                f'interval: use kind = "random"'
            )
        had = list(asked.values())
        all_values = itertools.product(*(axis.values for axis in axes.values()))
        combinations = (dict(zip(axes, values, strict=True)) for values in all_values)
        self._rest = (values for values in combinations if values not in had)

    def ask(self, number: int) -> Values | None:
        """Return the next combination that no trial has had."""
        return next(self._rest, None)


@SEARCHES.register("random")
class RandomSearch(Search):
    """Random values: for each trial those that follow from the search's seed and its number."""

    def __init__(self, experiment: Experiment, asked: Mapping[int, Values]):
        super().__init__(experiment, asked)
        if not experiment.trials:
            raise UserError(f"{experiment.path}: [search]: random needs trials = N")

    def ask(self, number: int) -> Values | None:
        """Return random values."""
        return self.experiment.draw(number)


SEARCHES.register("tpe", "launcher.experiments.optuna_search:TPE")
SEARCHES.register("population", "launcher.experiments.population:Population")
