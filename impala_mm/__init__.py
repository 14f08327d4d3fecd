"""The library: actors, learners, and what travels between them. Knows nothing of hosts or SSH.

impala_mm.load_policy(logdir)       what a run has learnt, as a callable
impala_mm.evaluate(logdir)          how well it plays, in whole games
"""

import importlib
from typing import Any

# Imported when asked for: TensorFlow comes with them.
_FOUND_IN = {"load_policy": "policy.policy", "evaluate": "evaluation.games"}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(f"{__name__}.runtime.tensorflow_import").load()
    return getattr(importlib.import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
