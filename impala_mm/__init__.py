"""Reinforcement learning with many actors and several learners.

impala_mm.train("CartPole-v1")       starts a training on this machine and returns its run
impala_mm.launch("workers.csv")      does so on the hosts of a CSV
impala_mm.experiment("sweep.toml")   starts many trainings, which share this machine or such hosts
impala_mm.load_policy(logdir)        returns a run's trained policy, which is called to act
impala_mm.evaluate(logdir)           plays complete games with it and returns the results
impala_mm.errors                     the errors that these raise
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from impala_mm import errors
    from impala_mm.from_python.playing import evaluate, load_policy
    from impala_mm.from_python.start import experiment, launch, train

    __version__: str

__all__ = ["errors", "evaluate", "experiment", "launch", "load_policy", "train"]

# Imported on first use; TensorFlow is loaded when a policy is.
_FOUND_IN = {
    "train": "from_python.start",
    "launch": "from_python.start",
    "experiment": "from_python.start",
    "load_policy": "from_python.playing",
    "evaluate": "from_python.playing",
}


def __getattr__(name: str) -> Any:
    if name in _FOUND_IN:
        return getattr(importlib.import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
    if name == "errors":
        return importlib.import_module(f"{__name__}.errors")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
