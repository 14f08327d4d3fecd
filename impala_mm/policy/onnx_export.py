"""A policy as an ONNX model, policy.onnx, which `tf2onnx` makes and `onnxruntime` checks.

It always takes the most likely actions. Its state at an episode's start is zeros.
"""

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.policy import same_answers, signatures
from impala_mm.policy.core import PolicyCore
from impala_mm.policy.exports import CannotExport

_OPSET = 17  # of 2022: runtimes of other makers read it, too
_NEXT = "next_"  # before the names of states that come out
_UINT8, _INT32, _INT64, _UINT32 = 2, 6, 7, 12  # numbers of types in ONNX
_PACKAGES = ("tf2onnx", "onnxruntime")
_EXAMPLE = """\
import numpy as np
import onnxruntime

agent = onnxruntime.InferenceSession("policy.onnx")  # in the folder of the export
names = [output.name for output in agent.get_outputs()]
seen = {{  # replace by the observations{and_masks} of two games side by side
{observation}
}}
now = {{
{action}
    "last_reward": np.zeros([2], np.float32),
}}
state: dict = {{
{state}
}}
for step in range(3):
    first = np.full([2], step == 0)
    found = agent.run(names, {{"first": first, **seen, **now, **state}})
    out = dict(zip(names, found))
    last = {{name: out[name.removeprefix("last_")] for name in now if "action" in name}}
    for name, action in last.items():
        print(name.removeprefix("last_"), action.tolist())
    state, now = {{name: out["next_" + name] for name in state}}, now | last
"""


def write_onnx(policy: PolicyCore, folder: Path) -> None:
    """Write policy.onnx, and README.txt, example.py and signature.json, to a folder.

    Raises CannotExport if packages are missing, or if an operation has no equal in ONNX.
    """
    tf2onnx, onnxruntime = (_package(name) for name in _PACKAGES)
    start = signatures.named(policy.initial_state(1), "state")
    if any(np.any(part) for part in start.values()):
        raise CannotExport(
            "the recurrent state at an episode's start is not zeros, which an ONNX model cannot "
            "say; a SavedModel (--export_format=saved_model) can"
        )
    traced = signatures.act(policy, explores=False)
    names = list(traced.inputs)

    def step(*flat: tf.Tensor) -> dict[str, tf.Tensor]:
        # ONNX gives a name once: states have other names as outputs.
        found = traced.function(**dict(zip(names, flat, strict=True)))
        return {f"{_NEXT}{n}" if n in names else n: tensor for n, tensor in found.items()}

    function = tf.function(step, input_signature=list(traced.inputs.values()), autograph=False)
    signature = signatures.Signature(function.get_concrete_function(), traced.inputs)
    handlers: dict[str, Any] = {name: (handler, []) for name, handler in _HANDLERS.items()}
    path = folder / "policy.onnx"
    said: list[logging.LogRecord] = []
    try:
        with _heard(said):
            model, _ = tf2onnx.convert.from_function(
                function, function.input_signature, opset=_OPSET, custom_op_handlers=handlers
            )
        path.write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # both raise many kinds of errors
        first = said[0].getMessage() if said else str(error) or type(error).__name__
        raise CannotExport(
            f"tf2onnx cannot convert this policy ({first.splitlines()[0]}); a SavedModel "
            f"(--export_format=saved_model) can hold it"
        ) from error
    outputs = [output.name for output in session.get_outputs()]

    def answer(given: dict[str, Any]) -> dict[str, Any]:
        found = zip(outputs, session.run(outputs, given), strict=True)
        return {name.removeprefix(_NEXT): array for name, array in found}

    same_answers.check(policy, answer, "onnxruntime")
    needs = f"a runtime of ONNX with operator set {_OPSET}, such as onnxruntime"
    guide = signatures.Guide("an ONNX model", needs, _EXAMPLE, "np")
    signatures.write_guide(policy, folder, {"policy.onnx": signature}, guide)


class _Collecting(logging.Handler):
    """The errors of a log, in a list."""

    def __init__(self, said: list[logging.LogRecord]):
        super().__init__(logging.ERROR)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record)


@contextlib.contextmanager
def _heard(said: list[logging.LogRecord]) -> Iterator[None]:
    """Collect the errors that tf2onnx would print: it goes on after most of them."""
    log = logging.getLogger("tf2onnx")
    before = log.propagate, log.handlers
    handler = _Collecting(said)
    log.propagate, log.handlers = False, [handler]
    try:
        yield
    finally:
        log.propagate, log.handlers = before


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CannotExport(
            f"it needs the package {name} ({error}): pip install 'impala_mm[onnx]', or in a clone "
            f"pip install {' '.join(_PACKAGES)}"
        ) from error


