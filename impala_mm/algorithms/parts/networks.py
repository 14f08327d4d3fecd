"""Networks by the flags: what algorithms call to make them, and what a run records of them."""

import functools
from collections.abc import Callable
from typing import Any

import sonnet as snt
import tensorflow as tf

import nets
from impala_mm.algorithms.feature_settings import ShiftSettings
from impala_mm.config import auto, flags
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import machine
from nets.critic import ChoiceCritics, Critics

_LARGE = 2**20  # numbers of an observation from which on a network may not fit in memory
# Of the weights in memory, at least: with gradients and an optimizer's averages, or as received.
_COPIES = 3
# The flags, besides --agent_name, that decide which variables a network has and what it computes.
_FLAGS = [
    n for n, known in flags.infos(Config).items() if known.group == "Network" and known.kept_by
]
_STYLES = [n for n in nets.Style._fields if n in flags.infos(Config)]
_OF_MLPS = ("mlp_sizes", "activation", "layer_norm", "mlp_init_scale")  # fields of `nets.Style`


def make_network(
    config: Config,
    environment: EnvironmentSpec,
    mean: Any = None,
    noise_scale: float = 0.0,
    name: str = "",
    mlp_heads: bool = False,
) -> nets.Network:
    """Return a network that the flags describe, for the entries of this environment.

    `mean` is the algorithm's `Normaliser.mean`. With a `noise_scale`, the network's fully connected
    layers are noisy (`nets.noisy`). `name` replaces --agent_name. With `mlp_heads` the flags of an
    MLP are not refused where the network has none, since the algorithm has MLPs after it.
    """
    if config.subtract_mean_image and mean is None:
        raise UserMistake(
            f"--subtract_mean_image: --algorithm={config.algorithm} gives its network no mean "
            f"image: give --subtract_mean_image=false, or make the network with the `mean` of a "
            f"`Normaliser`"
        )
    style, usual = _style(config)._replace(noise_scale=noise_scale), _style(type(config)())
    if mlp_heads:
        usual = usual._replace(**{field: getattr(style, field) for field in _OF_MLPS})
    make = functools.partial(
        nets.make,
        name or config.agent_name,
        environment.observation,
        environment.actions,
        environment.frame_stack,
        config.precision,
        style,
        usual=usual,
    )
    numbers = sum(part.shape.num_elements() for part in tf.nest.flatten(environment.observation))
    if numbers > _LARGE:
        _refuse_too_large(make, numbers)
    return make(mean=mean)


def _refuse_too_large(make: Callable[[], nets.Network], numbers: int) -> None:
    """Raise UserMistake if a network that `make` makes does not fit in this machine's memory."""
    snt.Linear(1)  # Sonnet checks once, outside of graphs, that TensorFlow executes eagerly
    with tf.Graph().as_default():  # in which variables take no memory
        weights = sum(variable.shape.num_elements() for variable in make().trainable_variables)
    needed, available = _COPIES * 4 * weights, machine.memory_bytes()
    if needed > available:
        raise UserMistake(
            f"a network for observations of {numbers:,} numbers has {weights:,} weights, which "
            f"take {needed / 1e9:,.1f} GB of memory with their gradients and averages, and this "
            f"machine has {available / 1e9:,.1f} GB: make observations smaller in a wrapper "
            f"(--env_wrappers; images: --width and --height), or give a smaller --mlp_sizes"
        )


def suits_xla(observation: Any, *networks: snt.Module | None) -> bool:
    """Return whether XLA makes many optimizer steps of these networks faster.

    On CPUs it does not where an observation is large, and convolutions took six times as long.
    """
    modules = [module for network in networks if network for module in network.submodules]
    slow = auto.is_large(observation) or any(isinstance(module, snt.Conv2D) for module in modules)
    return not (slow or tf.config.get_visible_devices("GPU"))


