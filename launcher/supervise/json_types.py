"""The types of what JSON files contain, which may be damaged or of another version.

`run_registry` and `process_state` check by it what they read.
"""

import types
from typing import Any, get_args, get_origin


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON has a type such as `list[str]`, `dict[str, Any]` or `None`."""
    if kind is Any or type(value) is kind:
        return True
    inner = get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(fits(value, each) for each in inner)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(fits(each, inner[0]) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if kind is float:
        return type(value) in (int, float)
    return value is None if kind is types.NoneType else type(value) is kind


def fields_fit(values: dict[str, Any], kinds: dict[str, Any]) -> bool:
    """Return whether the values that are named in `kinds` have these types, where they exist."""
    return all(fits(value, kinds.get(name, Any)) for name, value in values.items())
