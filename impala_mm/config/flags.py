"""Settings, each defined once: a field of a frozen dataclass is a flag, its default and its help.

    @dataclasses.dataclass(frozen=True)
    class Config:
        batch_size: int = flag(32, "Unrolls per learner and update.", group="Training", least=1)

    config, given = parse(sys.argv, "what the program does", Config)

Both programs parse with this module, so that the frontend accepts every training flag and forwards
those that were given, without a second definition. Built on absl's flags: `--flagfile`, `--noname`
for booleans. Imports no TensorFlow: the frontend starts in a blink.
"""

import dataclasses
import difflib
import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from absl import flags as absl_flags

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
    auto: bool = False,
) -> Any:
    """A dataclass field that is a flag; `text` says its unit and effect.

    `group`: the heading of --help that it stands under. `least`, `most`: of a number, both allowed.
    `own`: each learner of a run may have another value. `auto`: a number that may be `auto`, too,
    which is AUTO: whoever needs it chooses.
    """
    metadata = {"text": text, "group": group, "choices": choices, "least": least, "most": most}
    metadata |= {"own": own, "auto": auto}
    return dataclasses.field(default=default, metadata=metadata)


class OldName(NamedTuple):
    """A flag as it was called once. A config type lists its own in OLD_NAMES, by name."""

    now: str | None  # what it is called now; None: it has no effect
    why: str = ""


def differences(config: Any, recorded: dict[str, Any]) -> list[str]:
    """`--name=now (was before)` for each flag of the run, not of a process, that was recorded."""
    return [
        f"--{f.name}={getattr(config, f.name)} (was {recorded[f.name]})"
        for f in dataclasses.fields(config)
        if not f.metadata["own"] and recorded.get(f.name, now := getattr(config, f.name)) != now
    ]


def parse(argv: Sequence[str], about: str, *configs: type) -> tuple[tuple[Any, ...], list[str]]:
    """Reads `argv` into one object per config type, and the names of the flags that were given.

    A mistake ends the program with exit code 2 and one sentence; `--help` prints and ends it.
    """
    fields = {f.name: f for config in configs for f in dataclasses.fields(config)}
    old = {n: o for config in configs for n, o in getattr(config, "OLD_NAMES", {}).items()}
    if any(argument in {"--help", "-help", "-h", "--helpfull"} for argument in argv[1:]):
        print(_help(argv[0], about, fields.values(), old))
        sys.exit(0)
    values = absl_flags.FlagValues()
    for f in fields.values():
        _define(f, values)
    for name, was in old.items():
        _define_old(name, was, values)
    try:
        rest = values(argv)[1:]
    except absl_flags.UnrecognizedFlagError as error:
        refuse(f"there is no flag --{error.flagname}{nearest(error.flagname, fields)}")
    except absl_flags.Error as error:
        refuse(str(error).replace("\n", " "))
    except OSError as error:
        refuse(f"--flagfile: {error}")
    if rest:
        refuse(f"{rest[0]!r} is no flag: write --name=value (`--help` lists the names)")
    for name, f in fields.items():
        _check(name, values[name].value, f)
    for name, was in old.items():
        if values[name].present:
            print(f"note: {_old_name(name, was)}", file=sys.stderr)
    objects = tuple(
        config(**{f.name: _value(values[f.name], f) for f in dataclasses.fields(config)})
        for config in configs
    )
    return objects, [name for name in fields if values[name].present]


def arguments(config: Any, names: Sequence[str]) -> list[str]:
    """Return the command-line arguments that give these fields of `config` their values."""
    return [f"--{name}={format_value(getattr(config, name))}" for name in names]


def format_value(value: Any) -> str:
    """Return a value in the format of the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, names: Any) -> str:
    """ ", did you mean X?", or nothing where no name is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else " (`--help` lists them)"


def refuse(sentence: str) -> NoReturn:
    """Ends the program because of the user's input."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def _define_old(name: str, old: OldName, values: absl_flags.FlagValues) -> None:
    if old.now:
        absl_flags.DEFINE_alias(name, old.now, values)
    else:
        absl_flags.DEFINE_string(name, None, "", values)


def _old_name(name: str, old: OldName) -> str:
    """What is said of it."""
    if old.now:
        return f"--{name} is an old name of --{old.now}"
    return f"--{name} is an old flag without effect: {old.why}"


class _Parser(absl_flags.ArgumentParser):
    """A value of one type, refused in our words."""

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


def _define(f: dataclasses.Field, values: absl_flags.FlagValues) -> None:
    default: Any = f.default
    if f.type == tuple[str, ...]:
        absl_flags.DEFINE_multi_string(f.name, [], f.metadata["text"], values)
    elif f.type is bool:
        absl_flags.DEFINE_boolean(f.name, default, f.metadata["text"], flag_values=values)
    else:
        assert isinstance(f.type, type)
        parser = _Parser(f.type, f.metadata["auto"])
        absl_flags.DEFINE(parser, f.name, default, f.metadata["text"], values)


def _value(found: absl_flags.Flag, f: dataclasses.Field) -> Any:
    """A flag that may be repeated is a tuple of its values."""
    return tuple(found.value or ()) if f.type == tuple[str, ...] else found.value


def _check(name: str, value: Any, f: dataclasses.Field) -> None:
    choices, least, most = (f.metadata[key] for key in ("choices", "least", "most"))
    if choices and value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        refuse(f"--{name}={value}: it must be {_or(choices)}{hint}")
    if f.metadata["auto"] and value == AUTO:
        return
    if f.type in {int, float} and not least <= value <= most:  # NaN is refused, too
        limits = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (
            most < math.inf
        )
        refuse(f"--{name}={value}: it must be {' and '.join(limits) or 'a number'}")


def _or(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _help(program: str, about: str, fields: Any, old: dict[str, OldName]) -> str:
    """Every flag, grouped, with its default."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = [about.strip(), "", f"usage: {program} [--name=value ...]"]
    group = None
    for f in fields:
        if f.metadata["group"] != group:
            group = f.metadata["group"]
            lines += ["", f"{group}:"]
        choices = f" Choices: {', '.join(f.metadata['choices'])}." if f.metadata["choices"] else ""
        default = str(f.default).lower() if f.type is bool else repr(f.default)
        default = "none" if f.default == () else default
        default = "auto" if f.metadata["auto"] and f.default == AUTO else default
        lines.append(f"  --{f.name}")
        wrapped = textwrap.wrap(f"{f.metadata['text']}{choices} Default: {default}.", width - 6)
        lines += [f"      {line}" for line in wrapped]
    lines += ["", "Also --flagfile=PATH: flags from a file, one per line."]
    lines += [f"{_old_name(name, was)}." for name, was in old.items()]
    return "\n".join(lines)
