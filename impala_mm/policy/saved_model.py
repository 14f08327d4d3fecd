"""A policy as a TensorFlow SavedModel: two functions of tensors, and the weights that they read.

Their names are serving_default and initial_state (`signatures`). README.txt, example.py and
signature.json beside them explain their use.
"""

from pathlib import Path

import tensorflow as tf

from impala_mm.policy import signatures
from impala_mm.policy.core import PolicyCore
from impala_mm.records import checkpoint, saved_variables

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


def write_saved_model(policy: PolicyCore, folder: Path) -> None:
    """Write the SavedModel and its README.txt, example.py and signature.json to a folder.

    What is read of it as a checkpoint is never executed, unlike a SavedModel.
    """
    written = {
        "serving_default": signatures.act(policy),
        "initial_state": signatures.initial_state(policy),
    }
    functions = {name: signature.function for name, signature in written.items()}
    module = tf.Module()
    # The folder `variables` is a checkpoint, too, for `load_policy` and --teacher.
    weights = saved_variables.named_for_acting(policy.algorithm.variables)
    for kind, of_kind in saved_variables.tree(weights).items():
        setattr(module, kind, of_kind)
    kept = {id(variable) for variable in weights.values()}
    read = (variable for function in functions.values() for variable in function.graph.variables)
    module.others = list({id(v): v for v in read if id(v) not in kept}.values())
    tf.saved_model.save(module, str(folder), functions)
    checkpoint.write_about(folder / "variables", policy.portable_about()._asdict())
    needs = f"TensorFlow {_tensorflow(policy.about.versions)} or newer"
    guide = signatures.Guide("a TensorFlow SavedModel", needs, _EXAMPLE, "tf")
    signatures.write_guide(policy, folder, written, guide)


def _tensorflow(versions: dict[str, str]) -> str:
    return versions.get("tensorflow") or versions.get("tensorflow-cpu", "2.21")
