"""JSON that every program can read: standard JSON has no infinity and no NaN.

All files of a run are written and read by these functions. An infinity becomes the text "inf" or
"-inf", as a flag's value is written, and NaN becomes null, as in a table with a missing number.
"""

import json
import math
from typing import Any

_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as standard JSON."""
    return json.dumps(_replace_non_finite(value), indent=indent, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return the value of JSON that `to_json` or an earlier version wrote; raises ValueError.

    Earlier versions wrote `Infinity` and `NaN`, which Python's parser accepts. NaN that was written
    as null is None.
    """
    try:
        return _restore_infinities(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{value}"
    if isinstance(value, dict):
        return {name: _replace_non_finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(each) for each in value]
    return value


def _restore_infinities(value: Any) -> Any:
    if isinstance(value, str):
        return _INFINITIES.get(value, value)
    if isinstance(value, dict):
        return {name: _restore_infinities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_restore_infinities(each) for each in value]
    return value
