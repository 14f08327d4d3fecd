"""A policy as functions of flat tensors, which exports write, and their description.

    act              one step of B games: observations in, actions out
    initial_state    the recurrent state at the start of B games

The caller passes the recurrent state from step to step as flat tensors, which have the same names
as inputs and as outputs.
"""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import contract
from impala_mm.data.trajectory import Entry, leaf_names
from impala_mm.environments import from_flags
from impala_mm.environments.make import action_names
from impala_mm.policy.core import PolicyCore

Named = dict[str, tf.Tensor]

_MEANING = {
    "observation": "the environment's observation",
    "action_mask": "true for each choice that the environment allows now",
    "first": "whether this is an episode's first observation, which resets the state",
    "last_action": "the action before this observation; ignored where first is true",
    "last_reward": "the raw reward for that action; ignored where first is true",
    "exploration": "0: the most likely action (use this if in doubt); 1: sample as in tests",
    "action": "the action to take",
    "value": "the expected discounted sum of future rewards, clipped as in training",
    "values": "the same for each action, if that is taken now and the best ones later",
    "next_state": "recurrent state; an input of the next step, there without next_",
    "batch_size": "the number of games, B",
}
_PROBABILITIES = "the probability of each action"
_POLICY = "the parameters of the actions' distribution"
_MADE_BY = ("env_kwargs", "env_wrappers")  # flags by which environments are made
_DISCRETISED = ("discretization", "n_actions_per_dim", "action_ratio")
_STATE = "recurrent state; pass what came out to the next step"


class Signature(NamedTuple):
    """One function of the export."""

    function: Any  # a concrete function of TensorFlow
    inputs: dict[str, tf.TensorSpec]


def act(policy: PolicyCore, explores: bool = True) -> Signature:
    """Return what chooses actions; unless it `explores`, always the most likely ones.

    Its inputs and outputs have a tensor for each part of an observation, an action and a state, and
    for each part of a mask if the environment offers masks. A Box's numbers are those of the
    environment, not those of the policy.
    """
    algorithm, state, spec = policy.algorithm, policy.initial_state(1), policy.spec
    choose = contract.evaluated_act(algorithm)
    actions, number = spec.actions, tf.TensorSpec([], tf.float32)
    read = {  # nests of specs without B, by name
        "observation": spec.observation,
        "action_mask": spec.masks,
        "first": tf.TensorSpec([], tf.bool),
        "last_action": actions.specs,
        "last_reward": number,
        **({"exploration": number} if explores else {}),
        "state": tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), state),
    }
    names = {name: leaf_names(nest, name) for name, nest in read.items()}

    def step(**flat: tf.Tensor) -> Named:
        values = {
            name: tf.nest.pack_sequence_as(nest, [flat[part] for part in names[name]])
            for name, nest in read.items()
        }
        before, last = values["state"], actions.from_environment_units(values["last_action"])
        entry = Entry(
            action=last,
            reward=values["last_reward"],
            terminated=None,
            truncated=None,
            observation=values["observation"],
            first=values["first"],
            extras=None,
            mask=values["action_mask"],
        )
        exploration = values.get("exploration", tf.zeros_like(entry.reward))
        action, after, _ = choose(entry, before, exploration)
        judged = contract.judge(algorithm, entry, before)
        return {
            **named(actions.in_environment_units(action), "action"),
            "policy": judged.policy,
            "value": judged.value,
            **({} if judged.values is None else {"values": judged.values}),
            **named(after, "state"),
        }

    specs = {
        part: tf.TensorSpec([None, *leaf.shape], leaf.dtype, part)
        for name, nest in read.items()
        for part, leaf in named(nest, name).items()
    }
    return _trace(step, specs)


def initial_state(policy: PolicyCore) -> Signature:
    """Return the signature initial_state; it has no outputs if the network is not recurrent."""

    def begin(batch_size: tf.Tensor) -> Named:
        return named(policy.initial_state(batch_size), "state")

    return _trace(begin, {"batch_size": tf.TensorSpec([], tf.int32, "batch_size")})


def named(nest: Any, name: str) -> Named:
    """Return the tensors of a nest by their names."""
    return dict(zip(leaf_names(nest, name), tf.nest.flatten(nest), strict=True))


def _trace(function: Callable[..., Named], specs: dict[str, tf.TensorSpec]) -> Signature:
    def seedless(**inputs: tf.Tensor) -> Named:
        # Of this graph only. Else sampling would use the run's seed, and every server would draw
        # the same actions.
        tf.random.set_seed(None)
        return function(**inputs)

    return Signature(tf.function(seedless, autograph=False).get_concrete_function(**specs), specs)


class Guide(NamedTuple):
    """The texts of README.txt and example.py that depend on the format."""

    holds: str  # what the folder holds, as a noun
    needs: str  # what must be installed
    # The example's text, with places for the arrays that it needs: {observation}, {action},
    # {state} and the words {and_masks}.
    example: str
    arrays: str  # the module that makes them: tf or np


