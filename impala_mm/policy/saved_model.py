"""A policy as a TensorFlow SavedModel: two functions of tensors, and the weights that they read.

    serving_default    one step of B games: observations in, actions out
    initial_state      the recurrent state at the start of B games

The caller passes the recurrent state from step to step as flat tensors, which have the same names
as inputs and as outputs. `jobs.export` calls this; `saved_model_readme` writes the texts of the
folder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.data.trajectory import Entry
from impala_mm.environments import from_flags
from impala_mm.environments.action_names import action_names
from impala_mm.policy import saved_model_readme
from impala_mm.policy.policy import Policy

Named = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """One function of the export."""

    function: Any  # a concrete function of TensorFlow
    inputs: dict[str, tf.TensorSpec]


def write_saved_model(policy: Policy, folder: Path) -> None:
    """Write the SavedModel and its README.txt, example.py and signature.json to a folder."""
    # Else sampling would use the run's seed, and every server would draw the same actions.
    tf.random.set_seed(None)
    signatures = {"serving_default": _act(policy), "initial_state": _initial_state(policy)}
    functions = {name: signature.function for name, signature in signatures.items()}
    module = tf.Module()
    read = (variable for function in functions.values() for variable in function.graph.variables)
    module.weights = list({id(variable): variable for variable in read}.values())
    tf.saved_model.save(module, str(folder), functions)
    described = saved_model_readme.describe(
        {n: (s.inputs, s.function.structured_outputs) for n, s in signatures.items()},
        policy.about,
        policy.path.name,
        _action_names(policy),
    )
    example = saved_model_readme.example(described)
    (folder / "signature.json").write_text(json.dumps(described, indent=1, allow_nan=False) + "\n")
    (folder / "example.py").write_text(example)
    (folder / "README.txt").write_text(saved_model_readme.readme(described, example))


def _act(policy: Policy) -> Signature:
    """Return the signature serving_default."""
    algorithm, state = policy.algorithm, policy.initial_state(1)
    names = state_names(state)

    def act(
        observation: tf.Tensor,
        first: tf.Tensor,
        last_action: tf.Tensor,
        last_reward: tf.Tensor,
        exploration: tf.Tensor,
        **flat: tf.Tensor,
    ) -> Named:
        before = tf.nest.pack_sequence_as(state, [flat[name] for name in names])
        entry = Entry(last_action, last_reward, None, None, observation, first, None)
        action, after, _ = algorithm.act(entry, before, exploration)
        judged = algorithm.judge(entry, before)
        found = {"action": action, "policy": judged.policy, "value": judged.value}
        return found | dict(zip(names, tf.nest.flatten(after), strict=True))

    def batch(name: str, dtype: Any, shape: Any = ()) -> tf.TensorSpec:
        return tf.TensorSpec([None, *shape], dtype, name)

    specs = {
        "observation": batch(
            "observation", policy.spec.observation.dtype, policy.spec.observation.shape
        ),
        "first": batch("first", tf.bool),
        "last_action": batch("last_action", tf.int32),
        "last_reward": batch("last_reward", tf.float32),
        "exploration": batch("exploration", tf.float32),
    }
    for name, part in zip(names, tf.nest.flatten(state), strict=True):
        specs[name] = batch(name, part.dtype, part.shape[1:])
    return _trace(act, specs)


def _initial_state(policy: Policy) -> Signature:
    """Return the signature initial_state; it has no outputs if the network is not recurrent."""
    names = state_names(policy.initial_state(1))

    def initial_state(batch_size: tf.Tensor) -> Named:
        state = policy.initial_state(batch_size)
        return dict(zip(names, tf.nest.flatten(state), strict=True))

    return _trace(initial_state, {"batch_size": tf.TensorSpec([], tf.int32, "batch_size")})


def _trace(function: Callable[..., Named], specs: dict[str, tf.TensorSpec]) -> Signature:
    return Signature(tf.function(function, autograph=False).get_concrete_function(**specs), specs)


def state_names(state: Any, name: str = "state") -> list[str]:
    """Return names for the tensors of a nest, made of their paths, in `tf.nest.flatten`'s order."""
    if isinstance(state, dict):
        parts = [(key, state[key]) for key in sorted(state)]
    elif hasattr(state, "_fields"):
        parts = list(zip(state._fields, state, strict=True))
    elif isinstance(state, list | tuple):
        parts = list(enumerate(state))
    else:
        return [name]
    return [each for key, part in parts for each in state_names(part, f"{name}_{key}")]


def _action_names(policy: Policy) -> list[str]:
    options = from_flags.environment_options(policy.config)
    return action_names(policy.spec.level_name, policy.spec.num_actions, **options)
