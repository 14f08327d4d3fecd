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
        "SimpleConvNetGRUAgent": "nets.agents:simple_gru",
        "SimpleConvNetGTrXLAgent": "nets.agents:simple_gtrxl",
        "SimpleConvNetSameAgent": "nets.agents:simple_same",
        "ResNetAgent": "nets.agents:resnet",
        "ResNetLSTMAgent": "nets.agents:resnet_lstm",
        "ResNetGRUAgent": "nets.agents:resnet_gru",
        "ResNetGTrXLAgent": "nets.agents:resnet_gtrxl",
        "ShallowConvAgent": "nets.agents:shallow",
        "ShallowConvLSTMAgent": "nets.agents:shallow_lstm",
        "ShallowConvGRUAgent": "nets.agents:shallow_gru",
        "ShallowConvGTrXLAgent": "nets.agents:shallow_gtrxl",
        "SmallConvAgent": "nets.agents:small",
        "SmallConvLSTMAgent": "nets.agents:small_lstm",
        "SmallConvGRUAgent": "nets.agents:small_gru",
        "SmallConvGTrXLAgent": "nets.agents:small_gtrxl",
        "BoardAgent": "nets.agents:board",
        "MLPAgent": "nets.agents:mlp",
        "MLPLSTMAgent": "nets.agents:mlp_lstm",
        "MLPGRUAgent": "nets.agents:mlp_gru",
        "MLPGTrXLAgent": "nets.agents:mlp_gtrxl",
    },
)
register = NETWORKS.register
