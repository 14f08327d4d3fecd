"""A policy's network, and Q-networks that read observations and actions."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import action_policies, networks
from impala_mm.algorithms.parts.action_policies import PolicyDistribution
from impala_mm.algorithms.parts.distributions import Distribution
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Entry
from impala_mm.environments.types import EnvironmentSpec


class _Detached:
    """A network that others train: its features pass no gradient on, its variables are not ours."""

    def __init__(self, network: Any):
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def step(self, *entries_and_state: Any) -> tuple[tf.Tensor, Any]:
        features, state = self._network.step(*entries_and_state)
        return tf.stop_gradient(features), state

    def unroll(self, *entries_and_state: Any) -> tuple[tf.Tensor, Any]:
        features, state = self._network.unroll(*entries_and_state)
        return tf.stop_gradient(features), state


class PolicyNetwork(snt.Module):
    """A network with the head of a policy; `mean` is the algorithm's `Normaliser.mean`.

    The kind of the policy is that of the flags, unless one is given. If Q-networks are given, the
    policy is an MLP that reads the features of theirs.
    """

    def __init__(
        self,
        config: Config,
        environment: EnvironmentSpec,
        mean: Any = None,
        distribution: PolicyDistribution | None = None,
        critics: "CriticNetwork | None" = None,
    ):
        super().__init__(name="policy_network")
        self.distribution = distribution or action_policies.choose(
            environment.actions, config.box_policy, config.box_deviation
        )
        self._head = action_policies.make_head(self.distribution, config.policy_init_scale)
        if critics:
            if critics.body is None:
                raise UserMistake(
                    "--shared_network: Q-networks read vectors as they are, so there is no network "
                    "to share: leave it out"
                )
            self._body: Any = _Detached(critics.body)
            self._head = snt.Sequential([networks.make_mlp(config), self._head])
        else:
            self._body = networks.make_network(config, environment, mean, mlp_heads=True)
        self._head(tf.zeros([1, self._body.num_features]))  # creates the variables

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the network's state at the start of an episode."""
        return self._body.initial_state(batch)

    def state_after(self, entries: Entry) -> Any:
        """Return the state after the frames of entries [N, B, ...] (`nets.Network`)."""
        return self._body.state_after(entries.observation, entries.first)

    def earlier_images(self, state: Any) -> Any:
        """Return the images before the next entry that a state holds (`nets.Network`)."""
        return self._body.earlier_images(state)

    def shift_images(
        self, observation: Any, state: Any, offsets: tf.Tensor, most: int
    ) -> tuple[Any, Any]:
        """Return observations and the state before them with shifted images (`nets.Network`)."""
        return self._body.shift_images(observation, state, offsets, most)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (parameters [B, P], state) after entries [B, ...]."""
        features, state = self._body.step(
            entry.observation, entry.reward, entry.action, entry.first, state
        )
        return self._head(features), state

    def parameters(self, entries: Entry, state: Any) -> tf.Tensor:
        """Return the distribution's parameters [T+1, B, P] at entries [T+1, B, ...]."""
        e = entries
        features, _ = self._body.unroll(e.observation, e.reward, e.action, e.first, state)
        return snt.BatchApply(self._head)(features)

    def unroll(self, entries: Entry, state: Any) -> Distribution:
        """Return the policy at entries [T+1, B, ...]."""
        return self.distribution.make(self.parameters(entries, state), entries.mask)


