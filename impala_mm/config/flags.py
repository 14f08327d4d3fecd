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
from typing import Any, NamedTuple, NoReturn

from impala_mm.config import peer_names
from impala_mm.config.errors import BadSettings, ImpalaError
from impala_mm.config.printable import escape

AUTO = -1


def flag(
    default: Any,
    text: str,
    *,
    group: str,
    choices: Sequence[str] = (),
    least: float = -math.inf,
    most: float = math.inf,
    infinite: bool = False,
    own: bool = False,
    learner_only: bool = False,
    auto: bool = False,
    bare: str = "",
    parse: Callable[[str], Any] | None = None,
    rewrite: Callable[[str], str] | None = None,
) -> Any:
    """Return a dataclass field that is a flag; `text` states its effect and its unit for --help.

    `group` is the heading of --help under which the flag is listed. `choices` are the only values
    that a text may have. `least` and `most` are the smallest and largest value of a number.
    `infinite` means that the number may be infinite, as that of a limit may; if the default is, the
    number may be, too. `own` means that the learners of a run may have different values.
    `learner_only` means that actors may have other values than their learner: it is for an
    algorithm's own flags, of which actors must have the same values otherwise. `auto` means that
    the number, or truth value, may also be given as `auto`, which is stored as AUTO; the code that
    uses it then chooses a value.
    `bare` is the value of a text whose flag is given without one; --noNAME unsets it.
    `parse` raises a ValueError that says what a text must be; the field keeps the text. `rewrite`
    does, too, and returns the text in the form in which the field keeps it.
    """
    metadata = {"text": text, "group": group, "choices": choices, "least": least, "most": most}
    metadata["infinite"] = infinite or default in (math.inf, -math.inf)
    metadata |= {"own": own, "learner_only": learner_only, "auto": auto, "bare": bare}
    metadata |= {"parse": parse, "rewrite": rewrite}
    return dataclasses.field(default=default, metadata=metadata)


def default(config: type, name: str, value: Any) -> Any:
    """Return a dataclass field: the flag `name` of `config` with another default.

    A subclass of `config` declares it again: `batch_size: int = default(Config, "batch_size", 32)`.
    """
    known = {f.name: f for f in dataclasses.fields(config)}
    if name not in known:
        raise ValueError(f"{config.__name__} has no flag {name}{nearest(name, known)}")
    return dataclasses.field(default=value, metadata=known[name].metadata)


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
    found = []
    for f in dataclasses.fields(config):
        now = getattr(config, f.name)
        before = now if f.metadata["own"] else recorded.get(f.name, now)
        if before != now and f"{before}" != f"{now}":
            found.append(f"--{f.name}={format_value(now)} (was {format_value(before)})")
    return found


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


def nearest(name: str, names: Any) -> str:
    """Return what another trainer's flag is here, the most similar name, or a way to search."""
    if ours := peer_names.here(name):
        return f"; here it is {ours}"
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
