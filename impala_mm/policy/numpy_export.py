"""A policy for NumPy alone: policy.npz with its weights, and policy.py with its computation.

policy.py consists of the text of `numpy_operations` and of `numpy_policy`, and of two functions,
the signatures' traces as straight Python: a line for each operation.
"""

import ast
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from impala_mm.data import numpy_operations
from impala_mm.data.numpy_translation import Call, Step, Translation, Untranslatable
from impala_mm.policy import numpy_policy, same_answers, signatures
from impala_mm.policy.core import PolicyCore
from impala_mm.policy.exports import CannotExport

_NEEDS = "Python 3.10 and NumPy 2, or newer"
_EXAMPLE = """\
import numpy as np

import policy  # policy.py in the folder of the export

agent = policy.load()
seen = {{  # replace by the observations{and_masks} of two games side by side
{observation}
}}
state, now = agent.initial_state(2), {{
{action}
    "last_reward": np.zeros([2], np.float32),
}}
for step in range(3):
    out, state = agent.act(state, first=[step == 0] * 2, **seen, **now)
    last = {{name: out[name.removeprefix("last_")] for name in now if "action" in name}}
    for name, action in last.items():
        print(name.removeprefix("last_"), action.tolist())
    now |= last
"""
_LOAD = '''

def load(folder=None, seed=None):
    """Return the policy whose weights, policy.npz, are in a folder: by default this file's.

    `seed` is that of the actions that are drawn where `exploration` is 1.
    """
    path = Path(__file__).parent if folder is None else Path(folder)
    with np.load(path / "policy.npz", allow_pickle=False) as file:
        weights = dict(file)
    return Policy(weights, INPUTS, step, begin, seed)
'''


def write_numpy(policy: PolicyCore, folder: Path) -> None:
    """Write policy.npz and policy.py, and README.txt, example.py and signature.json, to a folder.

    Raises CannotExport if the policy computes something that has no translation.
    """
    written = {"act": signatures.act(policy), "initial_state": signatures.initial_state(policy)}
    weights: dict[str, np.ndarray] = {}
    try:
        functions = [
            _function(name, signature, weights)
            for name, signature in zip(("step", "begin"), written.values(), strict=True)
        ]
    except Untranslatable as error:
        raise CannotExport(
            f"NumPy has no translation of this policy's operation {error}; a SavedModel "
            f"(--export_format=saved_model) can hold it"
        ) from None
    inputs = {
        name: (spec.dtype.name, spec.shape.as_list()[1:])
        for name, spec in written["act"].inputs.items()
    }
    text = [
        f'"""A policy of {policy.spec.level_name} that needs {_NEEDS}; README.txt explains it."""\n'
        "\nfrom pathlib import Path\n",
        _text(numpy_operations),
        _text(numpy_policy),
        _LOAD,
        f"\n\nINPUTS = {inputs!r}  # types and shapes, without B\n",
        *functions,
    ]
    (folder / "policy.py").write_text("".join(text))
    np.savez(folder / "policy.npz", allow_pickle=False, **weights)
    guide = signatures.Guide("a policy for NumPy", _NEEDS, _EXAMPLE, "np")
    signatures.write_guide(policy, folder, written, guide)
    agent = _load(folder / "policy.py").load()

    def answer(given: dict[str, Any]) -> dict[str, Any]:
        state = {name: value for name, value in given.items() if name.startswith("state")}
        outputs, after = agent.act(state, **{n: x for n, x in given.items() if n not in state})
        return outputs | after

    same_answers.check(policy, answer, "NumPy")


def _text(module: ModuleType) -> str:
    """Return the text of a module without its docstring."""
    source = inspect.getsource(module)
    first = ast.parse(source).body[0]
    return "".join(source.splitlines(keepends=True)[first.end_lineno :])


def _load(path: Path) -> Any:
    """Return the module of a file, without a trace in the folder or in sys.modules."""
    spec = importlib.util.spec_from_loader("policy", None)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    module.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), vars(module))
    return module


def _function(name: str, signature: signatures.Signature, weights: dict[str, np.ndarray]) -> str:
    """Return a signature as the text of a function, and add the arrays that it reads to `weights`.

    What does not depend on its inputs is computed now.
    """
    translation = Translation(signature.function)
    known = translation.values
    for number, variable in translation.read:
        known[number] = variable.numpy()
    constant, of_policy, of_call = translation.steps
    for step in (*constant, *of_policy):
        _run(step, known)
    words: dict[int, str] = {}  # the expression of each value
    for number in translation.inputs:
        words[number] = translation.names[number].partition(":")[0]
    parameters = ", ".join(["w", "random", *words.values()])

    def word(number: int) -> str:
        if number not in words:
            array = known[number]
            if np.ndim(array) == 0 and np.isfinite(array):
                words[number] = repr(np.asarray(array)[()])
            else:
                words[number] = f"w[{_keep(translation.names[number], array, weights)!r}]"
        return words[number]

    lines = ["", "", f"def {name}({parameters}):"]
    for step in of_call:
        read = [word(number) for number in step.inputs]
        for number in step.outputs:
            words[number] = f"{step.call.function.__name__}_{number}"
        results = ", ".join(words[number] for number in step.outputs)
        lines.append(f"    {results} = {_expression(step.call, read)}")
    names = sorted(signature.function.structured_outputs)  # as `tf.nest.flatten` orders them
    lines.append("    return {")
    for output, number in zip(names, translation.outputs, strict=True):
        lines.append(f"        {output!r}: {word(number)},")
    return "\n".join([*lines, "    }", ""])


def _run(step: Step, values: list[Any]) -> None:
    """Compute a step that draws no random numbers."""
    results = step.call.bind(np.random.default_rng(0))(*(values[n] for n in step.inputs))
    if len(step.outputs) == 1:
        results = [results]
    for number, result in zip(step.outputs, results, strict=True):
        values[number] = result


def _keep(name: str, array: Any, weights: dict[str, np.ndarray]) -> str:
    """Add an array to the weights, if it is not there; return its name."""
    base, count = name.partition(":")[0], 1
    key = base
    while key in weights and not _equal(weights[key], array):
        count += 1
        key = f"{base}_{count}"
    weights[key] = np.asarray(array)
    return key


def _equal(one: np.ndarray, other: Any) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


def _expression(call: Call, inputs: list[str]) -> str:
    """Return the text of a call."""
    fixed = [f"{name}={_literal(value)}" for name, value in call.fixed]
    drawn = ["random=random"] if call.random else []
    return f"{_name(call.function)}({', '.join([*inputs, *fixed, *drawn])})"


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function in policy.py."""
    name = function.__name__
    return name if getattr(numpy_operations, name, None) is function else f"np.{name}"


def _literal(value: Any) -> str:
    """Return the text of an argument that does not change; types of numbers are named."""
    return repr(np.dtype(value).name) if isinstance(value, type) else repr(value)
