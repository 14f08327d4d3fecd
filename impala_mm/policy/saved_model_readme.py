"""The texts beside a SavedModel that explain its use: README.txt, example.py, signature.json.

`saved_model` passes the traced names, shapes and types, and writes the files.
"""

import textwrap
from typing import Any

from impala_mm.environments.actions import ActionSpec
from impala_mm.records.checkpoint import CheckpointInfo

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


def describe(
    signatures: dict[str, tuple[dict[str, Any], dict[str, Any]]],  # (inputs, outputs) by name
    about: CheckpointInfo,
    checkpoint: str,
    names: list[str],
    actions: ActionSpec,
) -> dict[str, Any]:
    """Return the content of signature.json; null stands for B, the number of games.

    `names` are those of the actions; if these are not Discrete, their space is described instead.
    """
    meaning = _MEANING | {"policy": _POLICY if actions.discrete is None else _PROBABILITIES}
    return {
        "level_name": about.made_of["--level_name"],
        **_environment(about.settings),
        "network": about.made_of["--agent_name"],
        "checkpoint": checkpoint,
        "frames": about.frames,
        "episode_return": about.episode_return,
        "versions": about.versions,
        "actions": names or actions.describe(),
        "signatures": {
            name: {
                "inputs": _describe_tensors(inputs, meaning),
                "outputs": _describe_tensors(outputs, meaning),
            }
            for name, (inputs, outputs) in signatures.items()
        },
    }


def _environment(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the flags by which the environment is made; those of discretised actions if used."""
    used = _DISCRETISED if settings.get("discretization", "none") != "none" else ()
    return {name: settings.get(name, "") for name in (*_MADE_BY, *used)}


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
    known = [key for key in meaning if f"{name}_".startswith(f"{key}_")]
    return meaning[max(known, key=len)] if known else _STATE


def example(described: dict[str, Any]) -> str:
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


def readme(described: dict[str, Any], example: str) -> str:
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
            lines += [f"  {side}"] + [_line(*each) for each in signature[side].items()]
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
