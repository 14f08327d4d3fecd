"""The values that a flag takes: what is wrong with another one, in words."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from impala_mm.config import help_page
from impala_mm.config.flags import AUTO

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def why_refused(settings: Mapping[str, Any], config: type) -> str:
    """Return which of these values of flags the command line refuses, and why; usually empty."""
    fields = {f.name: f for f in dataclasses.fields(config)}
    known = {name: value for name, value in settings.items() if name in fields}
    for name, value in known.items():
        if why := _why_no_such_value(value, fields[name]) or why_wrong(value, fields[name]):
            return f"--{name}={value}: {why}"
    try:
        config(**known)
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
    return "" if is_one or (f.metadata["auto"] and value == AUTO) else f"it needs {KINDS[kind]}"


def why_wrong(value: Any, f: dataclasses.Field) -> str:
    """Return what is wrong with the value of a flag; usually empty."""
    choices = f.metadata["choices"]
    if f.type is str and value != value.encode(errors="replace").decode():
        return "it contains bytes that are not UTF-8, which TensorFlow needs"
    if choices and value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"it must be {_or(help_page.shown_choices(f))}{hint}"
    if f.metadata["parse"]:
        try:
            f.metadata["parse"](value)
        except ValueError as error:
            return str(error)
    if f.metadata["auto"] and value == AUTO:
        return ""
    return _why_no_such_number(value, f) if f.type in {int, float} else ""


def _why_no_such_number(value: float, f: dataclasses.Field) -> str:
    """Return what is wrong with a flag's number; usually empty."""
    least, most = f.metadata["least"], f.metadata["most"]
    if not least <= value <= most:  # NaN is refused, too
        limits = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (
            most < math.inf
        )
        return f"it must be {' and '.join(limits) or 'a number'}"
    if math.isinf(value) and not f.metadata["infinite"]:
        return "it must be a finite number"
    return ""


def _or(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
