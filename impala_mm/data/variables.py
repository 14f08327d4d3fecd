"""An algorithm's variables, grouped by how they are used, and those that an update assigns."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.tensor_io import as_operation, pack, packed_spec, unpack
from impala_mm.data.trajectory import structure_digest

_PASSES = ("Identity", "IdentityN")  # operations that pass a variable's handle on
# Operations that read a variable by its handle: all others assign it.
_READS = {
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"),
    *("VarIsInitializedOp", "_ReadVariablesOp", "DisableCopyOnRead"),
    *_PASSES,
}


class BadVariables(Exception):
    """The groups of an algorithm's variables contradict each other; the message says how."""


class Variables(NamedTuple):
    """The variables of an algorithm, each of which is trained, carried or local.

    Those that are trained and carried are the same on all learners: rank 0's initial values are
    broadcast, and rank 0 saves them in the checkpoints.
    """

    trained: list[tf.Variable]  # the weights that gradients change
    # Everything else: target networks, normalisers, temperatures, optimizer slots, and the state of
    # a tf.random.Generator.
    carried: list[tf.Variable]
    acting: list[tf.Variable]  # those of the trained and carried variables that actors receive
    # Those of the carried variables that --mode=train_from loads, besides the trained ones and
    # those for acting: target networks, normalisers. Optimizer slots and counts are not among them.
    weights: Sequence[tf.Variable] | None = None
    # Those that say how far a schedule is, such as a teacher's cost: no weights, so that another
    # run begins them anew.
    schedules: Sequence[tf.Variable] = ()
    # Variables that differ between learners, such as statistics of a learner's own unrolls. They
    # are neither broadcast nor compared. Each learner saves its own, in a folder of its own.
    local: Sequence[tf.Variable] = ()

    @property
    def watched(self) -> list[tf.Variable]:
        """Those that must be finite after each update: actors receive them, or they are trained."""
        return list({id(v): v for v in [*self.trained, *self.acting]}.values())

    def check(self) -> None:
        """Raise BadVariables if a variable is in a group that excludes it."""
        trained, carried = ({id(v) for v in group} for group in (self.trained, self.carried))
        for variable in self.local:
            if id(variable) in trained | carried:
                raise BadVariables(
                    f"{variable.name} is local, and also trained or carried: a variable is either "
                    f"the same on all learners, or local"
                )
        for name, variables, known, of in (
            ("acting", self.acting, trained | carried, "trained or carried"),
            ("weights", self.weights or (), carried, "carried"),
        ):
            for variable in variables:
                if id(variable) not in known:
                    raise BadVariables(f"{variable.name} is among {name}, but it is not {of}")

    def check_assigned(self, traced: Any, apart: Sequence[tf.Variable]) -> None:
        """Raise BadVariables if a concrete function assigns a variable of no group.

        Those `apart` are the caller's own.
        """
        groups = (self.trained, self.carried, self.local, apart)
        handles = {id(variable.handle) for group in groups for variable in group}
        lost = [
            v.name.removesuffix(":0") for v in assigned_by(traced) if id(v.handle) not in handles
        ]
        if lost:
            names = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if lost[5:] else "")
            raise BadVariables(
                f"assigns {names}, of no group of Variables, so that nothing saves or broadcasts "
                f"it: add it to carried (the same on all learners), or to local"
            )

    def check_read(self, traced: Any) -> None:
        """Raise BadVariables if a concrete function of `act` reads what actors do not receive."""
        received = {id(variable.handle) for variable in self.acting}
        changing = {id(variable.handle) for variable in (*self.trained, *self.carried)}
        lost = [v for v in traced.variables if id(v.handle) in changing - received]
        if lost:
            names = ", ".join(variable.name.removesuffix(":0") for variable in lost[:5])
            raise BadVariables(
                f"reads {names}, of which actors receive no new values: add it to acting"
            )


def assigned_by(traced: Any) -> list[tf.Variable]:
    """Return the variables that a concrete function assigns, also in the functions that it calls.

    What a tf.py_function assigns is not known.
    """
    library = {f.signature.name: f for f in traced.graph.as_graph_def().library.function}
    definition = traced.function_def
    handles = traced.captured_inputs
    first = len(definition.signature.input_arg) - len(handles)
    written = _assigned_arguments(definition, library, {})
    ids = {id(handles[i - first]) for i in written if i >= first}
    return [variable for variable in traced.variables if id(variable.handle) in ids]


