"""Flags, each defined once: a field of a frozen dataclass is a flag with its help.

    @dataclasses.dataclass(frozen=True)
    class Config:
        batch_size: int = flag(32, "Unrolls per learner and update.", group="Training", least=1)

`command_line.parse` makes a `Config` from the command line.
"""

import contextlib
import contextvars
import dataclasses
import difflib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec

from impala_mm.config import peer_names
from impala_mm.config.errors import BadSettings, ImpalaError
from impala_mm.config.messages import escape

AUTO = -1
TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_INFO = "flag"  # the key of a field's metadata
Of = ParamSpec("Of")


@dataclasses.dataclass(frozen=True)
class Condition:
    """The condition under which a flag has an effect; `&` and `|` join two of them."""

    words: str  # the other flags as --help and a refusal name them: "--advantages=n_step"
    # Why the flag has no effect in a config, after "has no effect": "with --advantages=gae"; empty
    # if it has one.
    why_idle: Callable[[Any], str]
    # Whether it concerns only what is typed: files of settings may have flags of another mode.
    typed: bool = False
    of_evaluators: bool = False  # whether it holds for evaluators, which others are started with

    def __and__(self, other: "Condition") -> "Condition":
        """Return the condition that both hold."""
        words = f"{self.words} and {other.words}"
        return Condition(words, lambda config: self.why_idle(config) or other.why_idle(config))

    def __or__(self, other: "Condition") -> "Condition":
        """Return the condition that at least one holds."""

        def why_idle(config: Any) -> str:
            reasons = [self.why_idle(config), other.why_idle(config)]
            return " and ".join(reasons) if all(reasons) else ""

        return Condition(f"{self.words} or {other.words}", why_idle)


def with_flag(name: str, *values: Any) -> Condition:
    """Return the condition that the flag `name` has one of these values, or is not off.

    It is off if it is 0, false, unset or infinite, or if there is no such flag.
    """

    def holds(value: Any) -> bool:
        return value in values if values else bool(value) and value not in {math.inf, -math.inf}

    shown = f"={' or '.join(map(format_value, values))}" if values else ""
    return _about(name, holds, f"--{name}{shown}")


def without_flag(name: str) -> Condition:
    """Return the condition that the flag `name` is 0, false or unset."""
    return _about(name, lambda value: not value, f"no --{name}")


def with_number(name: str) -> Condition:
    """Return the condition that the number of the flag `name` is finite; it may be 0."""
    return _about(name, math.isfinite, f"--{name}")


def _about(name: str, holds: Callable[[Any], bool], words: str) -> Condition:
    """Return the condition that something holds for the value of one flag."""

    def why_idle(config: Any) -> str:
        if holds(value := getattr(config, name, False)):
            return ""
        is_given = value != getattr(type(config), name, False)
        return f"with {arguments(config, [name])[0]}" if is_given or value else f"without --{name}"

    return Condition(words, why_idle)


def in_mode(*modes: str, evaluator: bool = False) -> Condition:
    """Return the condition that the process has one of these modes, or is an evaluator.

    Learners and actors accept flags of evaluators: the frontend gives all of them the same ones.
    """
    places = [f"--mode={mode}" for mode in modes] + ["--job_name=evaluator"] * evaluator

    def why_idle(config: Any) -> str:
        if evaluator and config.job_name:
            return ""
        if config.job_name == "evaluator":
            return "with --job_name=evaluator"
        return "" if config.mode in modes else f"with --mode={config.mode}"

    return Condition(" or ".join(places), why_idle, typed=True, of_evaluators=evaluator)


@dataclasses.dataclass(frozen=True)
class FlagInfo:
    """All that is known of a flag besides its name, its type and its default."""

    text: str  # its effect and its unit, for --help
    _: dataclasses.KW_ONLY
    group: str  # the heading of --help under which it is listed
    short: str = ""  # a line on the first page of --help, which has the flags that most people set
    choices: Sequence[str] = ()  # the only values that a text may have
    several: bool = False  # whether it may be several of them, separated by commas
    least: float = -math.inf  # the smallest and the largest value of a number
    most: float = math.inf
    infinite: bool = False  # whether the number may be infinite, as it may if its default is
    # Whether the number, or truth value, may also be given as `auto`, which is stored as AUTO; the
    # code that uses it then chooses a value.
    auto: bool = False
    bare: str = ""  # the value of a text whose flag is given without one; --noNAME unsets it
    # Raises a ValueError that says what a text must be; the field keeps the text.
    parse: Callable[[str], Any] | None = None
    # Does, too, and returns the text in the form in which the field keeps it.
    rewrite: Callable[[str], str] | None = None

    # -- Who reads it
    own: bool = False  # whether the learners of a run may have different values
    # Whether actors may have other values than their learner: for an algorithm's own flags, of
    # which actors must have the same values otherwise.
    learner_only: bool = False
    by_run: bool = False  # whether the run reads it, though its group is one of algorithms' flags
    # What another process or start does not take over from a file of settings. "command": only the
    # program that reads the file knows it, and no file may set it. "start": it says what one start
    # does. "process": it means nothing to another process.
    scope: str = ""
    # What keeps the value, where the flag has an effect. "run": a run that is resumed. "weights":
    # that, and a run that starts with the weights of another. `algorithms.agent` adds what follows
    # from the environment.
    kept_by: str = ""
    only_with: Condition | None = None  # if it does not hold, the flag has no effect: a note
    needs: Condition | None = None  # likewise, but the flag is refused

    # -- What `auto` follows
    with_box: Any = None  # its value where an action contains numbers (Box)
    of_games: bool = False  # whether its value depends on whether the level is a game of Atari

    # -- Of the frontend
    remembered: bool = False  # whether later commands of the run use the value of its start
    for_dashboard: bool = False  # whether commands that a dashboard starts get it, if it was given
    no_slurm: str = ""  # why a Slurm job has no use for it

    @property
    def follows_environment(self) -> bool:
        """Whether `auto` depends on the environment: a run keeps what it stood for at its start."""
        return self.with_box is not None or self.of_games


