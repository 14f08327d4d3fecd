"""The library: actors, learners, and their connection. Hosts and SSH are the launcher's part.

impala_mm.load_policy(logdir)       returns a run's trained policy, which is called to act
impala_mm.evaluate(logdir)          plays complete games with it and returns the results
"""

import importlib
from typing import Any

# Imported on first use, since they load TensorFlow.
_FOUND_IN = {"load_policy": "policy.policy", "evaluate": "evaluation.games"}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(f"{__name__}.runtime.tensorflow_import").load()
    return getattr(importlib.import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
