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

from impala_mm.algorithms import contract, registry
from impala_mm.data.trajectory import Entry, leaf_names
from impala_mm.environments import from_flags
from impala_mm.environments.make import action_names
from impala_mm.policy import saved_model_readme
from impala_mm.policy.core import PolicyCore
from impala_mm.records import checkpoint, saved_variables

Named = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """One function of the export."""

    function: Any  # a concrete function of TensorFlow
    inputs: dict[str, tf.TensorSpec]


def write_saved_model(policy: PolicyCore, folder: Path) -> None:
    """Write the SavedModel and its README.txt, example.py and signature.json to a folder.

    What is read of it as a checkpoint is never executed, unlike a SavedModel.
    """
    signatures = {"serving_default": _act(policy), "initial_state": _initial_state(policy)}
    functions = {name: signature.function for name, signature in signatures.items()}
    module = tf.Module()
    # The folder `variables` is a checkpoint, too, for `load_policy` and --teacher.
    weights = saved_variables.named_for_acting(policy.algorithm.variables)
    for kind, of_kind in saved_variables.tree(weights).items():
        setattr(module, kind, of_kind)
    kept = {id(variable) for variable in weights.values()}
    read = (variable for function in functions.values() for variable in function.graph.variables)
    module.others = list({id(v): v for v in read if id(v) not in kept}.values())
    tf.saved_model.save(module, str(folder), functions)
    checkpoint.describe_files(folder / "variables", policy.portable_about()._asdict())
    described = saved_model_readme.describe(
        {n: (s.inputs, s.function.structured_outputs) for n, s in signatures.items()},
        policy.about,
        policy.path.name,
        _action_names(policy),
        policy.spec.actions,
    )
    example = saved_model_readme.example(described)
    (folder / "signature.json").write_text(json.dumps(described, indent=1, allow_nan=False) + "\n")
    (folder / "example.py").write_text(example)
    (folder / "README.txt").write_text(saved_model_readme.readme(described, example))


def _act(policy: PolicyCore) -> Signature:
    """Return the signature serving_default.

    Its inputs and outputs have a tensor for each part of an observation, an action and a state, and
    for each part of a mask if the environment offers masks. A Box's numbers are those of the
    environment, not those of the policy.
    """
    algorithm, state, spec = policy.algorithm, policy.initial_state(1), policy.spec
    choose = registry.evaluated_act(algorithm)
    actions, number = spec.actions, tf.TensorSpec([], tf.float32)
    read = {  # nests of specs without B, by name
        "observation": spec.observation,
        "action_mask": spec.masks,
        "first": tf.TensorSpec([], tf.bool),
        "last_action": actions.specs,
        "last_reward": number,
        "exploration": number,
        "state": tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), state),
    }
    names = {name: leaf_names(nest, name) for name, nest in read.items()}

    def act(**flat: tf.Tensor) -> Named:
        given = {
            name: tf.nest.pack_sequence_as(nest, [flat[each] for each in names[name]])
            for name, nest in read.items()
        }
        before, last = given["state"], actions.from_environment_units(given["last_action"])
        entry = Entry(
            action=last,
            reward=given["last_reward"],
            terminated=None,
            truncated=None,
            observation=given["observation"],
            first=given["first"],
            extras=None,
            mask=given["action_mask"],
        )
        action, after, _ = choose(entry, before, given["exploration"])
        judged = contract.judge(algorithm, entry, before)
        return {
            **_named(actions.in_environment_units(action), "action"),
            "policy": judged.policy,
            "value": judged.value,
            **({} if judged.values is None else {"values": judged.values}),
            **_named(after, "state"),
        }

    specs = {
        each: tf.TensorSpec([None, *leaf.shape], leaf.dtype, each)
        for name, nest in read.items()
        for each, leaf in zip(names[name], tf.nest.flatten(nest), strict=True)
    }
    return _trace(act, specs)


def _initial_state(policy: PolicyCore) -> Signature:
    """Return the signature initial_state; it has no outputs if the network is not recurrent."""

    def initial_state(batch_size: tf.Tensor) -> Named:
        return _named(policy.initial_state(batch_size), "state")

    return _trace(initial_state, {"batch_size": tf.TensorSpec([], tf.int32, "batch_size")})


def _named(nest: Any, name: str) -> Named:
    """Return the tensors of a nest by their names."""
    return dict(zip(leaf_names(nest, name), tf.nest.flatten(nest), strict=True))


def _trace(function: Callable[..., Named], specs: dict[str, tf.TensorSpec]) -> Signature:
    def seedless(**given: tf.Tensor) -> Named:
        # Of this graph only. Else sampling would use the run's seed, and every server would draw
        # the same actions.
        tf.random.set_seed(None)
        return function(**given)

    return Signature(tf.function(seedless, autograph=False).get_concrete_function(**specs), specs)


def _action_names(policy: PolicyCore) -> list[str]:
    options = from_flags.environment_options(policy.config)
    return action_names(policy.spec.level_name, policy.spec.actions, **options)
