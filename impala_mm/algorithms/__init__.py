"""Algorithms: choosing actions and learning, behind one interface.

Actors call `act`, learners call `update`, and evaluation calls `judge`. This package must not
import `transport`, `actor` or `learner`: an algorithm does not know where its batches come from.
"""

import importlib
import warnings
from typing import Any

# Names that users' modules may import from this package for one more version: where they are now.
_MOVED = {
    "Algorithm": ("interface", "Algorithm"),
    "Context": ("interface", "Context"),
    "Judgement": ("interface", "PolicyOutput"),
    "entry_spec": ("interface", "entry_spec"),
    "Variables": ("data.variables", "Variables"),
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, now = _MOVED[name]
    module = f"{__name__}.{module}" if module == "interface" else f"impala_mm.{module}"
    warnings.warn(
        f"{__name__}.{name} is now {module}.{now}; the old name will be removed in the next "
        f"version",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module(module), now)
