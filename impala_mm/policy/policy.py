"""A trained policy, as users call it.

policy = impala_mm.load_policy("runs/CartPole-v1-impala-20261122-101500")
policy.reset()                                  at the start of each episode
action = policy(observation)                    later also with the previous action's reward

actions = policy.act(observations)              for a batch of environments
values = policy.values(observations)
actions, state = policy.predict(observations, state, episode_start)    as in Stable-Baselines3
policy.save("my_policy", half=True)             for load_policy and --checkpoint
policy.export("exported")                       a SavedModel
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.config.errors import BadSettings
from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags, nests
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.make import made_level
from impala_mm.environments.observations import ObservationConversion
from impala_mm.policy import exports
from impala_mm.policy.core import PolicyCore
from impala_mm.records import checkpoint, saved_variables


class Memory(NamedTuple):
    """The memory of a policy of B environments."""

    state: Any  # the network's recurrent state
    action: Any  # the last actions, a nest of arrays [B, ...]


class Policy(PolicyCore):
    """A trained policy: call it to act in one environment; `act` and `values` take batches."""

    _conversion: ObservationConversion | None = None
    _memory: Memory | None = None
    _numbers: Callable[[Any], np.ndarray] | None = None  # of choices, by --discretization

    def reset(self) -> None:
        """Start new episodes with the next call."""
        self._memory = None

    def __call__(
        self,
        observation: Any,
        reward: float = 0.0,
        explore: bool = False,
        action_mask: Any = None,
    ) -> Any:
        """Return the action for this observation; `reward` is that of the previous action.

        The action is the most likely one or, with `explore`, drawn as in tests. It is what the
        environment's `step` takes: an int for Discrete actions, an array for a Box, also if
        --discretization makes choices of it.

        If the environment offers masks of its actions, `action_mask` is needed, unless it is a part
        of the observation; no action that it forbids is returned. ValueError is raised if it is
        missing or wrong.
        """
        masks = None if action_mask is None else [action_mask]
        action = self.act([observation], [reward], explore=explore, action_masks=masks)[0]
        is_choice = self.spec.actions.discrete and self.config.discretization == "none"
        return int(action) if is_choice else action

    def act(
        self,
        observations: Any,
        rewards: Sequence[float] | None = None,
        starts: Sequence[bool] | None = None,
        explore: bool = False,
        action_masks: Sequence[Any] | None = None,
    ) -> Any:
        """Return an action for each of B environments, and remember what the network needs to.

        `observations` are a sequence of B, or for a Dict space a dictionary of arrays [B, ...].
        `rewards` are those of the previous actions. `starts` says which environments have begun an
        episode since the last call; all have at the first call, after `reset`, and if their number
        differs. The other arguments are those of a single call.
        """
        rows = self._rows(observations)
        memory, first = self._recall(len(rows), starts)
        entry = self._entry(rows, rewards, memory, first, action_masks)
        actions, state, _ = self.step(entry, memory.state, explore)
        self._memory = Memory(state, actions)
        return self._to_environments(actions)

    def values(
        self,
        observations: Any,
        rewards: Sequence[float] | None = None,
        starts: Sequence[bool] | None = None,
        action_masks: Sequence[Any] | None = None,
    ) -> np.ndarray:
        """Return the value of each of B observations: the expected sum of discounted rewards.

        Rewards are those of training, clipped or scaled as its flags say. Call it before `act` with
        the same arguments; it remembers nothing.
        """
        rows = self._rows(observations)
        memory, first = self._recall(len(rows), starts)
        return self.judge(
            self._entry(rows, rewards, memory, first, action_masks), memory.state
        ).value.numpy()

    def predict(
        self,
        observation: Any,
        state: Memory | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Memory]:
        """Return (actions, next state) as a model of Stable-Baselines3, or of its Contrib, does.

        `observation` is one or a batch; `state` is what the last call returned, and `episode_start`
        says which environments have begun an episode since. Actions are drawn from the policy,
        unless they shall be the most likely ones: `deterministic`. The network reads rewards of 0.
        """
        is_one = self._is_one(observation)
        rows = [observation] if is_one else self._rows(observation)
        first = np.broadcast_to(
            state is None if episode_start is None else episode_start, [len(rows)]
        )
        memory = state or self._start(len(rows))
        allowed = [action_masks] if is_one and action_masks is not None else action_masks
        entry = self._entry(rows, None, memory, first, allowed)
        actions, after, _ = self.step(entry, memory.state, not deterministic)
        chosen = self._to_environments(actions)
        return (chosen[0] if is_one else chosen), Memory(after, actions)

    def save(self, folder: str | Path, half: bool = False) -> None:
        """Write the policy's weights to a new folder, which `load_policy` and --checkpoint take.

        It is smaller than a checkpoint, since nothing that only training needs is in it; with
        `half`, floating-point numbers have 16 bits. Raises BadSettings if the folder exists.
        """
        target = Path(folder)
        if target.exists():
            raise BadSettings(f"{target} exists: name a new folder")
        about = self.portable_about()
        saved_variables.save_weights(self.algorithm.variables, self.path, target, about, half)

    def export(self, folder: str | Path, export_format: str = "saved_model") -> None:
        """Write the policy as a SavedModel, which needs only TensorFlow, as --mode=export does.

        `export_format` is another one of --export_format: numpy, onnx, or a name that
        `impala_mm.policy.register` has added. An earlier export is replaced. Raises BadSettings if
        the folder holds anything else, or the policy cannot be written in the format.
        """
        if export_format not in exports.EXPORTS:
            raise BadSettings(exports.EXPORTS.unknown(export_format))
        target = Path(folder).resolve()
        if wrong := exports.why_not_replaceable(target):
            raise BadSettings(f"{target}: {wrong}")
        try:
            with exports.replace(target) as work:
                exports.EXPORTS[export_format](self, work)
        except exports.CannotExport as error:
            raise BadSettings(str(error)) from error.__cause__

    def _recall(self, batch: int, starts: Sequence[bool] | None) -> tuple[Memory, Any]:
        """Return what is remembered of `batch` environments, and which of them begin an episode."""
        memory = self._memory
        if memory is None or len(nests.flatten(memory.action)[0]) != batch:
            return self._start(batch), np.ones(batch, bool)
        return memory, np.zeros(batch, bool) if starts is None else np.asarray(starts, bool)

    def _start(self, batch: int) -> Memory:
        return Memory(self.initial_state(batch), self.spec.actions.zeros(batch))

    def _entry(
        self, rows: Sequence[Any], rewards: Any, memory: Memory, first: Any, masks: Any
    ) -> Entry:
        """Return the entries [B, ...] of B observations."""
        batch = len(rows)
        for what, argument in (("rewards", rewards), ("starts", first), ("action_masks", masks)):
            if argument is not None and len(argument) != batch:
                raise ValueError(f"{batch} observations, but {len(argument)} {what}")
        raw = [None] * batch if masks is None else masks
        seen = _stack([self._read(row) for row in rows])
        allowed = _stack([self._read_mask(row, mask) for row, mask in zip(rows, raw, strict=True)])
        rewards = np.zeros(batch, np.float32) if rewards is None else rewards
        return self.entry(seen, rewards, memory.action, first, allowed)

    def _to_environments(self, actions: Any) -> Any:
        """Return actions as environments take them: by --discretization, choices are numbers."""
        chosen = self.spec.actions.to_environments(actions)
        if self.config.discretization == "none":
            return chosen
        if self._numbers is None:
            options = from_flags.environment_options(self.config)
            level = made_level(self.spec.level_name, **options)
            self._numbers = level.numbers_of_choices()
        return np.stack([self._numbers(action) for action in chosen])

    def _rows(self, observations: Any) -> Sequence[Any]:
        """Return observations as a sequence of them.

        Those of a Dict or Tuple space may be one dictionary or tuple of arrays [B, ...].
        """
        parts = isinstance(observations, tuple) and isinstance(self.spec.observation, tuple)
        if isinstance(observations, dict) or (parts and not self._is_one(observations[0])):
            return [nests.row(observations, i) for i in range(len(nests.flatten(observations)[0]))]
        return observations

    def _is_one(self, observation: Any) -> bool:
        """Return whether this is one observation, and not a batch of them."""
        from impala_mm.environments import masks  # noqa: PLC0415

        part = nests.flatten(masks.rest_of_observation(observation))[0]
        spec = self.spec.observation
        if self.spec.emulator and isinstance(spec, tf.TensorSpec):
            return np.ndim(part) == len(spec.shape)
        return np.ndim(part) == len(self._converts().leaves[0].raw_shape)

    def _converts(self) -> ObservationConversion:
        if self._conversion is None:
            options = from_flags.environment_options(self.config)
            level = made_level(self.spec.level_name, **options)
            self._conversion = level.conversion().observation
        return self._conversion

    def _read(self, observation: Any) -> Any:
        """Return an observation as the network reads it: a nest of arrays, without a batch axis."""
        spec = self.spec.observation
        if isinstance(spec, tf.TensorSpec) and not isinstance(spec, ChoiceSpec):
            seen, shape = np.asarray(observation), tuple(spec.shape)
            # Bytes of an emulator may come as any integers; other images are converted to bytes.
            is_bytes = seen.dtype.kind in "iu" if self.spec.emulator else seen.dtype == np.uint8
            if seen.shape == shape and (spec.dtype != tf.uint8 or is_bytes):
                return seen.astype(spec.dtype.as_numpy_dtype, copy=False)
            if self.spec.emulator and seen.shape != shape:
                raise ValueError(f"the observation has shape {list(seen.shape)} instead of {shape}")
            if self.spec.emulator:
                raise ValueError(
                    f"the observation has {seen.dtype} numbers instead of bytes (uint8)"
                )
        conversion = self._converts()
        return nests.pack(conversion.parts, conversion.read(observation))

    def _read_mask(self, observation: Any, action_mask: Any) -> Any:
        """Return the mask as the algorithm reads it: a nest of arrays, without a batch axis."""
        spec = self.spec
        if not spec.masks:
            return ()  # an environment without masks allows everything
        from impala_mm.environments import masks  # noqa: PLC0415

        raw = masks.mask_in_observation(observation) if action_mask is None else action_mask
        if raw is None:
            raise ValueError(
                f"{spec.level_name} offers masks of its actions: pass the one that came with this "
                f'observation, such as action_mask=info["action_mask"] (action_masks for predict '
                f"and for batches)"
            )
        read = masks.read_mask(spec.actions, raw)
        return tf.nest.pack_sequence_as(spec.masks, read)


def _stack(rows: Sequence[Any]) -> Any:
    """Return a nest of arrays [B, ...] from B nests of arrays."""
    return tf.nest.map_structure(lambda *parts: np.stack(parts), *rows)


def load_policy(
    logdir: str | Path,
    best: bool = False,
    level_name: str = "",
    as_teacher: bool = False,
    **changes: Any,
) -> Policy:
    """Return the policy of a run's newest or best checkpoint, or of a checkpoint's own folder.

    `logdir` may be the name of a policy that comes with this package. `changes`: see `PolicyCore`.
    Raises checkpoint.Missing, Damaged or Mismatch, and
    environments.BadLevel; with `as_teacher` also CannotTeach, if it cannot `judge_unroll`.
    """
    policy = Policy(*checkpoint.find(logdir, best), level_name, **changes)
    if as_teacher:
        policy.check_teaches()
    return policy
