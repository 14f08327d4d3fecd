"""The names of networks; `register` adds one. No TensorFlow is imported until one is made.

    nets.register("TwinAgent", "my_nets:twin")

The function `twin()` or `twin(style)` returns a network's `Torso`, and its `Core` or None.
"""

from collections.abc import Callable
from typing import Any

from impala_mm.config.registry import Registry

NETWORKS: Registry[Callable[..., tuple[Any, Any]]] = Registry(
    "network",
    {
        "SimpleConvNetAgent": "nets.agents:simple",
        "SimpleConvNetLSTMAgent": "nets.agents:simple_lstm",
        "SimpleConvNetSameAgent": "nets.agents:simple_same",
        "ResNetLSTMAgent": "nets.agents:resnet_lstm",
        "ShallowConvAgent": "nets.agents:shallow",
        "ShallowConvLSTMAgent": "nets.agents:shallow_lstm",
        "SmallConvAgent": "nets.agents:small",
        "SmallConvLSTMAgent": "nets.agents:small_lstm",
        "MLPAgent": "nets.agents:mlp",
        "MLPLSTMAgent": "nets.agents:mlp_lstm",
    },
)
register = NETWORKS.register
