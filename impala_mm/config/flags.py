"""Command-line flags, each defined once: a field of a frozen dataclass is a flag with its help.

    @dataclasses.dataclass(frozen=True)
    class Config:
        batch_size: int = flag(32, "Unrolls per learner and update.", group="Training", least=1)

    config, given = parse(sys.argv, "what the program does", Config)

Both programs parse their command line with this module, so the frontend accepts every training flag
and forwards those that were given, without a second definition. It is built on absl's flags, which
add `--flagfile` and `--noname` for booleans. It does not import TensorFlow, which takes seconds to
load.
"""

import contextlib
import dataclasses
import difflib
import io
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from absl import flags as absl_flags

from impala_mm.config.printable import escape

AUTO = -1
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def flag(
    default: Any,
    text: str,
    *,
    group: str,
    choices: Sequence[str] = (),
    least: float = -math.inf,
    most: float = math.inf,
    own: bool = False,
    learner_only: bool = False,
    auto: bool = False,
    parse: Callable[[str], Any] | None = None,
    rewrite: Callable[[str], str] | None = None,
) -> Any:
    """Return a dataclass field that is a flag; `text` states its effect and its unit for --help.

    `group` is the heading of --help under which the flag is listed. `choices` are the only values
    that a text may have. `least` and `most` are the smallest and largest value of a number. `own`
    means that the learners of a run may have different values. `learner_only` means that actors may
    have other values than their learner: it is for an algorithm's own flags, of which actors must
    have the same values otherwise. `auto` means that the number, or truth value, may also be given
    as `auto`, which is stored as AUTO; the code that uses it then chooses a value.
    `parse` raises a ValueError that says what a text must be; the field keeps the text. `rewrite`
    does, too, and returns the text in the form in which the field keeps it.
    """
    metadata = {"text": text, "group": group, "choices": choices, "least": least, "most": most}
    metadata |= {"own": own, "learner_only": learner_only, "auto": auto}
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


def escape_unknown_characters() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if it is closed
            stream.reconfigure(errors="backslashreplace")


def parse(argv: Sequence[str], about: str, *configs: type) -> tuple[tuple[Any, ...], list[str]]:
    """Parse `argv`; return an object of each config type, and the names of the flags given.

    A config type may have two methods: `of_arguments(argv)` returns the subclass that replaces it,
    and `elsewhere(name, argv)` tells which of its other subclasses has an unknown flag. A method
    `__post_init__` may compare flags with each other: it raises a ValueError with the error.

    A mistake in the flags ends the program with exit code 2 and a one-line error. `--help` prints
    `about` and all flags, and ends the program with exit code 0.
    """
    escape_unknown_characters()
    configs = tuple(getattr(c, "of_arguments", lambda _, c=c: c)(argv) for c in configs)
    fields = _all_fields(configs)
    old = {n: o for config in configs for n, o in getattr(config, "OLD_NAMES", {}).items()}
    if any(argument in {"--help", "-help", "-h", "--helpfull"} for argument in argv[1:]):
        try:
            print(_help(argv[0], about, fields.values(), old), flush=True)
        except BrokenPipeError:  # the reader has seen enough, as in `--help | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    values = absl_flags.FlagValues()
    for f in fields.values():
        _define(f, values)
    for name, was in old.items():
        _define_old(name, was, values)
    try:
        rest = values(argv)[1:]
    except absl_flags.UnrecognizedFlagError as error:
        name = error.flagname
        known = [c.elsewhere(name, argv) for c in configs if hasattr(c, "elsewhere")]
        refuse(f"there is no flag --{name}{''.join(known) or nearest(name, fields)}")
    except absl_flags.Error as error:
        refuse(str(error).replace("\n", " "))
    except OSError as error:
        refuse(f"--flagfile: {error}")
    if rest:
        refuse(f"{rest[0]!r} is no flag: write --name=value (`--help` lists the flags)")
    for name, f in fields.items():
        _check(name, values[name].value, f)
    for name, was in old.items():
        if values[name].present:
            print(f"note: {_old_name(name, was)}", file=sys.stderr)
    try:
        objects = tuple(
            config(**{f.name: _value(values[f.name], f) for f in dataclasses.fields(config)})
            for config in configs
        )
    except ValueError as error:  # from a method __post_init__, which compares flags
        refuse(str(error))
    return objects, [name for name in fields if values[name].present]


def peek(argv: Sequence[str], config: type, name: str) -> str:
    """Return the text of one flag of `config`, before it is known which other flags there are."""
    (field,) = [f for f in dataclasses.fields(config) if f.name == name]
    values = absl_flags.FlagValues()
    values.set_gnu_getopt(True)  # values that follow unknown flags do not end the search
    _define(field, values)
    with contextlib.suppress(absl_flags.Error, OSError):  # `parse` refuses these arguments
        values(argv, known_only=True)
    return str(values[name].value)


def _all_fields(configs: Sequence[type]) -> dict[str, dataclasses.Field]:
    """Return the fields of all config types by name; refuse a name that two of them have."""
    fields: dict[str, dataclasses.Field] = {}
    for config in configs:
        for f in dataclasses.fields(config):
            if f.name in fields:
                refuse(
                    f"{config.__module__}.{config.__name__} has the flag --{f.name}, but this "
                    f"program has another flag of that name: rename it"
                )
            fields[f.name] = f
    return fields


def arguments(config: Any, names: Sequence[str]) -> list[str]:
    """Return the command-line arguments that give these fields of `config` their values."""
    return [f"--{name}={format_value(getattr(config, name))}" for name in names]


