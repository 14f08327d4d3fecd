"""A policy as a TensorFlow SavedModel: two functions of tensors, and the weights that they read.

    serving_default    one step of B games: observations in, actions out
    initial_state      the recurrent state at the start of B games

The caller passes the recurrent state from step to step as flat tensors, which have the same names
as inputs and as outputs. README.txt, example.py and signature.json beside them explain their use.
"""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.algorithms import contract, registry
from impala_mm.data.trajectory import Entry, leaf_names
from impala_mm.environments import from_flags
from impala_mm.environments.make import action_names
from impala_mm.policy.core import PolicyCore
from impala_mm.records import checkpoint, saved_variables

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
    "batch_size": "the number of games, B",
}
_PROBABILITIES = "the probability of each action"
_POLICY = "the parameters of the actions' distribution"
_MADE_BY = ("env_kwargs", "env_wrappers")  # flags by which environments are made
_DISCRETISED = ("discretization", "n_actions_per_dim", "action_ratio")
_STATE = "recurrent state; pass the output of this name to the next step"
_EXAMPLE = """\
import tensorflow as tf

agent = tf.saved_model.load(".")  # in the folder of the export
act, begin = agent.signatures["serving_default"], agent.signatures["initial_state"]
none, games = tf.zeros([2]), tf.constant(2)  # two games side by side
seen = {{  # replace by the observations{and_masks}
{observation}
}}
state, now = begin(batch_size=games), {{
{action}
    "last_reward": none,
}}
for step in range(3):
    out = act(first=tf.fill([2], step == 0), exploration=none, **seen, **now, **state)
    last = {{name: out[name.removeprefix("last_")] for name in now if "action" in name}}
    for name, action in last.items():
        print(name.removeprefix("last_"), action.numpy().tolist())
    state, now = {{name: out[name] for name in state}}, now | last
"""


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
    described = _describe(policy, signatures)
    example = _example(described)
    (folder / "signature.json").write_text(json.dumps(described, indent=1, allow_nan=False) + "\n")
    (folder / "example.py").write_text(example)
    (folder / "README.txt").write_text(_readme(described, example))


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
        action, after, _ = choose(entry, before, values["exploration"])
        judged = contract.judge(algorithm, entry, before)
        return {
            **_named(actions.in_environment_units(action), "action"),
            "policy": judged.policy,
            "value": judged.value,
            **({} if judged.values is None else {"values": judged.values}),
            **_named(after, "state"),
        }

    specs = {
        part: tf.TensorSpec([None, *leaf.shape], leaf.dtype, part)
        for name, nest in read.items()
        for part, leaf in _named(nest, name).items()
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
    def seedless(**inputs: tf.Tensor) -> Named:
        # Of this graph only. Else sampling would use the run's seed, and every server would draw
        # the same actions.
        tf.random.set_seed(None)
        return function(**inputs)

    return Signature(tf.function(seedless, autograph=False).get_concrete_function(**specs), specs)


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


def _example(described: dict[str, Any]) -> str:
    """Return the text of example.py, which runs as it is in the folder of the export."""
    inputs = described["signatures"]["serving_default"]["inputs"]

    def values(kind: str, function: str = "zeros") -> list[str]:
        return [
            f'    "{name}": tf.{function}({[2, *tensor["shape"][1:]]}, tf.{tensor["dtype"]}),'
            for name, tensor in inputs.items()
            if f"{name}_".startswith(f"{kind}_")
        ]

    masks = values("action_mask", "ones")
    return _EXAMPLE.format(
        observation="\n".join(values("observation") + masks),
        and_masks=" and masks" if masks else "",
        action="\n".join(values("last_action")),
    )


def _readme(described: dict[str, Any], example: str) -> str:
    """Return the text of README.txt."""
    changes = [f" --{n}={described[n]}" for n in _MADE_BY + _DISCRETISED if described.get(n)]
    about = (
        f"This folder holds a TensorFlow SavedModel of an agent that plays "
        f"{described['level_name']}{''.join(changes)}: a {described['network']} after "
        f"{described['frames']:,.0f} frames of training (checkpoint {described['checkpoint']}). To "
        f"use it you only need TensorFlow {_tensorflow(described['versions'])} or newer."
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


def _tensorflow(versions: dict[str, str]) -> str:
    return versions.get("tensorflow") or versions.get("tensorflow-cpu", "2.21")