def _field_maker(make: Callable[Of, FlagInfo]) -> Callable[Concatenate[Any, Of], Any]:
    def flag(default: Any, *args: Of.args, **kwargs: Of.kwargs) -> Any:
        """Return a dataclass field that is a flag; `FlagInfo` explains the arguments."""
        details = make(*args, **kwargs)
        if default in (math.inf, -math.inf):
            details = dataclasses.replace(details, infinite=True)
        return dataclasses.field(default=default, metadata={_INFO: details})

    return flag


flag = _field_maker(FlagInfo)


def info(field: dataclasses.Field) -> FlagInfo:
    """Return what is known of the flag that a field is."""
    details: FlagInfo = field.metadata[_INFO]
    return details


def is_flag(field: dataclasses.Field) -> bool:
    """Return whether `flag` or `default` has made a field."""
    return _INFO in field.metadata


def infos(config: Any) -> dict[str, FlagInfo]:
    """Return what is known of all flags of a config or its type, by name."""
    return {field.name: info(field) for field in dataclasses.fields(config)}


def kept(config: Any, *kinds: str) -> dict[str, Any]:
    """Return the values, by `--name`, of the flags that are kept by one of these kinds.

    Flags that have no effect beside the others are left out, unless they are refused then: they
    have their defaults.
    """
    return {
        f"--{name}": getattr(config, name)
        for name, details in infos(config).items()
        if details.kept_by in kinds
        and not (details.only_with and details.only_with.why_idle(config))
    }


def default(config: type, name: str, value: Any) -> Any:
    """Return a dataclass field: the flag `name` of `config` with another default.

    A subclass of `config` declares it again: `batch_size: int = default(Config, "batch_size", 32)`.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    if name not in fields:
        raise ValueError(f"{config.__name__} has no flag {name}{nearest(name, fields)}")
    return dataclasses.field(default=value, metadata=fields[name].metadata)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a text such as 256,256, each at least 1; raise ValueError."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in numbers):
        raise ValueError("it must be whole numbers of at least 1, separated by commas")
    return tuple(map(int, numbers))


class OldName(NamedTuple):
    """The replacement of an old flag; a config type lists its own by old name in OLD_NAMES."""

    now: str | None  # the flag's new name; None: it has no effect any more
    why: str = ""  # the reason why it has no effect


def differences(config: Any, recorded: dict[str, Any]) -> list[str]:
    """Return `--name=now (was before)` for each flag whose value differs from the recorded one.

    Flags marked `own` are left out, and so are flags that were not recorded. Values that are
    written alike do not differ: the text "inf" of a flag is recorded as an infinity is.
    """
    changes = []
    for f in dataclasses.fields(config):
        now = getattr(config, f.name)
        before = now if info(f).own else recorded.get(f.name, now)
        if before != now and f"{before}" != f"{now}":
            changes.append(f"--{f.name}={format_value(now)} (was {format_value(before)})")
    return changes


def changed(before: Any, after: Any, names: Sequence[str]) -> list[str]:
    """Return those of the flags `names` that both configs have, with different values."""
    names = [name for name in names if hasattr(before, name)]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def arguments(config: Any, names: Sequence[str]) -> list[str]:
    """Return the command-line arguments that give these fields of `config` their values."""
    return [f"--{name}={format_value(getattr(config, name))}" for name in names]


def format_value(value: Any) -> str:
    """Return a value in the format of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, names: Any, value: str = "") -> str:
    """Return what another trainer's flag is here, the most similar name, or a way to search."""
    if ours := peer_names.here(name, value):
        return ours
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
    return f"; did you mean --{close[0]}?" if close else " (`--help=WORD` searches them)"


_raises = contextvars.ContextVar("whether `refuse` raises BadSettings", default=False)


@contextlib.contextmanager
def refusals_raised() -> Iterator[None]:
    """Let `refuse` raise its error instead of ending the program: for callers in Python."""
    token = _raises.set(True)
    try:
        yield
    finally:
        _raises.reset(token)


def refuse(sentence: str, error: type[ImpalaError] = BadSettings) -> NoReturn:
    """Print the error and end the program with exit code 2, because of the user's input."""
    if _raises.get():
        raise error(sentence)
    print(f"error: {escape(sentence)}", file=sys.stderr)
    sys.exit(2)


def warn(sentence: str) -> None:
    """Print a warning about the user's input."""
    print(f"warning: {escape(sentence)}", file=sys.stderr, flush=True)
