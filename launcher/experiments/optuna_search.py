"""The search `tpe`: Optuna chooses the values of trials, and prunes those that fall behind.

    [search]
    kind = "tpe"
    trials = 20
    pruner = "median"     # or "halving", or "none"

    EXPERIMENT/study.journal      the study, which optuna-dashboard reads

Only the experiment's own process knows Optuna. Its trial N is the experiment's trial N. The study
is written before the experiment's journal, so what a killed process has asked for is found again.
"""

import math
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from impala_mm.config import setting_files
from launcher.experiments.file import Axis, Experiment, Values
from launcher.experiments.search import CONTINUE, PRUNE, Search
from launcher.plan.request import UserError

if TYPE_CHECKING:
    import optuna

STUDY = "study.journal"
_PRUNED = "pruned"  # an attribute of a trial in the study
_PRUNERS = ("median", "halving", "none")


class TPE(Search):
    """Optuna's Tree-structured Parzen Estimator, with one of its pruners."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        "pruner": "median",
        "reports": 10,  # returns of a trial that the pruner sees, at equal distances of frames
        "warmup": 2,  # the first of them, by which none is pruned
        "startup": 5,  # trials with random values, and that end before any is pruned
    }
    CHOOSES_AHEAD: ClassVar[bool] = False

    def __init__(self, experiment: Experiment, asked: Mapping[int, Values]):
        super().__init__(experiment, asked)
        options, path = experiment.options, experiment.path
        if options["pruner"] not in _PRUNERS:
            raise UserError(
                f"{path}: [search]: pruner = {options['pruner']!r} is none of {', '.join(_PRUNERS)}"
            )
        if not experiment.trials or not options["reports"]:
            raise UserError(f"{path}: [search]: tpe needs trials = N, and reports of at least 1")
        if options["pruner"] != "none" and options["warmup"] >= options["reports"]:
            raise UserError(
                f"{path}: [search]: warmup = {options['warmup']}: it must be below reports, which "
                f"are {options['reports']}"
            )
        total = experiment.check({}).total_environment_frames
        if not 0 < total < math.inf:
            raise UserError(
                f"{path}: tpe compares trials at equal parts of total_environment_frames: give it, "
                f"such as total_environment_frames = 1e6"
            )
        self._every = total / options["reports"]
        try:
            import optuna  # noqa: PLC0415
        except ImportError:
            raise UserError(
                f"{path}: kind = \"tpe\" needs Optuna: pip install 'impala_mm[optuna]', or in a "
                f"clone {sys.executable} -m pip install 'optuna>=4'"
            ) from None
        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._opened: optuna.Study | None = None

    @property
    def _study(self) -> "optuna.Study":
        """The study of this folder, which is begun when it is first needed."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> "optuna.Study":
        optuna, options = self._optuna, self.experiment.options
        path = (self.experiment.folder / STUDY).resolve()
        self.experiment.folder.mkdir(parents=True, exist_ok=True)
        _repair(path)
        first = max(1, int((options["warmup"] + 1) * self._every))  # frames
        pruners = {
            "median": lambda: optuna.pruners.MedianPruner(options["startup"], n_warmup_steps=first),
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(first, 2),
            "none": optuna.pruners.NopPruner,
        }
        return optuna.create_study(
            study_name=self.experiment.folder.resolve().name,
            direction="maximize",
            storage=optuna.storages.JournalStorage(
                optuna.storages.journal.JournalFileBackend(str(path))
            ),
            pruner=pruners[options["pruner"]](),
            load_if_exists=True,
        )

    def ask(self, number: int) -> Values | None:
        """Return the values that Optuna has chosen for a trial, or chooses now."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=self.experiment.options["startup"],
                constant_liar=True,  # trials that run side by side get values that differ
                # Of its own for each number: a resumed experiment does not draw the same again.
                seed=self.experiment.seed + number,
            )
        is_new = number >= len(self._study.get_trials(deepcopy=False))
        trial = self._study.ask() if is_new else self._trial(number)
        return {name: _suggest(trial, name, axis) for name, axis in self.experiment.axes.items()}

    def tell(self, number: int, frames: float, score: float) -> str:
        """Report the return for each of the `reports` parts of its frames that a trial has made."""
        known = self._study.get_trials(deepcopy=False)[number]
        reached, last = int(frames / self._every), len(known.intermediate_values)
        if reached > last and not known.state.is_finished():
            trial = self._trial(number)
            for report in range(last + 1, reached + 1):
                trial.report(score, int(report * self._every))
            if trial.should_prune():  # it answers once: this process may be killed before it acts
                trial.set_user_attr(_PRUNED, True)
                return PRUNE
        return PRUNE if _PRUNED in known.user_attrs else CONTINUE

    def ended(self, number: int, score: float | None, state: str) -> bool:
        """Tell Optuna how a trial ended."""
        states = self._optuna.trial.TrialState
        how = {"ended": states.COMPLETE, "pruned": states.PRUNED}.get(state, states.FAIL)
        if how == states.COMPLETE and score is None:
            how = states.FAIL
        value = score if how == states.COMPLETE else None
        self._study.tell(number, value, how, skip_if_finished=True)
        return False

    def _trial(self, number: int) -> "optuna.Trial":
        """Return a trial that was asked for, perhaps by an earlier process."""
        found = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.trial.Trial(self._study, found._trial_id)


def _suggest(trial: "optuna.Trial", name: str, axis: Axis) -> Any:
    """Return Optuna's value for an axis; a trial that has one keeps it."""
    if axis.kind == "choices":
        by_text = {setting_files.to_text(value): value for value in axis.values}
        return by_text[trial.suggest_categorical(name, list(by_text))]
    low, high = axis.values
    if axis.kind == "integers":
        return trial.suggest_int(name, low, high)
    return trial.suggest_float(name, low, high, log=axis.kind == "log_uniform")


def _repair(path: Path) -> None:
    """Remove what a process that was killed while it wrote has left: its lock, and half a line."""
    path.with_name(path.name + ".lock").unlink(missing_ok=True)
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
