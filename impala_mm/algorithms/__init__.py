"""Algorithms: choosing actions and learning, behind one interface.

Actors call `act`, learners call `update`, and evaluation calls `judge`. This package must not
import `transport`, `actor` or `learner`: an algorithm does not know where its batches come from.
"""

from pathlib import Path


def __getattr__(name: str) -> object:
    """Answer the import of a module that an earlier version had here with its new place."""
    sought = {"policies": "action_policies"}.get(name, name)
    for path in Path(__file__).parent.glob(f"*/{sought}.py"):
        raise ImportError(f"{__name__}.{name} is {__name__}.{path.parent.name}.{sought} now")
    raise AttributeError(f"module {__name__} has no attribute {name}")
