"""The command line: makes objects of config types, whose fields are flags, from what was typed.

    (config,), given = parse(sys.argv, "what the program does", Config)

Both programs parse their command line with this module, so the frontend accepts every training flag
and forwards those that were given, without a second definition. It does not import TensorFlow,
which takes seconds to load.

    --name=value    --name value    --name and --noname for true and false
    --flagfile=PATH    the lines of a file in its place; those that begin with # or // are comments

The words are read twice: first as the flags that all algorithms have, among which are the files of
settings, the modules to import and the algorithm. These decide which flags there are.
"""

import collections
import dataclasses
import io
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import (
    algorithm_settings,
    flag_values,
    flags,
    help_page,
    messages,
    setting_files,
    user_modules,
)
from impala_mm.config.errors import BadSettings
from impala_mm.config.flags import AUTO, OldName, nearest, refuse
from impala_mm.config.setting_files import COMMAND_LINE, Sourced
from impala_mm.config.settings import Config

_HELP = {"--help", "-help", "-h", "--helpfull"}
_Pairs = Sequence[tuple[str, str | None]]  # flags as they are typed: names and texts


def escape_unknown_characters() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if it is closed
            stream.reconfigure(errors="backslashreplace")


def parse(argv: Sequence[str], about: str, *configs: type) -> tuple[tuple[Any, ...], list[str]]:
    """Parse `argv`; return an object of each config type, and the names of the flags given.

    The settings of the algorithm that is given take the place of `Config`, of which they are a
    subclass. NOT_TAKEN of a config type has flags of other types that it refuses. A method
    `__post_init__` may compare flags with each other: it raises a ValueError with the error. So
    does `refuse_typed`, about values that a recorded run may have. If it has the flags `preset` and
    `config`, the flags in these files count as given.

    A mistake in the flags ends the program with exit code 2 and a one-line error, or a line for
    each flag that does not exist. `--help` prints `about` and flags (`help_page`), `--show_config`
    their values, and both end the program with exit code 0.
    """
    escape_unknown_characters()
    words = _with_files(argv[1:])
    shared = _Flags(configs)
    typed = shared.texts(words)
    read = setting_files.read(typed, shared.fields) if "preset" in shared.fields else {}
    # Of the flags that all algorithms have, as they would be typed.
    texts = {name: str(f.default) for name, f in shared.fields.items()}
    texts |= setting_files.texts(shared.by_own_names(read)) | typed
    if "imports" in texts:
        _import_modules(texts["imports"])
    types: list[Any] = [
        algorithm_settings.of_arguments(texts.__getitem__, each)
        if issubclass(each, Config)
        else each
        for each in configs
    ]
    known = _Flags(types, texts.get("algorithm", ""))
    _print_help(argv[0], words, about, known, shared, "algorithm" in typed)

    pairs = list(_pairs(words, known))
    of_words = _of_words(pairs, known)
    settings = _without_idle_phase(_of_files(read, known, of_words) | of_words, known)
    values = known.values(settings)
    _refuse_wrong(values, settings, known)
    for name in filter({*read, *dict(pairs)}.__contains__, known.old):
        print(f"note: {help_page.old_name(name, known.old[name])}", file=sys.stderr)
    _note_what_is_left_out(read, settings, known)

    sources = {name: settings[name].source for name in known.fields if name in settings}
    passed_on = {n: s for n, s in sources.items() if flags.info(known.fields[n]).scope != "command"}
    if "origins" in known.fields and "origins" not in settings:
        values["origins"] = json.dumps(setting_files.by_source(passed_on))
    objects = _make_all(types, values)
    if values.get("show_config"):
        shown = map(setting_files.show, objects, configs, itertools.repeat(sources))
        _print_and_exit("\n\n".join(shown))
    return objects, [*passed_on, *["origins"] * bool(read)]


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


