"""Settings from files: presets, which come with this package, and the user's files.

    algorithm = "ppo"                     # presets/NAME.toml for --preset=NAME, or --config=FILE
    mlp_sizes = [256, 256]
    env_kwargs = {is_slippery = false}

`--config` reads TOML, or a run's settings.json. A value on the command line takes
precedence over one of the file, and that over one of the preset; the rest are defaults. Where each
value came from is kept in the flag `origins`, since only the program that the user starts reads the
files.
"""

import contextlib
import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config import environment_flags, flags
from impala_mm.config.errors import BadSettings

COMMAND_LINE = "command line"
_DEFAULT = "default"
_PRESETS = Path(__file__).resolve().parents[1] / "presets"
TABLES = ("axes", "search", "needs")  # of the file of an experiment, besides settings
_SUITS = "suits"  # in a preset, the kind of environments that it is for: "atari" or "numbers"
# What --mode=reincarnate sets unless it is given, and with --quick instead of presets and files.
REINCARNATE = {"teacher_method": "qdagger", "offline_updates": 10_000}
OF_MODES = ("mode reincarnate", "quick")  # the sources of these
_QUICK = {
    "teacher_episodes": 4,
    "teacher_steps": 2_000,
    "offline_updates": 200,
    "total_environment_frames": 20_000,
    "max_seconds": 20,
}


class Sourced(NamedTuple):
    """A value from a file, and which file it is."""

    value: Any  # as TOML or JSON has it
    source: str
    is_recorded: bool = False  # whether it is one of all settings that a run has recorded
    is_given: bool = False  # whether it is recorded, and the run's user had given it


def preset_names() -> tuple[str, ...]:
    """Return the names that --preset takes."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def read(typed: dict[str, str], fields: Mapping[str, dataclasses.Field]) -> dict[str, Sourced]:
    """Return the settings of the presets, the file and the mode that are given, by flags' names.

    They are given by the texts `typed`, or in the file. The file takes precedence over presets, of
    which the last does, and these over the mode. A file that cannot be read is refused. `fields`
    are those of the flags that all algorithms have.
    """
    scopes = {name: flags.info(f).scope for name, f in fields.items()}
    config, experiment = typed.get("config", ""), typed.get("experiment", "")
    if config and experiment:
        flags.refuse("--config and --experiment are two files of settings: give one of them")
    settings = _read_file("config", config, scopes) if config else {}
    if experiment:
        table = _read_file("experiment", experiment, scopes)
        settings = {name: value for name, value in table.items() if name not in TABLES}
    # The file may name presets and a mode; those of a recorded run were for its own start.
    of_file = {name: setting for name, setting in settings.items() if not setting.is_recorded}
    of_presets: dict[str, Sourced] = {}
    for name in _known((texts(of_file) | typed).get("preset", "")):
        preset = _read_preset(name)
        preset.pop(_SUITS, None)
        of_presets |= {n: Sourced(value, f"preset {name}") for n, value in preset.items()}
    settings = of_presets | settings
    given = texts(of_presets | of_file) | typed
    if given.get("mode") != "reincarnate":
        return settings
    of_mode, of_quick = OF_MODES
    settings = {n: Sourced(value, of_mode) for n, value in REINCARNATE.items()} | settings
    if flags.TRUTHS.get(given.get("quick", "").lower()):
        settings |= {n: Sourced(value, of_quick) for n, value in _QUICK.items()}
    return settings


def texts(settings: Mapping[str, Sourced]) -> dict[str, str]:
    """Return settings from files as they are typed, without those that no flag can have."""
    found = {}
    for name, setting in settings.items():
        with contextlib.suppress(ValueError):
            found[name] = to_text(setting.value)
    return found


def _known(preset: str) -> list[str]:
    """Return the presets that a flag names; others are refused as wrong values of flags are."""
    return [name for name in preset.split(",") if name in preset_names()]


def _read_preset(name: str) -> dict[str, Any]:
    return tomllib.loads((_PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


def why_unsuited(preset: str, environment: Any) -> str:
    """Return which preset does not suit an environment of this EnvironmentSpec, and why.

    It is empty if all do.
    """
    for name in _known(preset):
        kind = _read_preset(name).get(_SUITS)
        if kind == "atari" and not environment.emulator:
            return f"--preset={name} is for Atari games, and {environment.level_name} is none"
        if kind == "numbers" and not environment.actions.has_box:
            return (
                f"--preset={name} is for actions that are numbers (Box), and those of "
                f"{environment.level_name} are none"
            )
    return ""


def _read_file(flag: str, path: str, scopes: Mapping[str, str]) -> dict[str, Sourced]:
    is_json = False
    try:
        text = Path(path).read_text(encoding="utf-8")
        is_json = flag == "config" and text.lstrip().startswith("{")
        table = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        flags.refuse(f"--{flag}={path} is nested too deeply")
    except OSError as error:
        flags.refuse(f"--{flag}={path}: {error.strerror}")
    except UnicodeDecodeError:
        flags.refuse(f"--{flag}={path} is no text in UTF-8")
    except ValueError as error:
        what = "JSON" if is_json else "TOML, which has lines `name = value` and texts in quotes"
        flags.refuse(f"--{flag}={path} is no {what}: {error}")
    by_user = {n for n in _given(table) if scopes.get(n) != "process"} if is_json else set()
    if is_json:
        table = environment_flags.relocated(table, Path(path).parent)
        table = {n: v for n, v in table.items() if scopes.get(n) not in ("command", "start")}
    for name in table:
        if scopes.get(name) == "command":
            flags.refuse(f"--{flag}={path}: write --{name} on the command line, not in a file")
    return {name: Sourced(v, path, is_json, name in by_user) for name, v in table.items()}


def _given(recorded: dict[str, Any]) -> set[str]:
    """Return what a run's user had given of its recorded settings."""
    origins = recorded.get("origins")
    lists = origins.items() if isinstance(origins, dict) else ()
    return {
        str(name)
        for source, names in lists
        if source != "auto" and isinstance(names, list)
        for name in names
    }


