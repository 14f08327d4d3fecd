"""What lies beside a SavedModel, for who has nothing else: README.txt, example.py, signature.json.

`saved_model` gives names, shapes and types as they were traced, and writes what is made of them.
"""

import textwrap
from typing import Any

from impala_mm.records.checkpoint import CheckpointInfo

_MEANING = {
    "observation": "what the environment shows",
    "first": "an episode begins with this observation: what was before is forgotten",
    "last_action": "the action before this observation; not read where first is true",
    "last_reward": "the reward, as it came, for that action; not read where first is true",
    "exploration": "0: the most likely action (take this if in doubt); 1: drawn as in training",
    "action": "what to do",
    "policy": "probabilities by which training would draw the action",
    "value": "discounted rewards, clipped as in training, that are expected from here on",
    "batch_size": "number of games, B",
}
_STATE = "what the network remembers; pass on what came out under this name"
_EXAMPLE = """\
import tensorflow as tf

agent = tf.saved_model.load(".")  # in the folder of the export
act, begin = agent.signatures["serving_default"], agent.signatures["initial_state"]
none, games = tf.zeros([2]), tf.constant(2)  # two games side by side
seen = tf.zeros({shape}, tf.{dtype})  # put what they show here
state, now = begin(batch_size=games), dict(last_action=tf.cast(none, tf.int32), last_reward=none)
for step in range(3):
    out = act(observation=seen, first=tf.fill([2], step == 0), exploration=none, **now, **state)
    print(out["action"].numpy(), out["value"].numpy())
    state, now = {{name: out[name] for name in state}}, now | {{"last_action": out["action"]}}
"""


def describe(
    signatures: dict[str, tuple[dict[str, Any], dict[str, Any]]],  # (inputs, outputs) by name
    about: CheckpointInfo,
    checkpoint: str,
    actions: list[str],
) -> dict[str, Any]:
    """signature.json: null stands for B, the number of games, which is free."""
    return {
        "level_name": about.made_of["--level_name"],
        "network": about.made_of["--agent_name"],
        "checkpoint": checkpoint,
        "frames": about.frames,
        "episode_return": about.episode_return,
        "versions": about.versions,
        "actions": actions,
        "signatures": {
            name: {"inputs": _describe_tensors(inputs), "outputs": _describe_tensors(outputs)}
            for name, (inputs, outputs) in signatures.items()
        },
    }


def _describe_tensors(tensors: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            "shape": tensor.shape.as_list(),
            "dtype": tensor.dtype.name,
            "meaning": _MEANING.get(name, _STATE),
        }
        for name, tensor in tensors.items()
    }


def example(described: dict[str, Any]) -> str:
    """example.py: it runs as it stands, in the folder of the export."""
    seen = described["signatures"]["serving_default"]["inputs"]["observation"]
    return _EXAMPLE.format(shape=[2, *seen["shape"][1:]], dtype=seen["dtype"])


def readme(described: dict[str, Any], example: str) -> str:
    """README.txt."""
    about = (
        f"An agent that plays {described['level_name']}: {described['network']}, after "
        f"{described['frames']:,.0f} frames of training (checkpoint {described['checkpoint']}). It "
        f"needs TensorFlow ({_tensorflow(described['versions'])}, or newer) and nothing else."
    )
    lines = [
        *textwrap.wrap(about, 100),
        "",
        "B, the number of games that are played side by side, is free.",
    ]
    for name, signature in described["signatures"].items():
        lines += ["", f"Signature {name}"]
        for side in ("inputs", "outputs"):
            lines += [f"  {side}"] + [_line(*each) for each in signature[side].items()]
            if not signature[side]:
                lines.append("    none: this network remembers nothing")
    numbered = ", ".join(f"{i} {name}" for i, name in enumerate(described["actions"]))
    lines += ["", *textwrap.wrap(f"Actions: {numbered}.", 100), ""]
    lines += ["example.py, to be run in this folder:", "", textwrap.indent(example, "    ")]
    return "\n".join(lines)


def _line(name: str, tensor: dict[str, Any]) -> str:
    shape = ", ".join("B" if size is None else str(size) for size in tensor["shape"])
    return f"    {name:<18} {tensor['dtype']:<8} {f'[{shape}]':<18} {tensor['meaning']}"


def _tensorflow(versions: dict[str, str]) -> str:
    return versions.get("tensorflow") or versions.get("tensorflow-cpu", "2.21")
