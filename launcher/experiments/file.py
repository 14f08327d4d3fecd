"""The file of an experiment: what all trials share, what differs, and what one of them needs.

    preset = "classic-ppo"                # flags of all trials, as in a file for --config
    total_environment_frames = 2e4
    [axes]
    seed = [1, 2, 3]                      # a list: each of these values
    learning_rate = {log_uniform = [1e-5, 1e-2]}    # or uniform, integers, choices
    [search]
    kind = "random"                       # `search` has the kinds
    trials = 12
    at_once = 4
    [needs]
    learners = 1
    actors = 2

The command line reads the flags at the top (`setting_files`); this module reads the tables. Every
mistake is a UserError of one sentence, before anything starts.
"""

import dataclasses
import difflib
import json
import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_mm.config import command_line, flag_values, flags, setting_files
from impala_mm.config.errors import BadSettings
from impala_mm.config.settings import Config
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig

Values = dict[str, Any]  # of flags by name, as TOML has them
_INTERVALS = ("uniform", "log_uniform", "integers")


@dataclasses.dataclass(frozen=True)
class Axis:
    """The values that one flag may have: a list of them, or an interval."""

    kind: str  # "choices", or one of `_INTERVALS`
    values: Sequence[Any]  # all of them, or the lowest and the highest one

    def draw(self, source: random.Random) -> Any:
        """Return a random value."""
        if self.kind == "choices":
            return source.choice(self.values)
        low, high = self.values
        if self.kind == "integers":
            return source.randint(low, high)
        if self.kind == "uniform":
            return source.uniform(low, high)
        return math.exp(source.uniform(math.log(low), math.log(high)))


@dataclasses.dataclass(frozen=True)
class Needs:
    """The part of the hosts that one trial takes."""

    learners: int = 1
    actors: int = 2
    gpus: int = 0  # of each learner's row
    cores: int = 1  # of its first learner's host, where their number is known


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, as its file and the command line describe it."""

    path: str
    folder: Path
    base: Values  # flags of all trials
    axes: Mapping[str, Axis]
    kind: str  # of the search
    trials: int = 0  # at most; 0: as many as the search has
    at_once: int = 0  # at most; 0: as many as there is room for
    seed: int = 0  # of the search
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the search's own
    needs: Needs = dataclasses.field(default_factory=Needs)
    typed: Sequence[str] = ()  # the flags of `base` that the command line gives

    @property
    def fixed(self) -> dict[str, Any]:
        """What an experiment keeps while it is resumed, in JSON; lists of a grid may grow."""
        axes = {f"axes.{name}": {axis.kind: axis.values} for name, axis in self.axes.items()}
        search = {"kind": self.kind, "seed": self.seed, **self.options}
        found = self.base | axes | {f"search.{name}": value for name, value in search.items()}
        return json.loads(json.dumps(found))

    @property
    def most(self) -> int:
        """The number of trials that it has at the end; 0: unknown."""
        values = [len(axis.values) for axis in self.axes.values()]
        sizes = [self.trials, math.prod(values) if self.kind == "grid" else 0]
        return min(filter(None, sizes), default=0)

    def check(self, values: Values) -> Config:
        """Return a trial's settings. Raises UserError if the command line would refuse them."""
        try:
            config, _ = command_line.parse_settings(self.base | values, Config)
            with flags.refusals_raised():
                flag_values.check_effects(config, evaluators=True, notes=False)
        except BadSettings as error:
            shown = describe(values)
            raise UserError(f"{self.path}: {error}" + f" (with {shown})" * bool(shown)) from None
        return config

    def draw(self, number: int) -> Values:
        """Return random values for a trial: the same ones for the same number."""
        source = random.Random(f"{self.seed} {number}")
        return {name: axis.draw(source) for name, axis in self.axes.items()}


def describe(values: Values) -> str:
    """Return values of flags in a line."""
    return " ".join(f"{name}={format_value(value)}" for name, value in values.items())


def format_value(value: Any) -> str:
    """Return a value with the digits that a table has room for."""
    return f"{value:.4g}" if isinstance(value, float) else setting_files.to_text(value)