class _Flags:
    """The flags of config types, by all names that they have."""

    def __init__(self, types: Sequence[Any], algorithm: str = "") -> None:
        self.types = types
        self.fields = _fields_of(types)
        self.old: dict[str, OldName] = {}
        self.not_taken: set[str] = set()
        names: dict[str, str | None] = {}
        for each in types:
            self.old |= getattr(each, "OLD_NAMES", {})
            self.not_taken |= set(getattr(each, "NOT_TAKEN", ()))
            names |= getattr(each, "ALIASES", {})
        names |= {name: was.now for name, was in self.old.items()}
        self.by_name: dict[str, dataclasses.Field | None] = {  # None: an old one without effect
            name: self.fields.get(now or "") for name, now in names.items()
        }
        self.by_name |= self.fields  # of which an algorithm's own may have the name of an alias
        self._algorithm = algorithm  # whose types these are; empty if none is one's

    def texts(self, words: Iterable[str]) -> dict[str, str]:
        """Return the texts typed, by the flags' own names; of one that is typed again, the last."""
        return {
            f.name: text
            for name, text in _pairs(words, self)
            if (f := self.by_name.get(name)) and text is not None
        }

    def by_own_names(self, read: Mapping[str, Sourced]) -> dict[str, Sourced]:
        """Return settings from files by the flags' own names, without those that have no effect."""
        found = {}
        for name, setting in read.items():
            f = self.by_name.get(name)
            own = f.name if f else name
            if (f or name not in self.by_name) and (own == name or own not in read):
                found[own] = setting
        return found

    def values(self, settings: Mapping[str, Sourced]) -> dict[str, Any]:
        """Return the values of all flags: those of settings, and defaults."""
        return {
            name: settings[name].value if name in settings else _converted(f.default, f)
            for name, f in self.fields.items()
        }

    def of_other_algorithms(self) -> dict[str, Any]:
        """Return the flags that other algorithms have, and these algorithms, by name."""
        if not self._algorithm:
            return {}
        found = algorithm_settings.of_all(Config)
        return {name: found[name] for name in found if name not in self.fields}

    def why_unknown(self, name: str, text: str = "") -> str:
        """Return that there is no such flag, and what there is instead."""
        what, others = nearest(name, self.fields, text), self.of_other_algorithms()
        if name in others:
            what = f" of --algorithm={self._algorithm}; --algorithm={others[name][1][0]} has it"
        return f"there is no flag --{name}{what}"


def _fields_of(types: Sequence[Any]) -> dict[str, dataclasses.Field]:
    """Return the fields of all config types by name; refuse a name that two of them have."""
    fields: dict[str, dataclasses.Field] = {}
    for config in types:
        for f in dataclasses.fields(config):
            if f.name in fields:
                refuse(
                    f"{config.__module__}.{config.__name__} has the flag --{f.name}, but this "
                    f"program has another flag of that name: rename it"
                )
            fields[f.name] = f
    return fields


def _pairs(words: Iterable[str], known: _Flags) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the text of each flag in words; what is no flag has no name.

    The text is None if a known flag lacks the value that it needs.
    """
    waiting = collections.deque(words)
    while waiting:
        word = waiting.popleft()
        if word == "--":
            continue
        text: str | None
        name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        opposite = name.removeprefix("no")
        if not (name and word.startswith("-")):
            name, text = "", word
        elif equals:
            pass
        elif _may_be_bare(known.by_name.get(name)):
            text = "true"
        elif name not in known.by_name and _may_be_bare(known.by_name.get(opposite)):
            name, text = opposite, "false"
        elif waiting and (name in known.by_name or not waiting[0].startswith("-")):
            text = waiting.popleft()
        elif name in known.by_name:
            text = None
        yield name, text


def _may_be_bare(f: dataclasses.Field | None) -> bool:
    """Return whether a flag may be typed as --name and --noname, without a value."""
    return f is not None and (f.type is bool or bool(flags.info(f).bare))


def _import_modules(modules: str) -> None:
    """Import the modules of --import, which may add what other flags name."""
    try:
        user_modules.import_all(modules)
    except user_modules.BadModule as error:
        user_modules.show_cause(error)
        refuse(str(error))


def _print_help(
    program: str,
    words: Sequence[str],
    about: str,
    known: _Flags,
    shared: _Flags,
    has_algorithm: bool,
) -> None:
    """Print a page of --help, and exit, if one is asked for; `shared`: flags of all algorithms."""
    hidden = {*known.not_taken, "origins"}
    shown = [f for name, f in known.fields.items() if name not in hidden]
    program = messages.program("run_experiment" in Path(program).name)
    for option, _, asked in (word.partition("=") for word in words):
        if option not in _HELP:
            continue
        if asked == "all" or option == "--helpfull":
            text = help_page.whole(program, about, shown, known.old)
        elif asked:
            text = help_page.about_words(asked, shown, known.of_other_algorithms())
        elif has_algorithm:
            text = help_page.of_algorithm(shown, shared.fields.values())
        else:
            text = help_page.first(program, about, shown)
        _print_and_exit(text)


def _print_and_exit(text: str) -> NoReturn:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(0)


def _of_words(pairs: _Pairs, known: _Flags) -> dict[str, Sourced]:
    """Return the settings typed; of a flag that is typed again, the last. Refuse what is no flag.

    Flags that do not exist are refused together, each in a line.
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        if text is None:
            refuse(f"--{name} has no value: write --{name}=VALUE")
        if f := known.by_name.get(name):
            try:
                value = _converted(text, f)
            except ValueError as error:
                refuse(f"flag --{f.name}={text}: {error}")
            is_repeated = isinstance(value, tuple)
            values[f.name] = (*values.get(f.name, ()), *value) if is_repeated else value
    if unknown := {name: text for name, text in pairs if name and name not in known.by_name}:
        refuse("\nerror: ".join(known.why_unknown(n, text or "") for n, text in unknown.items()))
    if rest := [text for name, text in pairs if not name]:
        refuse(f"{rest[0]!r} is no flag: write --name=value (`--help=all` lists the flags)")
    return {name: Sourced(value, COMMAND_LINE) for name, value in values.items()}