# How operations are written that tf2onnx does not know, writes otherwise than TensorFlow computes
# them, or that the model shall not have. Each handler takes tf2onnx's graph and a node of it.


def _replace(
    context: Any, node: Any, kind: str, inputs: list[str], attributes: dict[str, Any] | None = None
) -> None:
    """Replace a node by one of another kind, with the same output."""
    output, dtype, shape = node.output[0], context.get_dtype(node.output[0]), node.output_shapes[0]
    context.remove_node(node.name)
    context.make_node(kind, inputs, attributes, outputs=[output], dtypes=[dtype], shapes=[shape])


def _array(context: Any, values: Any, dtype: Any) -> str:
    """Return the name of a new constant."""
    context.numbered = getattr(context, "numbered", 0) + 1
    name = f"constant_{context.numbered}"
    return context.make_const(name, np.array(values, dtype)).output[0]


def _no_draw(context: Any, node: Any, *_: Any) -> None:
    """Replace random numbers, on which the most likely action does not depend, by zeros."""
    first = node.input[0]  # the shape or, of Multinomial, logits [N, A]
    sizes = context.make_node("Cast", [first], {"to": _INT64}).output[0]
    if node.type == "Multinomial":
        shape = context.make_node("Shape", [first]).output[0]
        rows = context.make_node("Gather", [shape, _array(context, [0], np.int64)]).output[0]
        draws = context.make_node("Cast", [node.input[1]], {"to": _INT64}).output[0]
        draws = context.make_node("Reshape", [draws, _array(context, [1], np.int64)]).output[0]
        sizes = context.make_node("Concat", [rows, draws], {"axis": 0}).output[0]
    zeros = context.make_node("ConstantOfShape", [sizes]).output[0]
    _replace(context, node, "Cast", [zeros], {"to": context.get_dtype(node.output[0])})


def _select(context: Any, node: Any, *_: Any) -> None:
    """Write a choice as Where; tf2onnx multiplies by 0, which keeps NaN and infinity."""
    _replace(context, node, "Where", list(node.input))


def _one_hot(context: Any, node: Any, *_: Any) -> None:
    """Write TensorFlow's OneHot, whose vector is 0 for -1; ONNX counts -1 from the end."""
    numbers, _, on, off = node.input
    dtype = np.int64 if context.get_dtype(numbers) == _INT64 else np.int32
    known = _array(context, np.arange(int(node.inputs[1].get_tensor_value())), dtype)
    column = context.make_node("Unsqueeze", [numbers, _array(context, [-1], np.int64)]).output[0]
    equal = context.make_node("Equal", [column, known]).output[0]
    _replace(context, node, "Where", [equal, on, off])


def _erfc(context: Any, node: Any, *_: Any) -> None:
    """Write Erfc, of which a GELU is made, as 1 - Erf."""
    erf = context.make_node("Erf", [node.input[0]]).output[0]
    _replace(context, node, "Sub", [_array(context, 1, np.float32), erf])


def _bitcast(context: Any, node: Any, *_: Any) -> None:
    """Write four bytes as one int32, and back: so images' tiles are copied (`nets.torsos.Conv`)."""
    given, wanted = context.get_dtype(node.input[0]), context.get_dtype(node.output[0])
    places = [0, 8, 16, 24]
    if (given, wanted) == (_UINT8, _INT32):
        numbers = context.make_node("Cast", [node.input[0]], {"to": _UINT32}).output[0]
        shifted = {"direction": "LEFT"}
        by = _array(context, places, np.uint32)
        parts = context.make_node("BitShift", [numbers, by], shifted).output[0]
        parts = context.make_node("Cast", [parts], {"to": _INT32}).output[0]
        axis = _array(context, [-1], np.int64)
        _replace(context, node, "ReduceSum", [parts, axis], {"keepdims": 0})
    elif (given, wanted) == (_INT32, _UINT8):
        number = context.make_node("Cast", [node.input[0]], {"to": _UINT32}).output[0]
        column = context.make_node("Unsqueeze", [number, _array(context, [-1], np.int64)]).output[0]
        by = _array(context, places, np.uint32)
        parts = context.make_node("BitShift", [column, by], {"direction": "RIGHT"}).output[0]
        parts = context.make_node("Mod", [parts, _array(context, 256, np.uint32)]).output[0]
        _replace(context, node, "Cast", [parts], {"to": _UINT8})
    else:
        raise ValueError("Bitcast of other types than uint8 and int32")


_HANDLERS: dict[str, Callable[..., None]] = {
    "Bitcast": _bitcast,
    "Erfc": _erfc,
    "Multinomial": _no_draw,
    "OneHot": _one_hot,
    "RandomStandardNormal": _no_draw,
    "RandomUniform": _no_draw,
    "RandomUniformInt": _no_draw,
    "SelectV2": _select,
}