def format_value(value: Any) -> str:
    """Return a value in the format of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, names: Any) -> str:
    """Return "; did you mean --X?" for the most similar name, or a reference to --help."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else " (`--help` lists them)"


def refuse(sentence: str) -> NoReturn:
    """Print the error and end the program with exit code 2, because of the user's input."""
    print(f"error: {escape(sentence)}", file=sys.stderr)
    sys.exit(2)


def warn(sentence: str) -> None:
    """Print a warning about the user's input."""
    print(f"warning: {escape(sentence)}", file=sys.stderr, flush=True)


def _define_old(name: str, old: OldName, values: absl_flags.FlagValues) -> None:
    if old.now:
        absl_flags.DEFINE_alias(name, old.now, values)
    else:
        absl_flags.DEFINE_string(name, None, "", values)


def _old_name(name: str, old: OldName) -> str:
    """Return the note that is printed when an old flag is given."""
    if old.now:
        return f"--{name} is an old name of --{old.now}"
    return f"--{name} is an old flag without effect: {old.why}"


class _Parser(absl_flags.ArgumentParser):
    """A parser for flags of one type, with error messages in the style of the other flags."""

    def __init__(self, kind: type, auto: bool):
        self._kind, self._auto = kind, auto

    def parse(self, argument: Any) -> Any:
        if self._auto and argument == "auto":
            return AUTO
        try:
            return argument if argument is None else self._kind(argument)
        except ValueError:
            kinds = _KINDS[self._kind] + (" or auto" if self._auto else "")
            raise ValueError(f"needs {kinds}") from None

    def flag_type(self) -> str:
        return self._kind.__name__


class _BooleanOrAuto(absl_flags.BooleanParser):
    """A parser for flags that are true, false or auto."""

    def parse(self, argument: Any) -> Any:
        return AUTO if argument in {"auto", AUTO, f"{AUTO}"} else super().parse(argument)


def _define(f: dataclasses.Field, values: absl_flags.FlagValues) -> None:
    default: Any = f.default
    if f.type == tuple[str, ...]:
        absl_flags.DEFINE_multi_string(f.name, [], f.metadata["text"], values)
    elif f.type is bool and f.metadata["auto"]:
        kind, text = absl_flags.ArgumentSerializer[Any](), f.metadata["text"]
        made = absl_flags.Flag(_BooleanOrAuto(), kind, f.name, default, text, boolean=True)
        absl_flags.DEFINE_flag(made, values)
    elif f.type is bool:
        absl_flags.DEFINE_boolean(f.name, default, f.metadata["text"], flag_values=values)
    else:
        assert isinstance(f.type, type)
        parser = _Parser(f.type, f.metadata["auto"])
        absl_flags.DEFINE(parser, f.name, default, f.metadata["text"], values)


def _value(found: absl_flags.Flag, f: dataclasses.Field) -> Any:
    """Return the flag's value; for a flag that may be repeated, a tuple of its values."""
    if rewrite := f.metadata["rewrite"]:
        try:
            return rewrite(found.value)
        except ValueError as error:
            refuse(f"--{f.name}={found.value}: {error}")
    return tuple(found.value or ()) if f.type == tuple[str, ...] else found.value


def _check(name: str, value: Any, f: dataclasses.Field) -> None:
    choices, least, most = (f.metadata[key] for key in ("choices", "least", "most"))
    if f.type is str and value != value.encode(errors="replace").decode():
        refuse(f"--{name}={value}: it contains bytes that are not UTF-8, which TensorFlow needs")
    if choices and value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        refuse(f"--{name}={value}: it must be {_or(_shown(choices))}{hint}")
    if f.metadata["parse"]:
        try:
            f.metadata["parse"](value)
        except ValueError as error:
            refuse(f"--{name}={value}: {error}")
    if f.metadata["auto"] and value == AUTO:
        return
    if f.type in {int, float} and not least <= value <= most:  # NaN is refused, too
        limits = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (
            most < math.inf
        )
        refuse(f"--{name}={value}: it must be {' and '.join(limits) or 'a number'}")


def _shown(choices: Sequence[str]) -> list[str]:
    """Return the choices that a user types; the empty one stands for an unset flag."""
    return [choice for choice in choices if choice]


def _or(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _help(program: str, about: str, fields: Any, old: dict[str, OldName]) -> str:
    """Return the help page: every flag by group, with its text, choices and default."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = [about.strip(), "", f"usage: {program} [--name=value ...]"]
    group = None
    for f in fields:
        if f.metadata["group"] != group:
            group = f.metadata["group"]
            lines += ["", f"{group}:"]
        choices = f.metadata["choices"]
        choices = f" Choices: {', '.join(_shown(choices))}." if choices else ""
        default = str(f.default).lower() if f.type is bool else repr(f.default)
        default = "unset" if f.default in {"", ()} else default
        default = "auto" if f.metadata["auto"] and f.default == AUTO else default
        lines.append(f"  --{f.name}")
        lines += _wrap(f"{f.metadata['text']}{choices} Default: {default}.", width, indent=6)
    lines += ["", "--flagfile=PATH reads more flags from a file, one on each line.", ""]
    for name, was in old.items():
        lines += _wrap(f"{_old_name(name, was)}.", width)
    return "\n".join(lines)


def _wrap(text: str, width: int, indent: int = 0) -> list[str]:
    spaces = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=spaces, subsequent_indent=spaces, break_on_hyphens=False
    )
