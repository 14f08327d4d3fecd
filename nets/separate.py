"""Two networks that read the same entries: one for a policy, and one for values."""

from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from nets.network import Network, State


class Separate(snt.Module):
    """A network for a policy and another one for values, with a torso and a core each.

    It is used like a `Network`, but its features are two tensors, as `Features`. Both networks
    must have the same frame stack, whose frames the state contains once.
    """

    def __init__(self, policy: Network, value: Network):
        super().__init__(name="separate")
        self._policy, self._value = policy, value  # Sonnet orders their variables by these names
        self.num_features: int = policy.num_features  # F, of either

    def initial_state(self, batch: int | tf.Tensor) -> State:
        """Return the state at an episode's start: nest of [B, ...]."""
        frames, core = self._policy.initial_state(batch)
        return State(frames, (core, self._value.initial_state(batch).core))

    def state_after(self, observation: Any, first: tf.Tensor) -> State:
        """Return the state after observations; see `Network.state_after`."""
        state = self.initial_state(tf.shape(first)[1])
        return State(self._policy.state_after(observation, first).frames, state.core)

    def earlier_images(self, state: State) -> Any:
        """Return the images before the next entry; see `Network.earlier_images`."""
        return self._policy.earlier_images(state)

    def step(
        self, observation: Any, reward: Any, action: Any, first: Any, state: State
    ) -> tuple["Features", State]:
        """Return (features [B, F], state) after reading one entry; see `Network.step`."""
        return self._both("step", (observation, reward, action, first), state)

    def unroll(
        self, observation: Any, reward: Any, action: Any, first: Any, state: State
    ) -> tuple["Features", State]:
        """Return (features [T, B, F], last state) after reading T entries; see `Network.unroll`."""
        return self._both("unroll", (observation, reward, action, first), state)

    def _both(self, read: str, entry: tuple, state: State) -> tuple["Features", State]:
        frames, cores = state
        (policy, after), (value, other) = (
            getattr(network, read)(*entry, State(frames, core))
            for network, core in zip((self._policy, self._value), cores, strict=True)
        )
        return Features(policy, value), State(after.frames, (after.core, other.core))


class Features(NamedTuple):
    """The features of two networks: float32 [..., F] each."""

    policy: tf.Tensor
    value: tf.Tensor