def _assigned_arguments(
    definition: Any, library: dict[str, Any], done: dict[str, set[int]]
) -> set[int]:
    """Return the numbers of those arguments of a FunctionDef that are handles it assigns.

    `library` has the functions that it may call, and `done` the results so far, by name.
    """
    name = definition.signature.name
    if name in done:
        return done[name]
    written = done[name] = set[int]()
    arguments = {argument.name: i for i, argument in enumerate(definition.signature.input_arg)}
    same = {node.name: node.input for node in definition.node_def if node.op in _PASSES}

    def number(source: str) -> int | None:
        """Return the number of the argument that a node's input is, if it is one."""
        node, _, output = source.partition(":")
        while node in same:
            source = same[node][int(output.rpartition(":")[2] or 0)]
            node, _, output = source.partition(":")
        return arguments.get(source)

    for node in definition.node_def:
        inputs = [number(source) for source in node.input if not source.startswith("^")]
        called = [
            library[function.name]
            for value in node.attr.values()
            for function in (value.func, *value.list.func)
            if function.name in library
        ]
        for function in called:
            # The last inputs are its arguments: the first one of `tf.cond` is its condition.
            count = len(function.signature.input_arg)
            own = inputs[len(inputs) - count :]
            passed = (own[i] for i in _assigned_arguments(function, library, done))
            written |= {i for i in passed if i is not None}
        if not called and node.op not in _READS:
            written |= {i for i in inputs if i is not None and _is_handle(definition, i)}
    return written


def _is_handle(definition: Any, argument: int) -> bool:
    return definition.signature.input_arg[argument].type == tf.resource.as_datatype_enum


class ParameterLayout:
    """The place of each variable in the vector, and the data type in which it is sent."""

    def __init__(
        self, acting: Sequence[tf.Variable], trained: Sequence[tf.Variable], wire_dtype: str
    ):
        """Lay out the variables `acting`; those in `trained` are sent as `wire_dtype`.

        Other variables keep their own type: a large count, for example, would overflow float16.
        """
        self._variables = list(acting)
        halved = {id(v) for v in trained} if wire_dtype != "float32" else set()
        half = tf.as_dtype(wire_dtype)
        self._specs = [  # of the variables in the form in which they are sent
            tf.TensorSpec(v.shape, half if id(v) in halved and v.dtype == tf.float32 else v.dtype)
            for v in acting
        ]
        sizes = [spec.shape.num_elements() * spec.dtype.size for spec in self._specs]
        self._ends = np.cumsum(sizes).tolist()
        self.size = self._ends[-1] if self._ends else 0  # bytes
        self._assign: Callable[..., Any] | None = None  # `_assign_packed`, traced at the first call
        # Names are left out: they depend on how many modules the process has made before.
        self.digest = structure_digest(self._specs)

    def values(self) -> list[tf.Tensor]:
        """Return the variables' current values; call it between two updates.

        Later updates do not change the values: they write to new memory while a value is in use.
        """
        return [variable.read_value() for variable in self._variables]

    def pack(self, values: Sequence[tf.Tensor]) -> bytes:
        """Return the vector that holds these values."""
        cast = [tf.cast(v, s.dtype).numpy() for v, s in zip(values, self._specs, strict=True)]
        return b"".join(value.tobytes() for value in cast)

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        """Assign the values of another layout's variables to ours, without copying them."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def assign_bytes(self, vector: bytes) -> None:
        """Assign the values in a vector that `pack` returned to the variables."""
        if len(vector) != self.size:
            raise ValueError(f"{len(vector)} bytes of parameters; the variables take {self.size}")
        content = np.frombuffer(vector, np.uint8)
        raw = pack(*[content[i:j] for i, j in itertools.pairwise([0, *self._ends])])
        if self._assign is None:
            traced = tf.function(self._assign_packed, autograph=False)
            self._assign = as_operation(traced.get_concrete_function(packed_spec(self._specs)))
        self._assign(raw)

    def _assign_packed(self, raw: tf.Tensor) -> None:
        """Assign to each variable its part of the bytes."""
        for variable, value in zip(self._variables, unpack(raw, self._specs), strict=True):
            variable.assign(tf.cast(value, variable.dtype))
