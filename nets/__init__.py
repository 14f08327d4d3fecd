"""The networks, by name. They end in features; the algorithm puts its heads on them.

A new network is one file here and one line in NETWORKS.
"""

import sonnet as snt

from nets.mlp import MLPAgent

NETWORKS: dict[str, type[snt.Module]] = {
    "MLPAgent": MLPAgent,
}


def make(name: str) -> snt.Module:
    """The network of this name."""
    return NETWORKS[name]()