def _of_files(
    read: Mapping[str, Sourced], known: _Flags, typed: Mapping[str, Sourced]
) -> dict[str, Sourced]:
    """Return the settings from files that count besides those typed; refuse what is no flag.

    Of a run's record, what is a process's own does not count.
    """
    counted = {}
    for name, setting in known.by_own_names(read).items():
        if name in known.fields:
            is_of_process = setting.is_recorded and flags.info(known.fields[name]).own
            if name not in typed and not is_of_process:
                value = _value_of_file(setting, known.fields[name])
                counted[name] = setting._replace(value=value)
        elif setting.is_recorded:
            refuse(
                f"{setting.source}: there is no flag --{name} here: another version of this "
                f"program recorded it, or another algorithm"
            )
        else:
            refuse(f"{setting.source}: {known.why_unknown(name)}")
    return counted


def _value_of_file(setting: Sourced, f: dataclasses.Field) -> Any:
    """Return the value that a file gives to a flag; refuse one of the wrong kind."""
    is_repeated = f.type == tuple[str, ...]
    try:
        return _converted(setting.value if is_repeated else setting_files.to_text(setting.value), f)
    except (ValueError, TypeError) as error:
        refuse(f"{setting.source}: {f.name} = {setting.value!r}: {error}")


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
        return flags.TRUTHS[str(value).lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        kinds = flag_values.KINDS[kind] + (" or auto" if details.auto else "")
        raise ValueError(f"needs {kinds}") from None


def _without_idle_phase(settings: dict[str, Sourced], known: _Flags) -> dict[str, Sourced]:
    """Return settings without the offline updates of a mode that would learn from nothing."""
    added = settings.get("offline_updates")
    if not added or added.source not in setting_files.OF_MODES:
        return settings
    values = known.values(settings)
    from_any = any(getattr(each, "learns_from_any_policy", False) for each in known.types)
    if (values["teacher"] or values["teacher_data"]) and (values["teacher_cost"] or from_any):
        return settings
    return {name: setting for name, setting in settings.items() if name != "offline_updates"}


def _refuse_wrong(
    values: Mapping[str, Any], settings: Mapping[str, Sourced], known: _Flags
) -> None:
    """Refuse a value that its flag does not take, after the file that it is from."""
    for name, f in known.fields.items():
        if mistake := flag_values.why_wrong(values[name], f):
            source = settings[name].source if name in settings else COMMAND_LINE
            where = "" if source == COMMAND_LINE else f"{source}: "
            refuse(f"{where}--{name}={values[name]}: {mistake}")


def _note_what_is_left_out(
    read: Mapping[str, Sourced], settings: Mapping[str, Sourced], known: _Flags
) -> None:
    """Print what the user of a recorded run had given and `settings`, which count, do not have."""
    left_out = [
        f"--{name}={shlex.quote(setting_files.to_text(setting.value))}"
        for name, setting in read.items()
        if setting.is_given and name in known.fields
        if name not in settings and name not in known.not_taken
        if setting.value != known.fields[name].default
    ]
    if left_out:
        source = next(setting.source for setting in read.values() if setting.is_given)
        print(
            f"note: --config={source} leaves out what belongs to a process or machine; repeat it "
            f"if it shall hold here: {' '.join(left_out)}",
            file=sys.stderr,
        )


def _make_all(types: Sequence[Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        objects = tuple(
            config(**{f.name: _rewritten(values[f.name], f) for f in dataclasses.fields(config)})
            for config in types
        )
        for made in objects:
            getattr(made, "refuse_typed", lambda: None)()
    except ValueError as error:  # about flags that do not fit together
        refuse(str(error))
    return objects


def _rewritten(value: Any, f: dataclasses.Field) -> Any:
    """Return a flag's value in the form in which its field keeps it."""
    if rewrite := flags.info(f).rewrite:
        try:
            return rewrite(value)
        except ValueError as error:
            refuse(f"--{f.name}={value}: {error}")
    return value