def read(request: Request, kinds: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """Read the experiment of --experiment; `kinds`: the options of each search and their defaults.

    The flags that all trials share are those of the command line, which take precedence, and of the
    file.
    """
    path = request.launcher.experiment
    table = tomllib.loads(Path(path).read_text(encoding="utf-8"))  # the command line has read it
    config = request.experiment
    origins = json.loads(config.origins or "{}")
    typed = origins.get(setting_files.COMMAND_LINE, ())
    shared = [*origins.get(path, ()), *typed]
    base = {n: getattr(config, n) for n in shared if hasattr(config, n) and n != "logdir"}
    axes = {name: _read_axis(f"{path}: [axes]", name, v) for name, v in _table(table, path, "axes")}
    if both := [name for name in axes if name in base]:
        raise UserError(f"{path}: {both[0]} is an axis, and also given to all trials: remove one")
    search, needs = dict(_table(table, path, "search")), dict(_table(table, path, "needs"))
    is_grid = all(axis.kind == "choices" for axis in axes.values())
    kind = search.pop("kind", "grid" if is_grid else "random")
    if kind not in kinds:
        raise UserError(f"{path}: [search]: there is no kind {kind!r}{_hint(str(kind), kinds)}")
    common = {"trials": 0, "at_once": 0, "seed": 0}
    known = _typed(f"{path}: [search]", search, common | dict(kinds[kind]))
    wants = _typed(f"{path}: [needs]", needs, dataclasses.asdict(Needs()))
    if not axes:
        raise UserError(f"{path}: [axes] has no flag: name at least one, in which trials differ")
    if wants["learners"] < 1:
        raise UserError(f"{path}: [needs]: learners = {wants['learners']}: a trial needs one")
    folder = Path(config.logdir or f"runs/{Path(path).stem}")
    experiment = Experiment(
        path=path,
        folder=folder,
        base=base,
        axes=axes,
        kind=kind,
        **{name: known.pop(name) for name in common},
        options=known,
        needs=Needs(**wants),
        typed=typed,
    )
    _check_axes(experiment)
    return experiment


def _check_axes(experiment: Experiment) -> None:
    """Refuse axes that are no flags, and values that their flags do not take."""
    for name, axis in experiment.axes.items():
        if name in LauncherConfig.NOT_TAKEN or name == "logdir":
            why = LauncherConfig.NOT_TAKEN.get(name, "each trial has its own")
            raise UserError(f"{experiment.path}: [axes]: {name} can be no axis: {why}")
        if name in flags.infos(LauncherConfig):
            raise UserError(f"{experiment.path}: [axes]: {name} can be no axis: no learner has it")
        if name == "preset" and axis.kind != "choices":
            raise UserError(f"{experiment.path}: [axes]: preset is a list of names")
    rest = {name: axis.values[0] for name, axis in experiment.axes.items()}
    for name, axis in experiment.axes.items():
        for value in [*axis.values, axis.draw(random.Random(0))]:  # such as a number with a point
            experiment.check(rest | {name: value})


def _table(table: Mapping[str, Any], path: str, name: str) -> Sequence[tuple[str, Any]]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{path}: {name} = {found!r}: it is a table, [{name}]")
    return list(found.items())


def _read_axis(where: str, name: str, given: Any) -> Axis:
    """Return the axis that the file gives to a flag."""
    kind, values = "choices", given
    if isinstance(given, dict) and len(given) == 1:
        ((kind, values),) = given.items()
    kinds = ("choices", *_INTERVALS)
    if kind not in kinds:
        raise UserError(f"{where}: {name}: there is no kind {kind!r}{_hint(kind, kinds)}")
    if not isinstance(values, list):
        raise UserError(
            f"{where}: {name} = {given!r}: an axis is a list of values, or one of "
            f"{', '.join(_INTERVALS)} with the lowest and the highest value, as in "
            f"{{log_uniform = [1e-5, 1e-2]}}"
        )
    if not values:
        raise UserError(f"{where}: {name} has no values: give some, or remove it")
    if kind == "choices":
        for value in values:
            try:
                setting_files.to_text(value)
            except ValueError as error:
                raise UserError(f"{where}: {name} = {value}: {error}") from None
            if values.count(value) > 1:
                raise UserError(f"{where}: {name} has {value} twice: remove one")
        return Axis(kind, values)
    numbers = (int,) if kind == "integers" else (int, float)
    are_numbers = all(isinstance(v, numbers) and not isinstance(v, bool) for v in values)
    if len(values) != 2 or not are_numbers or not values[0] < values[1]:
        what = "whole numbers" if kind == "integers" else "numbers"
        raise UserError(f"{where}: {name}: {kind} takes two {what}, the lowest one first")
    if kind == "log_uniform" and values[0] <= 0:
        raise UserError(f"{where}: {name}: log_uniform begins above 0, not at {values[0]}")
    return Axis(kind, values)


def _typed(where: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults with the values given; refuse other names and other types."""
    for name, value in given.items():
        if name not in defaults:
            raise UserError(f"{where}: there is no setting {name}{_hint(name, defaults)}")
        default = defaults[name]
        is_number = isinstance(default, float) and type(value) is int
        if type(value) is not type(default) and not is_number:
            kind = {int: "a whole number", str: "a text", float: "a number", list: "a list"}
            raise UserError(f"{where}: {name} = {value!r}: it needs {kind[type(default)]}")
        if type(value) in (int, float) and not value >= 0:
            raise UserError(f"{where}: {name} = {value}: it must be at least 0")
    return dict(defaults) | dict(given)


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
