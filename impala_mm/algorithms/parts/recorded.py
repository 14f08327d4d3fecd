"""The record that an actor-critic's actor makes with each action, for the learner: the extras.

The parameters of the policy are always recorded. Where replay compares features, or values are
cloned, these are, too, and the extras are a `Recorded` instead of the parameters alone.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.config import replay_mix
from impala_mm.config.settings import Config


class Recorded(NamedTuple):
    """The outputs of the behaviour policy's network, [...]; () for those not recorded."""

    parameters: Any  # float32 [..., P]: of the distribution of actions
    value: Any = ()  # float32 [...]
    features: Any = ()  # float32 [..., F]: what the policy's head reads


def extras_spec(
    config: Config, needed: Collection[str], num_parameters: int, num_features: int
) -> Any:
    """Return the specs of one entry's extras; `needed` is `Feature.records` of all features."""
    parameters = tf.TensorSpec([num_parameters], tf.float32)
    replays = bool(config.replay) and replay_mix.parse(config.replay).needs_features
    needs_features = replays or "features" in needed
    needs_value = "value" in needed
    if not (needs_features or needs_value):
        return parameters
    return Recorded(
        parameters,
        tf.TensorSpec([], tf.float32) if needs_value else (),
        tf.TensorSpec([num_features], tf.float32) if needs_features else (),
    )


def record(
    spec: Any, parameters: tf.Tensor, value: Callable[[], tf.Tensor], features: tf.Tensor
) -> Any:
    """Return the extras, of a step or of many, as `extras_spec` describes them."""
    if not isinstance(spec, Recorded):
        return parameters
    return Recorded(
        parameters,
        value() if spec.value != () else (),
        tf.cast(features, tf.float32) if spec.features != () else (),
    )


def policy_parameters(extras: Any) -> Any:
    """Return the policy's parameters in extras."""
    return extras.parameters if isinstance(extras, Recorded) else extras
