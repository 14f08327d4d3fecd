"""A reader of pickles that executes nothing of them: `dopamine` reads checkpoints with it.

A pickle is a program for a stack machine, which may call any function of any module. This module
interprets its instructions itself, and what a name in it stands for is decided by `pickle_names`:
nothing is imported or called. The few names that Dopamine's checkpoints have become arrays,
dictionaries and records; any other is refused.

A hostile file cannot exhaust the machine either. Its instructions and the bytes of all arrays are
counted, and only keys whose hash is cheap are accepted.
"""

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_mm.config.messages import join_lines
from impala_mm.teachers.kinds import NoTeacher
from impala_mm.teachers.pickle_names import Name, Objects, Refused, as_key

MOST_BYTES = 2**31  # of a file
_MOST_INSTRUCTIONS = 4_000_000  # a checkpoint of 200 iterations of 500 games has under a million


class BadPickle(NoTeacher):
    """A pickle is damaged, too large, or has what is not read; the message says which file."""


def read(path: Path) -> Any:
    """Return the content of a file; raise BadPickle."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise BadPickle(
                f"{path} has {size:,} bytes, and pickles of at most {MOST_BYTES:,} are read"
            )
        content = path.read_bytes()
    except OSError as error:
        raise BadPickle(f"{path} cannot be read: {error.strerror}") from None
    return interpret(content, str(path))


def interpret(content: bytes, name: str) -> Any:
    """Return what a pickle contains; raise BadPickle with this name of it."""
    machine = _Machine(Objects(len(content)))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count == _MOST_INSTRUCTIONS:
                raise BadPickle(
                    f"{name} has over {_MOST_INSTRUCTIONS:,} instructions, more than any "
                    f"checkpoint of Dopamine: give the checkpoint that Dopamine wrote"
                )
            if opcode.name == "STOP":
                return machine.end()
            instruction = _INSTRUCTIONS.get(opcode.name)
            if instruction is None:
                raise Refused(f"the instruction {opcode.name}")
            instruction(machine, argument)
    except Refused as refused:
        raise BadPickle(
            f"{name} has {refused}, which no checkpoint of Dopamine's DQN or Rainbow has. A pickle "
            f"may contain any program, so nothing of this file is executed and it is not read: "
            f"give the checkpoint that Dopamine wrote"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise BadPickle(
            f"{name} is damaged, cut short or not a pickle ({join_lines(error)[:100]}): copy it "
            f"again from where it was written"
        ) from None
    raise AssertionError("genops ends with STOP or raises")


class _Machine:
    """The stack of a pickle's instructions, and its memo of earlier values."""

    def __init__(self, objects: Objects):
        self._objects = objects
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def end(self) -> Any:
        """Return the value that the pickle leaves."""
        (value,) = self._stack
        return value

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Take the uppermost value."""
        return self._stack.pop()

    def duplicate(self) -> None:
        """Put the uppermost value on the stack once more."""
        self._stack.append(self._stack[-1])

    def mark(self) -> None:
        """Begin a new stack, whose values become the items of something."""
        self._below.append(self._stack)
        self._stack = []

    def items(self) -> list[Any]:
        """Return the values since the last mark, and remove it."""
        items, self._stack = self._stack, self._below.pop()
        return items

    def take(self, count: int) -> tuple[Any, ...]:
        """Return the uppermost values, which are removed."""
        taken = self._stack[-count:]
        if len(taken) < count:
            raise IndexError("the stack is empty")
        del self._stack[-count:]
        return tuple(taken)

    def extend(self, items: list[Any]) -> None:
        """Append to the list on the stack."""
        _as(list, self._stack[-1]).extend(items)

    def add(self, items: list[Any]) -> None:
        """Add to the set on the stack."""
        _as(set, self._stack[-1]).update(map(as_key, items))

    def set_items(self, items: list[Any]) -> None:
        """Set keys and values, in turn, of the dictionary on the stack."""
        _as(dict, self._stack[-1]).update(_pairs(items))

    def remember(self, index: int | None = None) -> None:
        """Keep the uppermost value in the memo; without an index, at its end."""
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def recall(self, index: int) -> None:
        """Put a value of the memo on the stack."""
        self._stack.append(self._memo[index])

    def name(self, module: Any, name: Any) -> None:
        """Put a name on the stack, if it is one of those that are known."""
        self._stack.append(self._objects.find(Name(_as(str, module), _as(str, name))))

    def call(self) -> None:
        """Replace a name and a tuple of arguments by what the name makes of them."""
        name, arguments = self.take(2)
        self._stack.append(self._objects.call(_as(Name, name), _as(tuple, arguments)))

    def make(self) -> None:
        """Replace the name of a class and a tuple of arguments by a record of both."""
        name, arguments = self.take(2)
        self._stack.append(self._objects.record(_as(Name, name), _as(tuple, arguments)))

    def build(self) -> None:
        """Give a state to the value below it."""
        state = self.pop()
        self._objects.build(self._stack[-1], state)


def _as(kind: type, value: Any) -> Any:
    """Return a value of this type; raise TypeError if it is none."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return the dictionary of keys and values in turn."""
    return dict(zip(map(as_key, items[::2]), items[1::2], strict=True))


# What each instruction does with the machine and its argument; an instruction that calls code of
# another program, or asks it for a value, is none of them.
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING "
        "SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE "
        "BINUNICODE8 BYTEARRAY8".split(),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.items(),
    "DUP": lambda machine, _: machine.duplicate(),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "LIST": lambda machine, _: machine.push(machine.items()),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.items()),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.items())),
    "TUPLE1": lambda machine, _: machine.push(machine.take(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.take(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.take(3)),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": lambda machine, _: machine.push(_pairs(machine.items())),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.take(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.items()),
    "EMPTY_SET": lambda machine, _: machine.push(set()),
    "ADDITEMS": lambda machine, _: machine.add(machine.items()),
    "FROZENSET": lambda machine, _: machine.push(frozenset(map(as_key, machine.items()))),
    **dict.fromkeys("PUT BINPUT LONG_BINPUT".split(), _Machine.remember),
    "MEMOIZE": lambda machine, _: machine.remember(),
    **dict.fromkeys("GET BINGET LONG_BINGET".split(), _Machine.recall),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.make(),
    "BUILD": lambda machine, _: machine.build(),
}