def write_guide(
    policy: PolicyCore, folder: Path, signatures: dict[str, Signature], guide: Guide
) -> None:
    """Write README.txt, example.py and signature.json, which explain an export, to its folder."""
    described = _describe(policy, signatures)
    example = _example(next(iter(described["signatures"].values()))["inputs"], guide)
    (folder / "signature.json").write_text(json.dumps(described, indent=1, allow_nan=False) + "\n")
    (folder / "example.py").write_text(example)
    (folder / "README.txt").write_text(_readme(described, guide, example))


def _example(inputs: dict[str, Any], guide: Guide) -> str:
    """Return the text of example.py, which runs as it is in the folder of the export."""

    def values(kind: str, function: str = "zeros") -> list[str]:
        module = guide.arrays
        return [
            f'    "{name}": {module}.{function}({[2, *tensor["shape"][1:]]}, '
            f"{module}.{tensor['dtype']}),"
            for name, tensor in inputs.items()
            if f"{name}_".startswith(f"{kind}_")
        ]

    masks = values("action_mask", "ones")
    return guide.example.format(
        observation="\n".join(values("observation") + masks),
        and_masks=" and masks" if masks else "",
        action="\n".join(values("last_action")),
        state="\n".join(values("state")),
    )


def _describe(policy: PolicyCore, signatures: dict[str, Signature]) -> dict[str, Any]:
    """Return the content of signature.json; null stands for B, the number of games."""
    about, spec = policy.about, policy.spec
    meaning = _MEANING | {"policy": _POLICY if spec.actions.discrete is None else _PROBABILITIES}
    discretised = about.settings.get("discretization", "none") != "none"
    options = from_flags.environment_options(policy.config)
    return {
        "level_name": about.made_of["--level_name"],
        **{
            flag: about.settings.get(flag, "")
            for flag in (*_MADE_BY, *(_DISCRETISED if discretised else ()))
        },
        "network": about.made_of["--agent_name"],
        "checkpoint": policy.path.name,
        "frames": about.frames,
        "episode_return": about.episode_return,
        "versions": about.versions,
        "actions": action_names(spec.level_name, spec.actions, **options)
        or spec.actions.describe(),
        "signatures": {
            name: {
                "inputs": _describe_tensors(signature.inputs, meaning),
                "outputs": _describe_tensors(signature.function.structured_outputs, meaning),
            }
            for name, signature in signatures.items()
        },
    }


def _describe_tensors(tensors: dict[str, Any], meaning: dict[str, str]) -> dict[str, Any]:
    return {
        name: {
            "shape": tensor.shape.as_list(),
            "dtype": tensor.dtype.name,
            "meaning": _meaning_of(name, meaning),
        }
        for name, tensor in tensors.items()
    }


def _meaning_of(name: str, meaning: dict[str, str]) -> str:
    """Return the meaning of a tensor; those of an action's parts are named action_PART."""
    keys = [key for key in meaning if f"{name}_".startswith(f"{key}_")]
    return meaning[max(keys, key=len)] if keys else _STATE


def _readme(described: dict[str, Any], guide: Guide, example: str) -> str:
    """Return the text of README.txt."""
    changes = [f" --{n}={described[n]}" for n in _MADE_BY + _DISCRETISED if described.get(n)]
    about = (
        f"This folder holds {guide.holds} of an agent that plays "
        f"{described['level_name']}{''.join(changes)}: a {described['network']} after "
        f"{described['frames']:,.0f} frames of training (checkpoint {described['checkpoint']}). To "
        f"use it you only need {guide.needs}."
    )
    lines = [
        *textwrap.wrap(about, 100),
        "",
        "The agent can play any number of games at the same time; B stands for that number.",
    ]
    for name, signature in described["signatures"].items():
        lines += ["", f"Signature {name}"]
        for side in ("inputs", "outputs"):
            lines += [f"  {side}"] + [_line(*tensor) for tensor in signature[side].items()]
            if not signature[side]:
                lines.append("    none: this network has no recurrent state")
    actions = described["actions"]
    if isinstance(actions, list):
        text = f"Actions: {', '.join(f'{i} {name}' for i, name in enumerate(actions))}."
    else:
        text = f"Actions: {actions}. A Box has the environment's numbers; choices count from 0."
    lines += ["", *textwrap.wrap(text, 100), ""]
    lines += [
        "An example; it is also in example.py, to be run in this folder:",
        "",
        textwrap.indent(example, "    "),
    ]
    return "\n".join(lines)


def _line(name: str, tensor: dict[str, Any]) -> str:
    shape = ", ".join("B" if size is None else str(size) for size in tensor["shape"])
    return f"    {name:<18} {tensor['dtype']:<8} {f'[{shape}]':<18} {tensor['meaning']}"
