"""Networks of impala_mm by name: each makes features of observations; an algorithm adds its heads.

A new network is one file in this package and one line in NETWORKS.
"""

import difflib
import functools
import inspect
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
from nets.separate import Features, Separate
from nets.style import ACTIVATIONS, DEFAULT, Style

__all__ = [
    "ACTIVATIONS",
    "NETWORKS",
    "Actions",
    "Core",
    "Features",
    "Network",
    "Separate",
    "State",
    "Style",
    "Torso",
    "UnknownNetwork",
    "Unsuitable",
    "auto",
    "make",
]

# A network's torso and core. A function that takes no style makes a network without choices.
NETWORKS: dict[str, Callable[..., tuple[Torso, Core | None]]] = {
    "SimpleConvNetAgent": lambda style=DEFAULT: (conv.simple("VALID", style.noise_scale), None),
    "SimpleConvNetLSTMAgent": lambda style=DEFAULT: (
        conv.simple("VALID", style.noise_scale),
        _lstm(style, 512),
    ),
    "SimpleConvNetSameAgent": lambda style=DEFAULT: (conv.simple("SAME", style.noise_scale), None),
    "ResNetLSTMAgent": lambda style=DEFAULT: (ResNet(style.noise_scale), _lstm(style)),
    "ShallowConvAgent": lambda style=DEFAULT: (conv.shallow(style.noise_scale), None),
    "ShallowConvLSTMAgent": lambda style=DEFAULT: (conv.shallow(style.noise_scale), _lstm(style)),
    "SmallConvAgent": lambda style=DEFAULT: (conv.small(style.noise_scale), None),
    "SmallConvLSTMAgent": lambda style=DEFAULT: (conv.small(style.noise_scale), _lstm(style)),
    "MLPAgent": lambda style=DEFAULT: (MLP(style), None),
    "MLPLSTMAgent": lambda style=DEFAULT: (MLP(style), _lstm(style, 64)),
}


def make(
    name: str,
    observation: Any,
    actions: int | Actions,
    frame_stack: int = 1,
    precision: str = "float32",
    style: Style = DEFAULT,
    usual: Style = DEFAULT,
    mean: Any = None,
) -> Network:
    """Return the network of this name, or for `auto` the one that suits the observations.

    `observation` is the spec of one observation, without a batch axis, or a nest of specs, whose
    images the network's torso reads and whose other parts an MLP; a spec with an attribute
    `choices` is embedded (see `embedding`). `actions` describes the last
    action, which the network reads as well: a number of choices, or an object with `specs` and
    `features` such as `EnvironmentSpec.actions`. The network sees the newest
    `frame_stack` observations at once, joined along their last axis. `precision` (float32 or
    bfloat16) is that of the torso's computations; variables, core and features are float32.
    `style` has the sizes and layers of its MLPs and LSTM. `mean` is that of all observations, a
    nest of float32, which is subtracted from images of bytes.

    UnknownNetwork is raised if no network has the name, and Unsuitable if it cannot read such
    observations, or has nothing that the style's choices apply to, where they differ from `usual`.
    """
    if name == "auto":
        name = auto(observation)
    if name not in NETWORKS:
        raise UnknownNetwork(_unknown(name))
    parts = NETWORKS[name]
    build = functools.partial(parts, style) if inspect.signature(parts).parameters else parts
    torso, core = build()
    shapes = [tuple(leaf.shape.as_list()) for leaf in tf.nest.flatten(observation)]
    if any(None in shape for shape in shapes):
        raise Unsuitable(f"{name} needs observations of one known shape, not {list(shapes[0])}")
    shape = shapes[0]
    chosen = any(hasattr(leaf, "choices") for leaf in tf.nest.flatten(observation))
    if chosen and frame_stack > 1:
        raise Unsuitable(f"{name} cannot stack frames of choices, which it embeds")
    if chosen or tf.nest.is_nested(observation):
        torso = Joined(lambda: build()[0], observation, name, style)
    elif reason := torso.unsuitable(shape):
        raise Unsuitable(
            f"{name} does not fit observations of shape {list(shape)}: {reason}; "
            f"{auto(observation)} fits them"
        )
    _refuse_without_effect(name, torso, core, style, usual)
    dtype = tf.as_dtype(precision)
    known = Choice(actions) if isinstance(actions, int) else actions
    return Network(torso, core, observation, known, frame_stack, dtype, name, mean)


def _lstm(style: Style, size: int = 256) -> LSTM:
    return LSTM(style.lstm_size or size)


def auto(observation: Any) -> str:
    """Return the name of a small network that suits observations of this spec, or nest of specs."""
    images = [leaf.shape for leaf in tf.nest.flatten(observation) if leaf.shape.rank == 3]
    least = max((min(s[0] or 0, s[1] or 0) for s in images), default=0)
    return "ShallowConvAgent" if least >= 36 else "SmallConvAgent" if least >= 5 else "MLPAgent"


def _refuse_without_effect(
    name: str, torso: Torso, core: Core | None, style: Style, usual: Style
) -> None:
    """Raise Unsuitable if the style chooses something that the network does not have."""
    has_mlp = any(isinstance(module, MLP) for module in (torso, *torso.submodules))
    # Noise is not refused: the algorithm's heads may be noisy, too.
    usual = usual._replace(noise_scale=style.noise_scale)
    for field, default, chosen in zip(Style._fields, usual, style, strict=True):
        of_lstm = field == "lstm_size"
        if chosen != default and not (isinstance(core, LSTM) if of_lstm else has_mlp):
            raise Unsuitable(
                f"{name} has no {'LSTM' if of_lstm else 'MLP for such observations'}, so {field} "
                "would have no effect: leave it out"
            )


def _unknown(name: str) -> str:
    by_small = {right.lower(): right for right in ["auto", *NETWORKS]}
    nearest = difflib.get_close_matches(name.lower(), by_small, n=1, cutoff=0.0)[0]
    return (
        f"there is no network {name!r}; did you mean {by_small[nearest]}? "
        f"The names are {', '.join(by_small.values())}"
    )
