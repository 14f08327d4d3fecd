"""Checks of the flags given: values that they do not take, and flags without effect."""

import dataclasses
import difflib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from impala_mm.config import algorithm_settings, help_page, peer_names, setting_files
from impala_mm.config.flags import AUTO, Condition, arguments, info, refuse
from impala_mm.config.messages import escape

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def why_refused(settings: Mapping[str, Any], config: type) -> str:
    """Return which of these values of flags the command line refuses, and why; usually empty."""
    fields = {f.name: f for f in dataclasses.fields(config)}
    values = {name: value for name, value in settings.items() if name in fields}
    for name, value in values.items():
        if mistake := _why_no_such_value(value, fields[name]) or why_wrong(value, fields[name]):
            return f"--{name}={value}: {mistake}"
    try:
        config(**values)
    except ValueError as error:
        return str(error)
    return ""


def _why_no_such_value(value: Any, f: dataclasses.Field) -> str:
    """Return what a value must be if it is none of a flag's type; usually empty."""
    if f.type == tuple[str, ...]:
        return "" if isinstance(value, list | tuple) else "it needs a list of texts"
    kind: Any = f.type
    is_one = isinstance(value, int | float if kind is float else kind)
    is_one &= kind is bool or not isinstance(value, bool)
    return "" if is_one or (info(f).auto and value == AUTO) else f"it needs {KINDS[kind]}"


def why_wrong(value: Any, f: dataclasses.Field) -> str:
    """Return what is wrong with the value of a flag; usually empty."""
    choices = info(f).choices
    parts = value.split(",") if info(f).several else [value]
    if f.type is str and value != value.encode(errors="replace").decode():
        return "it contains bytes that are not UTF-8, which TensorFlow needs"
    if choices and (
        wrong := [part for part in parts if part not in choices or (not part and parts[1:])]
    ):
        close = wrong[0] and difflib.get_close_matches(str(wrong[0]), choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"it must be {_or(help_page.shown_choices(f))}{hint}"
    if parse := info(f).parse:
        try:
            parse(value)
        except ValueError as error:
            return str(error)
    if info(f).auto and value == AUTO:
        return ""
    return _why_no_such_number(value, f) if f.type in {int, float} else ""


def _why_no_such_number(value: float, f: dataclasses.Field) -> str:
    """Return what is wrong with a flag's number; usually empty."""
    least, most = info(f).least, info(f).most
    if not least <= value <= most:  # NaN is refused, too
        limits = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (
            most < math.inf
        )
        return f"it must be {' and '.join(limits) or 'a number'}"
    if math.isinf(value) and not info(f).infinite:
        return "it must be a finite number"
    return ""


def _or(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def check_effects(*configs: Any, evaluators: bool = False, notes: bool = True) -> None:
    """Refuse flags that need others, and print a note about the rest that have no effect.

    `evaluators`: evaluators may be started with this process, and with the same flags. Without
    `notes`, the program that started this process has printed them.
    """
    idle = [flag for config in configs for flag in _idle(config, evaluators)]
    for argument, reason, needed in idle:
        if needed:
            refuse(f"{argument} has no effect {reason}: give {needed.words}, or leave it out")
    if idle and notes:
        told = ", ".join(f"{arg} ({reason}{_elsewhere(arg)})" for arg, reason, _ in idle)
        print(f"note: without effect: {escape(told)}", file=sys.stderr, flush=True)


def _elsewhere(argument: str) -> str:
    """Return what another trainer's flag of this name is here, if ours is something else."""
    name = argument.lstrip("-").partition("=")[0]
    ours = peer_names.other_meaning(name)
    return f"; another trainer's --{name} is {ours} here" if ours else ""


def _idle(config: Any, evaluators: bool) -> Iterator[tuple[str, str, Condition | None]]:
    """Yield (argument, why, what it needs) for each flag given that has no effect.

    What it needs is None unless the flag is refused.
    """
    origins = json.loads(getattr(config, "origins", "") or "{}")
    typed = origins.get(setting_files.COMMAND_LINE, ())
    of_mode = {name for source in setting_files.OF_MODES for name in origins.get(source, ())}
    is_built_in = getattr(config, "algorithm", "") in algorithm_settings.BUILT_IN
    ignored = config.ignored if is_built_in else ()
    for f in dataclasses.fields(config):
        (argument,), details = arguments(config, [f.name]), info(f)
        is_given = getattr(config, f.name) != f.default and f.name not in of_mode
        if is_given and f.name in ignored:
            yield argument, f"with --algorithm={config.algorithm}", None
            continue
        for condition in (details.needs, details.only_with):
            if condition is None or (evaluators and condition.of_evaluators):
                continue
            counts = f.name in typed if condition.typed else is_given
            if counts and (reason := condition.why_idle(config)):
                yield argument, reason, condition if condition is details.needs else None
                break
