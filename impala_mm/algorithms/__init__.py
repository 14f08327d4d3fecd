"""Algorithms: how to act and how to learn, behind one interface.

Actors call `act`, learners call `update`, evaluation calls `judge`.
Must not import `transport`, `actor` or `learner`: an algorithm is not told where batches come from.
"""

import importlib
import warnings
from typing import Any

# As modules of users import them from here, for one more version: the module, and the name there.
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
        f"{__name__}.{name} is {module}.{now} now; the old name goes with the next version",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module(module), now)
