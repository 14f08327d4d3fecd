"""Finding a method of an environment that wrappers may hide."""

from collections.abc import Callable
from typing import Any


def find_method(environment: Any, name: str) -> Callable[..., Any] | None:
    """Return the environment's method of this name, also one below wrappers, or None."""
    find = getattr(environment, "get_wrapper_attr", None)
    try:
        method = find(name) if find else getattr(environment, name, None)
    except AttributeError:
        return None
    return method if callable(method) else None
