"""Networks of impala_mm by name: each makes features of observations; an algorithm adds its heads.

`make` makes one of NETWORKS, to which `register` adds. All other names are imported when they are
first asked for, so that a program that only registers a network loads no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nets.registry import NETWORKS, register

if TYPE_CHECKING:
    from nets.agents import auto, make
    from nets.gru import GRU
    from nets.gtrxl import GTrXL
    from nets.lstm import LSTM
    from nets.network import (
        Actions,
        Core,
        Network,
        Separate,
        SeparateFeatures,
        State,
        Torso,
        Unsuitable,
    )
    from nets.torsos import ACTIVATIONS, MLP, Style

_MODULES = {
    "agents": ["auto", "make"],
    "gru": ["GRU"],
    "gtrxl": ["GTrXL"],
    "lstm": ["LSTM"],
    "network": "Actions Core Network Separate SeparateFeatures State Torso Unsuitable".split(),
    "torsos": ["ACTIVATIONS", "MLP", "Style"],
}
_FOUND_IN = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ACTIVATIONS",
    "GRU",
    "LSTM",
    "MLP",
    "NETWORKS",
    "Actions",
    "Core",
    "GTrXL",
    "Network",
    "Separate",
    "SeparateFeatures",
    "State",
    "Style",
    "Torso",
    "Unsuitable",
    "auto",
    "make",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