class CriticNetwork(snt.Module):
    """Q-networks. They read vectors as they are, and other observations by a network.

    `mean` is the algorithm's `Normaliser.mean`.
    """

    def __init__(self, config: Any, environment: EnvironmentSpec, mean: Any = None):
        super().__init__(name="critic_network")
        leaves = tf.nest.flatten(environment.observation)
        plain = all(leaf.dtype.is_floating and not hasattr(leaf, "choices") for leaf in leaves)
        direct = plain and networks.chosen_name(config, environment) == "MLPAgent"
        direct = direct and environment.frame_stack == 1
        # What reads the observations, if they are not read as they are.
        make = functools.partial(networks.make_network, config, environment, mean)
        self.body = None if direct else make(mlp_heads=True)
        size = sum(leaf.shape.num_elements() for leaf in leaves)
        self.num_features = self.body.num_features if self.body else size
        self._critics: Any = self._make_critics(config, environment, self.num_features)

    def _make_critics(self, config: Any, environment: EnvironmentSpec, features: int) -> Any:
        sizes = (features, config.num_critics, config.critic_dropout)
        return networks.make_critics(config, environment, *sizes)

    def initial_state(self, batch: int | tf.Tensor) -> Any:
        """Return the state at the start of an episode; () if observations are read as they are."""
        return self.body.initial_state(batch) if self.body else ()

    def state_after(self, entries: Entry) -> Any:
        """Return the state after the frames of entries [N, B, ...] (`nets.Network`)."""
        return self.body.state_after(entries.observation, entries.first) if self.body else ()

    def shift_state(self, observation: Any, state: Any, offsets: tf.Tensor, most: int) -> Any:
        """Return the state before observations with shifted images (`nets.Network`)."""
        return self.body.shift_images(observation, state, offsets, most)[1] if self.body else ()

    def unroll(self, entries: Entry, state: Any) -> tf.Tensor:
        """Return the features [T+1, B, F] of entries [T+1, B, ...]."""
        if not self.body:
            return _joined(entries.observation, axes=2)
        e = entries
        return self.body.unroll(e.observation, e.reward, e.action, e.first, state)[0]

    def values(self, features: tf.Tensor, actions: Any, *seed: tf.Tensor) -> tf.Tensor:
        """Return all values [Q-networks, ...] of actions at features [..., F].

        A seed draws the units that are left out, if --critic_dropout asks for that.
        """
        return self._critics(features, actions, *seed)

    def step(self, entry: Entry, state: Any) -> tuple[tf.Tensor, Any]:
        """Return (features [B, F], state) after entries [B, ...]."""
        if not self.body:
            return _joined(entry.observation, axes=1), ()
        e = entry
        return self.body.step(e.observation, e.reward, e.action, e.first, state)


class ChoiceCriticNetwork(CriticNetwork):
    """Q-networks that return the values of all choices at once.

    The value of several choices together is the sum of those of each.
    """

    def _make_critics(self, config: Any, environment: EnvironmentSpec, features: int) -> Any:
        self._actions = environment.actions
        choices = self._actions.num_features
        return networks.make_choice_critics(config, choices, features, config.num_critics)

    def all_values(self, features: tf.Tensor) -> tf.Tensor:
        """Return all values [Q-networks, ..., A] of all choices at features [..., F]."""
        return self._critics(features)

    def values(self, features: tf.Tensor, actions: Any) -> tf.Tensor:
        """Return all values [Q-networks, ...] of actions at features [..., F]."""
        every = self.all_values(features)
        (spec,) = tf.nest.flatten(self._actions.specs)
        rows = tf.reshape(actions, [-1, *spec.shape])
        chosen = self._actions.features(rows, tf.zeros(tf.shape(rows)[:1], tf.bool))
        chosen = tf.reshape(tf.cast(chosen, every.dtype), tf.shape(every)[1:])
        return tf.reduce_sum(every * chosen, -1)


class AtFeatures(NamedTuple):
    """Q-networks where the observation is given."""

    critics: CriticNetwork
    features: tf.Tensor  # [..., F]
    # From the values of all Q-networks [Q-networks, ...] to the one [...] that counts.
    combine: Callable[[tf.Tensor], tf.Tensor]
    seed: tuple[tf.Tensor, ...] = ()  # one, if units are left out

    def values(self, actions: Any) -> tf.Tensor:
        """Return the values [Q-networks, ...] of actions, nest of [..., ...]."""
        return self.critics.values(self.features, actions, *self.seed)

    def value(self, actions: Any) -> tf.Tensor:
        """Return the values [...] of actions that count."""
        return self.combine(self.values(actions))

    def all_values(self) -> tf.Tensor:
        """Return the values [Q-networks, ..., A] of all choices."""
        assert isinstance(self.critics, ChoiceCriticNetwork)
        return self.critics.all_values(self.features)


def _joined(observation: Any, axes: int) -> tf.Tensor:
    """Return the numbers of observations, whose parts have this number of leading axes, as one."""
    leaves = tf.nest.flatten(observation)
    leading = tf.shape(leaves[0])[:axes]
    sizes = [leaf.shape[axes:].num_elements() for leaf in leaves]
    flat = [
        tf.reshape(leaf, tf.concat([leading, [size]], 0))
        for leaf, size in zip(leaves, sizes, strict=True)
    ]
    return tf.ensure_shape(tf.concat(flat, -1), [*leaves[0].shape[:axes], sum(sizes)])
