"""The networks that have names, and `make`, which makes one for an environment's observations."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

from nets.gru import GRU
from nets.gtrxl import GTrXL
from nets.lstm import LSTM
from nets.network import Actions, Choice, Core, Network, Torso, Unsuitable
from nets.registry import NETWORKS
from nets.torsos import DEFAULT, MLP, Conv, Joined, Layer, ResNet, Style

Parts = tuple[Torso, Core | None]


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
    `choices` is embedded (see `Embedding`). `actions` describes the last
    action, which the network reads as well: a number of choices, or an object with `specs` and
    `features` such as `EnvironmentSpec.actions`. The network sees the newest
    `frame_stack` observations at once, joined along their last axis. `precision` (float32 or
    bfloat16) is that of the torso's computations; variables, core and features are float32.
    `style` has the sizes and layers of its torso and core. `mean` is that of all observations, a
    nest of float32, which is subtracted from images of bytes.

    Unsuitable is raised if no network has the name, or if it cannot read such observations, or has
    nothing that the style's choices apply to, where they differ from `usual`.
    """
    if name == "auto":
        name = auto(observation)
    if name not in NETWORKS:
        raise Unsuitable(f"{NETWORKS.unknown(name)}, and auto")
    parts = NETWORKS[name]
    build = functools.partial(parts, style) if inspect.signature(parts).parameters else parts
    torso, core = build()
    leaves = tf.nest.flatten(observation)
    if unknown := [leaf.shape for leaf in leaves if not leaf.shape.is_fully_defined()]:
        raise Unsuitable(f"{name} needs observations of one known shape, not {unknown[0]}")
    chosen = any(hasattr(leaf, "choices") for leaf in leaves)
    if chosen and frame_stack > 1:
        raise Unsuitable(f"{name} cannot stack frames of choices, which it embeds")
    if chosen or tf.nest.is_nested(observation):
        torso = Joined(lambda: build()[0], observation, name, style)
    elif reason := torso.unsuitable(tuple(observation.shape)):
        raise Unsuitable(
            f"{name} does not fit observations of shape {list(observation.shape)}: {reason}; "
            f"{auto(observation)} fits them"
        )
    _refuse_without_effect(name, torso, core, style, usual)
    acted = Choice(actions) if isinstance(actions, int) else actions
    dtype = tf.as_dtype(precision)
    return Network(torso, core, observation, acted, frame_stack, dtype, name, mean)


def auto(observation: Any) -> str:
    """Return the name of a small network that suits observations of this spec, or nest of specs."""
    images = [leaf.shape for leaf in tf.nest.flatten(observation) if leaf.shape.rank == 3]
    least = max((min(s[0] or 0, s[1] or 0) for s in images), default=0)
    return "ShallowConvAgent" if least >= 36 else "SmallConvAgent" if least >= 5 else "MLPAgent"


def _refuse_without_effect(
    name: str, torso: Torso, core: Core | None, style: Style, usual: Style
) -> None:
    """Raise Unsuitable if the style chooses something that the network does not have."""
    modules = (torso, *torso.submodules)
    # Noise is not refused: the algorithm's heads may be noisy, too.
    usual = usual._replace(noise_scale=style.noise_scale)
    for field, default, chosen in zip(Style._fields, usual, style, strict=True):
        if chosen == default:
            continue
        if field == "lstm_size":
            part, there = "LSTM, GRU or GTrXL", isinstance(core, LSTM | GRU | GTrXL)
        elif field.startswith("gtrxl_"):
            part, there = "GTrXL", isinstance(core, GTrXL)
        elif field in {"conv_factor", "conv_units"}:
            part, there = "convolutions", any(isinstance(m, snt.Conv2D) for m in modules)
        elif field == "layer_norm":
            part = "layer that can be normalised"
            there = any(isinstance(m, MLP | Conv) for m in modules)
        else:
            part, there = "MLP for such observations", any(isinstance(m, MLP) for m in modules)
        if not there:
            raise Unsuitable(f"{name} has no {part}, so {field} would have no effect: leave it out")


def mlp(style: Style) -> Parts:
    """Return an MLP."""
    return MLP(style), None


def simple(style: Style, padding: str = "VALID") -> Parts:
    """Return the network of DQN's second paper."""
    layers = [Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1)]
    return Conv(layers, 512, padding, style), None


def simple_same(style: Style) -> Parts:
    """Return the network of this program's predecessor, which has over twice the weights."""
    return simple(style, "SAME")


def shallow(style: Style) -> Parts:
    """Return the network of DQN's first paper, the shallow one of IMPALA's: cheap, for Atari."""
    return Conv([Layer(16, 8, 4), Layer(32, 4, 2)], 256, style=style), None


def small(style: Style) -> Parts:
    """Return a network for images of fewer than 36 pixels, whose single pixels matter."""
    return Conv([Layer(16, 3, 1), Layer(32, 3, 2)], 128, "SAME", style), None


def board(style: Style) -> Parts:
    """Return a network for boards, on which a pattern means the same at each place."""
    return Conv([Layer(32, 4, 1), Layer(32, 3, 1)], 128, "SAME", style), None


def resnet(style: Style) -> Parts:
    """Return the deep network of IMPALA's paper, without its memory."""
    return ResNet(style), None


def _with_core(
    network: Callable[[Style], Parts], core: Callable[[int], Core], size: int = 256
) -> Callable[[Style], Parts]:
    """Return a network's function with a core of so many units, if the style has no other size."""
    return lambda style: (network(style)[0], core(style.lstm_size or size))


mlp_lstm, mlp_gru = (_with_core(mlp, core, 64) for core in (LSTM, GRU))
simple_lstm, simple_gru = (_with_core(simple, core, 512) for core in (LSTM, GRU))
shallow_lstm, shallow_gru = (_with_core(shallow, core) for core in (LSTM, GRU))
small_lstm, small_gru = (_with_core(small, core) for core in (LSTM, GRU))
resnet_lstm, resnet_gru = (_with_core(resnet, core) for core in (LSTM, GRU))


def _with_gtrxl(network: Callable[[Style], Parts], width: int = 128) -> Callable[[Style], Parts]:
    """Return a network's function with a GTrXL of this width, if the style has no other size."""
    return lambda style: (
        network(style)[0],
        GTrXL(style.lstm_size or width, style.gtrxl_layers, style.gtrxl_heads, style.gtrxl_memory),
    )


mlp_gtrxl, simple_gtrxl = _with_gtrxl(mlp, 64), _with_gtrxl(simple)
shallow_gtrxl, small_gtrxl = _with_gtrxl(shallow), _with_gtrxl(small)
resnet_gtrxl = _with_gtrxl(resnet)