def to_text(value: Any) -> str:
    """Return a value of TOML, JSON or Python as it is written on the command line.

    Raises a ValueError with what is wrong about it.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()  # a number of Python's, or lists of them
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str, os.PathLike)):
        return str(value)
    if isinstance(value, (list, tuple)) and not any(isinstance(v, (list, dict)) for v in value):
        return ",".join(map(to_text, value))
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except TypeError as error:
            raise ValueError(f"a dictionary is passed on as JSON: {error}") from None
    if value is None:
        raise ValueError("leave it out for its default")
    raise ValueError(
        "a flag takes a number, a text, true or false, a list or a dictionary of these"
    )


def to_arguments(settings: Mapping[str, Any], repeated: Sequence[str] = ()) -> list[str]:
    """Return settings of Python as arguments of the command line; raise BadSettings.

    Each value in a list for a flag in `repeated` is an argument of its own.
    """
    arguments = []
    for name, value in settings.items():
        several = name in repeated and isinstance(value, (list, tuple))
        try:
            arguments += [f"--{name}={to_text(each)}" for each in (value if several else [value])]
        except ValueError as error:
            raise BadSettings(f"{name}={value!r}: {error}") from None
    return arguments


def by_source(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of flags by the source of their values; defaults are left out."""
    names: dict[str, list[str]] = {}
    for name, source in sources.items():
        if source != _DEFAULT:
            names.setdefault(source, []).append(name)
    return names


def record(config: Any, before: Any, base: type) -> dict[str, str]:
    """Return where the settings of a run came from, by flag; `base` is the type of all algorithms.

    `before` are the settings before it was decided what `auto` stands for.
    """
    origins = json.loads(config.origins or "{}")
    sources = {name: source for source, names in origins.items() for name in names}
    for f in dataclasses.fields(config):
        if f.name not in sources and flags.info(f).scope != "command":
            chosen = getattr(config, f.name) != getattr(before, f.name)
            sources[f.name] = "auto" if chosen else _default(f, config, base)
    return sources


def show(config: Any, base: type, sources: dict[str, str]) -> str:
    """Return the settings as TOML for --config; `sources` says where those that are given are from.

    What a file may not set is left out, and the preset, whose values are all there. A run that
    would be resumed in --logdir keeps what it has recorded for `auto`.
    """
    lines, group = [], ""
    recorded = _recorded_in(getattr(config, "logdir", ""))
    for f in dataclasses.fields(config):
        if flags.info(f).scope == "command" or f.name == "preset":
            continue
        if flags.info(f).group != group:
            group = flags.info(f).group
            lines += ["", f"# {group}"]
        value = getattr(config, f.name)
        source = sources.get(f.name) or _default(f, config, base)
        is_auto = flags.info(f).follows_environment and value in (flags.AUTO, "auto")
        if is_auto and f.name in recorded:
            value, source = recorded[f.name], f"kept from the run in {config.logdir}"
        if flags.info(f).auto and value == flags.AUTO:
            value = "auto"
        is_unset = flags.info(f).own and f.name not in sources  # a process's own choice
        line = f"{'# ' * is_unset}{f.name} = {to_toml(value)}"
        lines.append(f"{line:40}  # {source}")
    return "\n".join(lines[1:])


def _recorded_in(logdir: str) -> dict[str, Any]:
    """Return the flags that the run in a folder has recorded; empty if there is none."""
    try:
        return dict(json.loads(Path(logdir, "settings.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _default(f: dataclasses.Field, config: Any, base: type) -> str:
    """Return whose default a flag's value is."""
    shared = {shared_field.name: shared_field.default for shared_field in dataclasses.fields(base)}
    is_own = shared.get(f.name, f) != f.default
    return f"default of --algorithm={config.algorithm}" if is_own else _DEFAULT


def to_toml(value: Any) -> str:
    """Return a flag's value in TOML."""
    if isinstance(value, dict):
        value = to_text(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return json.dumps(list(value), ensure_ascii=False)
    return flags.format_value(value)
