"""Choosing actions in an actor: an algorithm's `act`, traced once, so that a call costs little.

`UnrollPlayer` calls an `Act` for each step of its environments. NumPy computes it if it can
(`numpy_function`) and if one thread shall: with the overhead of TensorFlow's call, TensorFlow took
1.3 to 3.6 times as long for all sizes of MLPs and LSTMs that were tried. TensorFlow computes
convolutions, and what several threads or a GPU shall compute.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.actor.numpy_function import NumpyFunction
from impala_mm.algorithms import contract
from impala_mm.algorithms.interface import Algorithm, EnvironmentNumber
from impala_mm.data.numpy_translation import Untranslatable
from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import Entry


class Act:
    """An algorithm's `act` for E environments."""

    def __init__(self, algorithm: Algorithm, num_envs: int):
        """Trace the algorithm's `act` for `num_envs` environments."""
        self._action = algorithm.unroll.step.action
        self._num_actions = len(tf.nest.flatten(self._action))
        self._num_states = len(tf.nest.flatten(algorithm.initial_state(num_envs)))
        act, entry, state = _flat_act(algorithm, num_envs)
        self._numpy: NumpyFunction | None = None
        self._packed: Any = None  # the concrete function, if TensorFlow computes it in a graph
        if tf.config.functions_run_eagerly():  # by --debug
            self._tensorflow = _eagerly(act, entry)
            return
        concrete = tf.function(act, autograph=False).get_concrete_function(*entry, *state)
        contract.check_read(algorithm, concrete)
        self._numpy = _by_numpy(concrete, num_envs)
        if not self._numpy:
            self._packed = _packed(concrete, entry, state)
            self._tensorflow = as_operation(self._packed)

    @property
    def by_numpy(self) -> bool:
        """Whether NumPy computes it."""
        return self._numpy is not None

    def read_variables(self) -> None:
        """Act by the variables' present values from now on."""
        if self._numpy:
            self._numpy.read_variables()

    def frozen(self) -> "Act":
        """Return a copy that acts by the variables' present values for ever."""
        other = copy.copy(self)
        if self._numpy:
            other._numpy = self._numpy.frozen()
        elif self._packed:
            other._tensorflow = as_operation(self._packed, frozen=True)
        return other

    def __call__(
        self, entry: Entry, state: list[Any], number: list[tf.Tensor]
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return actions, a nest of NumPy arrays [E, ...], the next core state and extras.

        `entry` has arrays [E, ...]; `number` has the tensors of `EnvironmentNumber`. State and
        extras are flat lists of [E, ...].
        """
        read = (entry.observation, entry.reward, entry.action, entry.first, entry.mask)
        arrays, chosen = tf.nest.flatten(read), self._num_actions
        if self._numpy:
            results: list[Any] = self._numpy(*arrays, *state, *number)
        else:
            results = self._tensorflow(pack(*arrays), *state, *number)
            results[:chosen] = [part.numpy() for part in results[:chosen]]
        actions = tf.nest.pack_sequence_as(self._action, results[:chosen])
        extras = chosen + self._num_states  # where they begin
        return actions, results[chosen:extras], results[extras:]


def _flat_act(
    algorithm: Algorithm, num_envs: int
) -> tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec], list[tf.TensorSpec]]:
    """Return `act` as a function of flat tensors, and the specs of those.

    The first ones are the fields of an entry that `act` may read, the others the core state and
    the tensors of `EnvironmentNumber`.
    """
    exploration = tf.ones([num_envs])
    step, state = algorithm.unroll.step, algorithm.initial_state(num_envs)
    fields = (step.observation, step.reward, step.action, step.first, step.mask)
    entry = [tf.TensorSpec([num_envs, *s.shape], s.dtype) for s in tf.nest.flatten(fields)]
    states = [tf.TensorSpec(s.shape, s.dtype) for s in tf.nest.flatten(state)]
    numbers = [tf.TensorSpec([num_envs], tf.int32), tf.TensorSpec([], tf.int32)]

    def act(*flat: tf.Tensor) -> list[tf.Tensor]:
        read, kept = flat[: len(entry)], flat[len(entry) :]
        observation, reward, action, first, mask = tf.nest.pack_sequence_as(fields, read)
        seen = Entry(action, reward, None, None, observation, first, None, mask)
        before = tf.nest.pack_sequence_as(state, kept[: len(states)])
        environment = EnvironmentNumber(*kept[len(states) :])
        results = contract.act(algorithm, seen, before, exploration, environment)
        return list(itertools.chain.from_iterable(map(tf.nest.flatten, results)))

    return act, entry, states + numbers


def _eagerly(
    act: Callable[..., list[tf.Tensor]], entry: list[tf.TensorSpec]
) -> Callable[..., list[tf.Tensor]]:
    """Return the function as Python, which takes the parts of an entry as one tensor."""
    return lambda packed, *flat: act(*unpack(packed, entry), *flat)


def _by_numpy(concrete: Any, num_envs: int) -> NumpyFunction | None:
    """Return the function as NumPy computes it; None if TensorFlow shall compute it."""
    if tf.config.get_visible_devices("GPU"):
        return None
    if tf.config.threading.get_intra_op_parallelism_threads() > 1:  # by --intra_op_threads
        return None
    seed, _ = tf.compat.v1.get_seed(0)
    try:
        return NumpyFunction(concrete, np.random.default_rng([seed, num_envs]))
    except Untranslatable:
        return None


def _packed(concrete: Any, entry: list[tf.TensorSpec], state: list[tf.TensorSpec]) -> Any:
    """Return the concrete function that takes the parts of an entry as one tensor."""

    @tf.function(autograph=False)
    def packed_act(packed: tf.Tensor, *flat: tf.Tensor) -> list[tf.Tensor]:
        return concrete(*unpack(packed, entry), *flat)

    return packed_act.get_concrete_function(packed_spec(entry), *state)
