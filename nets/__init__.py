"""Networks by name: each turns observations into features, to which an algorithm adds its heads.

A new network is one file in this package and one line in NETWORKS.
"""

import difflib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from nets import conv
from nets.actions import Actions, Choice
from nets.errors import UnknownNetwork, Unsuitable
from nets.joined import Joined
from nets.lstm import LSTM
from nets.mlp import MLP
from nets.network import Core, Network, State, Torso
from nets.resnet import ResNet

__all__ = [
    "NETWORKS",
    "Actions",
    "Core",
    "Network",
    "State",
    "Torso",
    "UnknownNetwork",
    "Unsuitable",
    "auto",
    "make",
]

NETWORKS: dict[str, Callable[[], tuple[Torso, Core | None]]] = {
    "SimpleConvNetAgent": lambda: (conv.simple(), None),
    "SimpleConvNetSameAgent": lambda: (conv.simple(padding="SAME"), None),
    "ResNetLSTMAgent": lambda: (ResNet(), LSTM(256)),
    "ShallowConvAgent": lambda: (conv.shallow(), None),
    "ShallowConvLSTMAgent": lambda: (conv.shallow(), LSTM(256)),
    "MLPAgent": lambda: (MLP(), None),
    "MLPLSTMAgent": lambda: (MLP(), LSTM(64)),
}


def make(
    name: str,
    observation: Any,
    actions: int | Actions,
    frame_stack: int = 1,
    precision: str = "float32",
) -> Network:
    """Return the network of this name, or for `auto` the one that suits the observations.

    `observation` is the spec of one observation, without a batch axis, or a nest of specs, whose
    images the network's torso reads and whose other parts an MLP. `actions` describes the last
    action, which the network reads as well: a number of choices, or an object with `specs` and
    `features` such as `EnvironmentSpec.actions`. The network sees the newest
    `frame_stack` observations at once, joined along their last axis. `precision` (float32 or
    bfloat16) is that of the torso's computations; variables, core and features are float32.

    UnknownNetwork is raised if no network has the name, and Unsuitable if it cannot read such
    observations.
    """
    if name == "auto":
        name = auto(observation)
    if name not in NETWORKS:
        raise UnknownNetwork(_unknown(name))
    torso, core = NETWORKS[name]()
    shapes = [tuple(leaf.shape.as_list()) for leaf in tf.nest.flatten(observation)]
    if any(None in shape for shape in shapes):
        raise Unsuitable(f"{name} needs observations of one known shape, not {list(shapes[0])}")
    shape = shapes[0]
    if tf.nest.is_nested(observation):
        torso = Joined(lambda: NETWORKS[name]()[0], observation, name)
    elif reason := torso.unsuitable(shape):
        raise Unsuitable(
            f"{name} does not fit observations of shape {list(shape)}: {reason}; "
            f"{auto(observation)} fits them"
        )
    dtype = tf.as_dtype(precision)
    known = Choice(actions) if isinstance(actions, int) else actions
    return Network(torso, core, observation, known, frame_stack, dtype, name)


def auto(observation: Any) -> str:
    """Return the name of a small network that suits observations of this spec, or nest of specs."""
    shapes = [leaf.shape for leaf in tf.nest.flatten(observation)]
    image = any(s.rank == 3 and min(s[0] or 0, s[1] or 0) >= 36 for s in shapes)
    return "ShallowConvAgent" if image else "MLPAgent"


def _unknown(name: str) -> str:
    by_small = {right.lower(): right for right in ["auto", *NETWORKS]}
    nearest = difflib.get_close_matches(name.lower(), by_small, n=1, cutoff=0.0)[0]
    return (
        f"there is no network {name!r}; did you mean {by_small[nearest]}? "
        f"The names are {', '.join(by_small.values())}"
    )
