"""The command line: makes objects of config types, whose fields are flags, from what was typed.

    (config,), given = parse(sys.argv, "what the program does", Config)

Both programs parse their command line with this module, so the frontend accepts every training flag
and forwards those that were given, without a second definition. It does not import TensorFlow,
which takes seconds to load.

    --name=value    --name value    --name and --noname for true and false
    --flagfile=PATH    the lines of a file in its place; those that begin with # or // are comments
"""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import (
    flag_values,
    flags,
    help_page,
    messages,
    setting_files,
    user_modules,
)
from impala_mm.config.errors import BadSettings
from impala_mm.config.flags import AUTO, OldName, nearest, refuse
from impala_mm.config.setting_files import Sourced

_FILE = "experiment"  # the frontend's flag that names a file of settings, too
_HELP = {"--help", "-help", "-h", "--helpfull"}
# Flags by all their names; None: an old one without effect.
_Known = Mapping[str, dataclasses.Field | None]
_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def escape_unknown_characters() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if it is closed
            stream.reconfigure(errors="backslashreplace")


def parse(argv: Sequence[str], about: str, *configs: type) -> tuple[tuple[Any, ...], list[str]]:
    """Parse `argv`; return an object of each config type, and the names of the flags given.

    A config type may have two methods: `of_arguments(peek)` returns the subclass that replaces it,
    and `of_all_algorithms()` the flags of other subclasses, with the algorithms that have them.
    NOT_TAKEN has flags of other types that it refuses. A method `__post_init__` may compare flags
    with each other: it raises a ValueError with the error. So does `refuse_typed`, about values
    that a recorded run may have. If it has the flags `preset` and `config`, the
    flags in these files count as given.

    A mistake in the flags ends the program with exit code 2 and a one-line error, or a line for
    each flag that does not exist. `--help` prints `about` and flags (`help_page`), `--show_config`
    their values, and both end the program with exit code 0.
    """
    escape_unknown_characters()
    argv = [argv[0], *_with_files(argv[1:])]
    read = _read_files(argv, configs)
    extended = [argv[0], *_as_arguments(read), *argv[1:]]
    _import_modules(extended, configs)
    bases = configs
    configs = tuple(
        getattr(c, "of_arguments", lambda _, c=c: c)(functools.partial(peek, extended, c))
        for c in configs
    )
    read = _without_idle_phase(read, extended, configs)
    fields = _all_fields(configs)
    not_taken = {name for config in configs for name in getattr(config, "NOT_TAKEN", ())}
    shown = [f for name, f in fields.items() if name not in {*not_taken, "origins"}]
    old = {n: o for config in configs for n, o in getattr(config, "OLD_NAMES", {}).items()}

    def of_other_algorithms() -> dict[str, Any]:
        """Return the flags that other algorithms have, and these algorithms, by name."""
        return {
            name: flag_and_algorithms
            for config in configs
            for name, flag_and_algorithms in getattr(config, "of_all_algorithms", dict)().items()
            if name not in fields
        }

    _print_help(argv, about, shown, old, of_other_algorithms, _all_fields(bases).values())
    # The names of flags by other names that they have; None: an old flag without effect.
    names: dict[str, str | None] = {
        other: name
        for config in configs
        for other, name in getattr(config, "ALIASES", {}).items()
        if other not in fields  # an algorithm may have a flag of this name
    }
    names |= {name: was.now for name, was in old.items()}
    known = fields | {other: fields.get(now or "") for other, now in names.items()}
    typed = list(_pairs(argv[1:], known))
    of_user = _read_typed(typed, known)
    values = {name: _converted(f.default, f) for name, f in fields.items()} | of_user

    def why_unknown(name: str, value: str = "") -> str:
        what, others = nearest(name, fields, value), of_other_algorithms()
        if name in others:
            what = f" of --algorithm={values['algorithm']}; --algorithm={others[name][1][0]} has it"
        return f"there is no flag --{name}{what}"

    _refuse_unknown(typed, known, why_unknown)
    sources = {name: setting_files.COMMAND_LINE for name in fields if name in of_user}
    for name, setting in _with_new_names(read, names).items():
        if name not in fields and not setting.is_recorded:
            refuse(f"{setting.source}: {why_unknown(name)}")
        if name not in sources and _counts(name, setting, fields):
            values[name] = _value_of_file(setting, fields[name])
            sources[name] = setting.source
    for name, f in fields.items():
        if mistake := flag_values.why_wrong(values[name], f):
            source = sources.get(name, setting_files.COMMAND_LINE)
            where = "" if source == setting_files.COMMAND_LINE else f"{source}: "
            refuse(f"{where}--{name}={values[name]}: {mistake}")
    for name in filter({*read, *dict(typed)}.__contains__, old):
        print(f"note: {help_page.old_name(name, old[name])}", file=sys.stderr)
    _note_what_is_left_out(read, fields, {*sources, *not_taken})
    passed_on = {n: s for n, s in sources.items() if flags.info(fields[n]).scope != "command"}
    if "origins" in fields and "origins" not in of_user:
        values["origins"] = json.dumps(setting_files.by_source(passed_on))
    objects = _make_all(configs, values)
    if "show_config" in fields and values["show_config"]:
        files = map(setting_files.show, objects, bases, itertools.repeat(sources))
        _print_and_exit("\n\n".join(files))
    given = [name for name in fields if name in passed_on]
    return objects, given + ["origins"] * bool(read)


