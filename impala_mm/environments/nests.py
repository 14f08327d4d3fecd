"""Nests of dicts and tuples, in the order of `tf.nest`, for code that does without TensorFlow."""

from collections.abc import Iterable, Iterator
from typing import Any


def flatten(nest: Any) -> list[Any]:
    """Return the leaves of a nest; those of a dict in the order of its sorted keys."""
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in flatten(part)]
    return [nest]


def pack(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return a nest with the structure of another one and these leaves."""
    return _pack(structure, iter(leaves))


def row(nest: Any, i: Any) -> Any:
    """Return element i, or those elements that i selects, of each array in a nest."""
    if isinstance(nest, dict):
        return {key: row(value, i) for key, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(row(value, i) for value in nest)
    return nest[i]


def describe(nest: Any) -> str:
    """Return a nest as text; a dict as Dict(key: leaf, ...), a tuple as Tuple(leaf, ...)."""
    if isinstance(nest, dict):
        return f"Dict({', '.join(f'{key}: {describe(nest[key])}' for key in sorted(nest))})"
    if isinstance(nest, tuple):
        return f"Tuple({', '.join(map(describe, nest))})"
    return str(nest)


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        packed = {key: _pack(structure[key], leaves) for key in sorted(structure)}
        return {key: packed[key] for key in structure}
    if isinstance(structure, tuple):
        return tuple(_pack(part, leaves) for part in structure)
    return next(leaves)