def make_actor_critic(
    config: Config, environment: EnvironmentSpec, mean: Any = None
) -> nets.Network | nets.Separate:
    """Return what a policy and its values read: one network, or two by --separate_networks.

    `for_policy_and_value` returns the features of both.
    """
    if not config.separate_networks:
        return make_network(config, environment, mean)
    return nets.Separate(*(make_network(config, environment, mean) for _ in range(2)))


def make_critics(
    config: Config,
    environment: EnvironmentSpec,
    num_features: int,
    count: int = 2,
    dropout: float = 0.0,
) -> Critics:
    """Return `count` critics of features [..., num_features] and an action of this environment.

    The flags that describe a network's MLP describe theirs. With dropout, layers are normalised.
    """
    style = _style(config)
    style = style._replace(dropout=dropout, layer_norm=style.layer_norm or dropout > 0)
    return Critics(environment.actions, num_features, count, style)


def make_mlp(config: Config) -> nets.MLP:
    """Return the MLP that the flags describe."""
    return nets.MLP(_style(config))


def make_choice_critics(
    config: Config, num_choices: int, num_features: int, count: int = 2
) -> ChoiceCritics:
    """Return `count` critics of all choices at features [..., num_features].

    The flags that describe a network's MLP describe theirs.
    """
    return ChoiceCritics(num_choices, num_features, count, _style(config))


def check_shift(config: ShiftSettings, environment: EnvironmentSpec) -> None:
    """Raise UserMistake if images cannot be shifted by --random_shift pixels."""
    most = config.random_shift
    if not most:
        return
    if config.subtract_mean_image:
        raise UserMistake(
            f"--random_shift={most} shifts images, but not the mean that --subtract_mean_image "
            f"subtracts from them: leave one of them out"
        )
    shapes = [leaf.shape.as_list() for leaf in tf.nest.flatten(environment.observation)]
    images = [shape for shape in shapes if len(shape) == 3]
    if not images:
        raise UserMistake(
            f"--random_shift={most} shifts images [height, width, channels], and observations of "
            f"{environment.level_name} have the shape {', '.join(map(str, shapes))}: leave it out"
        )
    least = min(min(height, width) for height, width, _ in images)
    if most >= least:
        raise UserMistake(
            f"--random_shift={most} shifts images of {environment.level_name} out of sight, whose "
            f"smaller side has {least} pixels: lower it"
        )


def for_policy_and_value(features: tf.Tensor | nets.SeparateFeatures) -> nets.SeparateFeatures:
    """Return the features of `make_actor_critic`'s network for the heads of policy and value."""
    if isinstance(features, nets.SeparateFeatures):
        return features
    return nets.SeparateFeatures(features, features)


def chosen_name(config: Config, environment: EnvironmentSpec) -> str:
    """Return the name of the network that --agent_name stands for."""
    auto = config.agent_name == "auto"
    return nets.auto(environment.observation) if auto else config.agent_name


def recorded(config: Config) -> dict[str, Any]:
    """Return what a resumed run must not change of its networks, by flag.

    Checkpoints of earlier versions lack these flags; their runs had the defaults.
    """
    sizes = ",".join(map(str, flags.whole_numbers(config.mlp_sizes)))
    return {f"--{name}": getattr(config, name) for name in _FLAGS} | {"--mlp_sizes": sizes}


def describe(config: Config, name: str) -> str:
    """Return a network in words: its name, and the flags that differ from their defaults."""
    default = recorded(Config())
    chosen = {flag: x for flag, x in recorded(config).items() if x != default[flag]}
    return " ".join([name, *(f"{flag}={flags.format_value(x)}" for flag, x in chosen.items())])


def _style(config: Config) -> nets.Style:
    """Return the style by the flags that have the names of its fields."""
    given = {name: getattr(config, name) for name in _STYLES}
    return nets.Style(**given | {"mlp_sizes": flags.whole_numbers(config.mlp_sizes)})