def parse_settings(settings: Mapping[str, Any], config: type) -> tuple[Any, list[str]]:
    """Return the config that settings from Python make, and their names; raise BadSettings.

    They are checked as on the command line.
    """
    for name in settings:
        if f"--{name}" in _HELP or name == "show_config":  # they print and end the program
            raise BadSettings(f"{name} is only for the command line: leave it out")
    with flags.refusals_raised():
        user_modules.refuse_foreign()
        (made,), given = parse(["", *setting_files.to_arguments(settings)], "", config)
    return made, given


def _make_all(configs: Sequence[type], values: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        objects = tuple(
            config(**{f.name: _rewritten(values[f.name], f) for f in dataclasses.fields(config)})
            for config in configs
        )
        for made in objects:
            getattr(made, "refuse_typed", lambda: None)()
    except ValueError as error:  # about flags that do not fit together
        refuse(str(error))
    return objects


def _print_help(
    argv: Sequence[str],
    about: str,
    shown: Sequence[dataclasses.Field],
    old: dict[str, OldName],
    of_other_algorithms: Callable[[], dict[str, Any]],
    shared: Iterable[dataclasses.Field],
) -> None:
    """Print a page of --help, and exit, if one is asked for; `shared`: flags of all algorithms."""
    program = messages.program("run_experiment" in Path(argv[0]).name)
    for option, _, words in (argument.partition("=") for argument in argv[1:]):
        if option not in _HELP:
            continue
        if words == "all" or option == "--helpfull":
            text = help_page.whole(program, about, shown, old)
        elif words:
            text = help_page.about_words(words, shown, of_other_algorithms())
        elif "algorithm" in _named(argv):
            text = help_page.of_algorithm(shown, shared)
        else:
            text = help_page.first(program, about, shown)
        _print_and_exit(text)


def _print_and_exit(text: str) -> NoReturn:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(0)


def _with_files(arguments: Iterable[str], within: Sequence[str] = ()) -> list[str]:
    """Return arguments with the lines of its file in place of each --flagfile; refuse a bad one.

    `within`: the files that contain these arguments.
    """
    found, waiting = list[str](), iter(arguments)
    for argument in waiting:
        name, equals, path = argument.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            found.append(argument)
            continue
        path = os.path.expanduser(path if equals else next(waiting, ""))
        if not path:
            refuse(f"{name} names no file: write {name}=PATH")
        if path in within:
            refuse(f"--flagfile={path} is in that file itself")
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except OSError as error:
            refuse(f"--flagfile={path}: {error.strerror}")
        except UnicodeDecodeError:
            refuse(f"--flagfile={path} is no text in UTF-8")
        typed = [line for line in map(str.strip, lines) if not line.startswith(("#", "//"))]
        found += _with_files(filter(None, typed), (*within, path))
    return found


def _pairs(arguments: Iterable[str], known: _Known) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each flag in arguments; what is no flag has no name.

    A flag of `known` that lacks the value that it needs is refused.
    """
    waiting = collections.deque(arguments)
    while waiting:
        argument = waiting.popleft()
        if argument == "--":
            continue
        name, equals, text = argument.removeprefix("-").removeprefix("-").partition("=")
        opposite = name.removeprefix("no")
        if not (name and argument.startswith("-")):
            name, text = "", argument
        elif equals:
            pass
        elif _may_be_bare(known.get(name)):
            text = "true"
        elif name not in known and _may_be_bare(known.get(opposite)):
            name, text = opposite, "false"
        elif waiting and (name in known or not waiting[0].startswith("-")):
            text = waiting.popleft()
        elif name in known:
            refuse(f"{argument} has no value: write --{name}=VALUE")
        yield name, text


def _read_typed(typed: Iterable[tuple[str, str]], known: _Known) -> dict[str, Any]:
    """Return the values of the flags typed; of one that is typed again, the last."""
    values: dict[str, Any] = {}
    for name, text in typed:
        if f := known.get(name):
            try:
                value = _converted(text, f)
            except ValueError as error:
                refuse(f"flag --{f.name}={text}: {error}")
            is_repeated = isinstance(value, tuple)
            values[f.name] = (*values.get(f.name, ()), *value) if is_repeated else value
    return values


def _refuse_unknown(
    typed: Iterable[tuple[str, str]], known: _Known, why_unknown: Callable[[str, str], str]
) -> None:
    """Refuse flags that do not exist, each in a line, and arguments that are no flags."""
    if unknown := {name: text for name, text in typed if name and name not in known}:
        refuse("\nerror: ".join(itertools.starmap(why_unknown, unknown.items())))
    if rest := [text for name, text in typed if not name]:
        refuse(f"{rest[0]!r} is no flag: write --name=value (`--help=all` lists the flags)")


def _read_files(argv: Sequence[str], configs: Sequence[type]) -> dict[str, Sourced]:
    """Return the settings in the files that the command line names, by the names of flags."""
    for config in configs:
        if hasattr(config, "preset"):
            named = _named(argv)
            preset, mode, quick = (
                peek(argv, config, name) if named & {name, f"no{name}"} else None
                for name in ("preset", "mode", "quick")
            )
            scopes = {name: details.scope for name, details in flags.infos(config).items()}
            experiment = next((peek(argv, c, _FILE) for c in configs if hasattr(c, _FILE)), "")
            read = setting_files.read(preset, peek(argv, config, "config"), scopes, experiment)
            return setting_files.of_mode(read, mode, quick)
    return {}


def _as_arguments(read: Mapping[str, Sourced]) -> list[str]:
    """Return settings from files as arguments, for `peek`; `parse` refuses wrong ones."""
    arguments = []
    for name, setting in read.items():
        with contextlib.suppress(ValueError):
            arguments.append(f"--{name}={setting_files.to_text(setting.value)}")
    return arguments


def _import_modules(argv: Sequence[str], configs: Sequence[type]) -> None:
    """Import the modules of --import, which may add what other flags name."""
    for config in configs:
        if hasattr(config, "imports"):
            try:
                user_modules.import_all(peek(argv, config, "imports"))
            except user_modules.BadModule as error:
                user_modules.show_cause(error)
                refuse(str(error))


def _named(argv: Sequence[str]) -> set[str]:
    """Return the names of the flags that are typed."""
    return {argument.lstrip("-").split("=")[0] for argument in argv[1:]}


def _without_idle_phase(
    read: dict[str, Sourced], argv: Sequence[str], configs: Sequence[type[Any]]
) -> dict[str, Sourced]:
    """Return settings from files without the offline updates of a mode that learn from nothing."""
    added = read.get("offline_updates")
    for config in configs:
        if added and added.source in setting_files.OF_MODES and hasattr(config, "teacher"):
            cost = peek(argv, config, "teacher_cost") != "0.0"
            games = peek(argv, config, "teacher") or peek(argv, config, "teacher_data")
            if not (games and (cost or config.learns_from_any_policy)):
                return {
                    name: setting for name, setting in read.items() if name != "offline_updates"
                }
    return read


def _with_new_names(
    read: Mapping[str, Sourced], names: Mapping[str, str | None]
) -> dict[str, Sourced]:
    """Return settings from files by the flags' own names; `names` has other names of flags."""
    renamed = {names[name]: value for name, value in read.items() if name in names}
    kept = {name: value for name, value in read.items() if name not in names}
    return {name: value for name, value in renamed.items() if name} | kept


def _counts(name: str, setting: Sourced, fields: Mapping[str, Any]) -> bool:
    """Return whether a value from a file counts: of a run's record, not what is a process's own."""
    if not setting.is_recorded:
        return True
    if name not in fields:
        refuse(
            f"{setting.source}: there is no flag --{name} here: another version of this program "
            f"recorded it, or another algorithm"
        )
    return not flags.info(fields[name]).own


def _note_what_is_left_out(
    read: Mapping[str, Sourced], fields: Mapping[str, Any], counted: Set[str]
) -> None:
    """Print what the user of a recorded run had given and does not count here, but `counted`."""
    left_out = [
        f"--{name}={shlex.quote(setting_files.to_text(setting.value))}"
        for name, setting in read.items()
        if setting.is_given and name in fields and name not in counted
        if setting.value != fields[name].default
    ]
    if left_out:
        source = next(setting.source for setting in read.values() if setting.is_given)
        print(
            f"note: --config={source} leaves out what belongs to a process or machine; repeat it "
            f"if it shall hold here: {' '.join(left_out)}",
            file=sys.stderr,
        )


def _value_of_file(setting: Sourced, f: dataclasses.Field) -> Any:
    """Return the value that a file gives to a flag; refuse one of the wrong kind."""
    is_repeated = f.type == tuple[str, ...]
    try:
        return _converted(setting.value if is_repeated else setting_files.to_text(setting.value), f)
    except (ValueError, TypeError) as error:
        refuse(f"{setting.source}: {f.name} = {setting.value!r}: {error}")


def peek(argv: Sequence[str], config: type, name: str) -> str:
    """Return the text of one flag of `config`, before it is known which other flags there are."""
    (f,) = [f for f in dataclasses.fields(config) if f.name == name]
    aliases = [other for other, of in getattr(config, "ALIASES", {}).items() if of == name]
    known, value = dict.fromkeys([name, *aliases], f), _converted(f.default, f)
    for other, text in _pairs(argv[1:], known):
        with contextlib.suppress(ValueError):  # `parse` refuses it
            value = _converted(text, f) if other in known else value
    return str(value)


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


def _may_be_bare(f: dataclasses.Field | None) -> bool:
    """Return whether a flag may be typed as --name and --noname, without a value."""
    return f is not None and (f.type is bool or bool(flags.info(f).bare))


def _converted(value: Any, f: dataclasses.Field) -> Any:
    """Return a flag's text, or default, as its type; raise a ValueError that says what it must be.

    A text of a flag that may be repeated is a tuple of one, and a list of them of all.
    """
    kind: Any = f.type
    details = flags.info(f)
    if kind == tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)
    if details.auto and value in ("auto", AUTO, *[f"{AUTO}"] * (kind is bool)):
        return AUTO
    if details.bare:
        return {"true": details.bare, "false": ""}.get(value.lower(), value)
    try:
        return _TRUTHS[str(value).lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        kinds = flag_values.KINDS[kind] + (" or auto" if details.auto else "")
        raise ValueError(f"needs {kinds}") from None


def _rewritten(value: Any, f: dataclasses.Field) -> Any:
    """Return a flag's value in the form in which its field keeps it."""
    if rewrite := flags.info(f).rewrite:
        try:
            return rewrite(value)
        except ValueError as error:
            refuse(f"--{f.name}={value}: {error}")
    return value
