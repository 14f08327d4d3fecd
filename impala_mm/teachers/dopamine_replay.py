"""A replay of Dopamine from version 4.1 on, whose transitions hold whole stacks of frames.

    checkpoints/199/replay/checkpoint.msgpack
        add_count: transitions that were ever added
        memory: keys, values, treedef      values: lists of what a transition has, the oldest first

A transition is [state, action, reward, next_state, is_terminal, episode_end]; its stacks are uint8
[84, 84, 4], the oldest frame first, each compressed by snappy. The file is MessagePack, and is read
as a stream: a million transitions take gigabytes. Nothing in it is executed, and Dopamine's
packages are not needed.

What Dopamine leaves out is missing in the games: the last action of each one and its reward. A
transition that ends a game is stored several times, with fewer and fewer frames; one counts. A game
that was cut has no mark: the next transition does not begin where it ended. Rewards of several
steps that were added up (`update_horizon` above 1) cannot be taken apart again.
"""

import ast
import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from impala_mm.config.messages import join_lines
from impala_mm.environments.types import EnvironmentSpec, Step
from impala_mm.teachers.teacher import NoTeacher

FILE = Path("replay") / "checkpoint.msgpack"  # in the folder of a number
_MOST_STACK = 2**24  # bytes of a stack
_MOST_VALUES = 20  # in one array or map of a transition
_MOST_OF_TYPE = 200  # characters of the name of an array's type
_LOOK_AT = 300  # transitions whose stacks are compared before games are recorded


def step_of(
    frame: np.ndarray,
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    first: bool = False,
) -> Step:
    """Return the step of one environment that shows a frame."""
    return Step(
        reward=np.array([reward], np.float32),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        observation=frame[np.newaxis, ..., np.newaxis],
        first=np.array([first]),
        fault=np.array([False]),
    )


def check_frames(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], spec: EnvironmentSpec
) -> None:
    """Raise NoTeacher unless frames [N, *shape] are the observations of a level."""
    seen = spec.observation
    ours = tuple(getattr(seen, "shape", ()))
    if (*shape, 1) != ours or dtype != getattr(seen, "dtype", None):
        raise NoTeacher(
            f"{path} has frames {dtype.name} {list(shape)}, and observations of {spec.level_name} "
            f"are {getattr(getattr(seen, 'dtype', None), 'name', 'several')} {list(ours)}: give "
            f"data of this level"
        )


class _Transition(NamedTuple):
    """A transition, with stacks as the file has them."""

    state: dict[str, Any]
    action: int
    reward: float
    next_state: dict[str, Any]
    is_terminal: bool


class StackedReplay:
    """The transitions of one file."""

    def __init__(self, path: Path, spec: EnvironmentSpec):
        """Open a file; raise NoTeacher if it is damaged, or not of levels with this spec."""
        self._path, self._spec = path, spec
        try:
            with path.open("rb") as file, self._refusing_damage():
                _, self.transitions = _find_values(file)
        except OSError as error:
            raise NoTeacher(f"{path} cannot be read: {error}") from None
        transitions = list(itertools.islice(self._transitions(), _LOOK_AT))
        if not transitions:
            raise NoTeacher(f"{path} has no transitions: give another replay")
        with self._refusing_damage():
            first = _array(transitions[0].state)
        check_frames(path, first.dtype, first.shape[:-1], spec)
        self._like = first
        for each in transitions:
            state, after = self._stack(each.state), self._stack(each.next_state)
            if not np.array_equal(state[..., 1:], after[..., :-1]):
                raise NoTeacher(
                    f"{path} has rewards of several steps that were added up: only replays of "
                    f"agents with update_horizon = 1 become games"
                )

    def steps(
        self, padding: int, on_game: Callable[[int, float], None]
    ) -> Iterator[tuple[Step, int | None]]:
        """Yield (step, action before it), game by game; the action of a reset is None.

        `on_game` is called with the steps and the return of each game. There is no padding between
        games. Raises NoTeacher.
        """
        before: _Transition | None = None  # of the same game
        steps, total = 0, 0.0
        skipped = False  # whether transitions are left out, up to the end of their game
        for number, now in enumerate(self._transitions()):
            if before and self._repeats(before, now):
                continue
            begins = before is None or before.is_terminal or before.next_state != now.state
            if begins:
                if before and not skipped and not before.is_terminal:
                    yield self._end(before, truncated=True)
                if before and not skipped:
                    on_game(steps, total)
                steps, total = 0, 0.0
                stack = self._stack(now.state)
                # Before a game's first frame are zeros. The oldest game may have lost it, and the
                # last transition of a game, stored again, has zeros too.
                skipped = number == 0 and bool(now.is_terminal or stack[..., :-1].any())
                if not skipped:
                    yield step_of(stack[..., -1], first=True), None
            elif before and not skipped:
                yield step_of(self._newest(now.state), before.reward), before.action
            if now.is_terminal and not skipped:
                yield self._end(now, terminated=True)
            steps, total, before = steps + 1, total + now.reward, now
        if before and not skipped:
            if not before.is_terminal:
                yield self._end(before, truncated=True)
            on_game(steps, total)

    def _repeats(self, before: _Transition, now: _Transition) -> bool:
        """Return whether a transition is the last of a game again, with fewer frames."""
        ends = before.is_terminal and now.is_terminal
        return ends and np.array_equal(self._newest(before.state), self._newest(now.state))

    def _end(self, last: _Transition, **how: bool) -> tuple[Step, int]:
        """Return the last step of a game."""
        return step_of(self._newest(last.next_state), last.reward, **how), last.action

    def _transitions(self) -> Iterator[_Transition]:
        """Yield the transitions, the oldest first."""
        actions = self._spec.actions.discrete or 0
        with self._path.open("rb") as file:
            with self._refusing_damage():
                unpacker, count = _find_values(file)
            for _ in range(count):
                with self._refusing_damage():
                    state, action, reward, after, is_terminal, _ = unpacker.unpack()
                    transition = _Transition(
                        dict(state),
                        int(_number(action)),
                        float(_number(reward)),
                        dict(after),
                        bool(_number(is_terminal)),
                    )
                if transition.action not in range(actions):
                    raise NoTeacher(
                        f"{self._path} has action {transition.action}, and "
                        f"{self._spec.level_name} takes {self._spec.actions.describe()}: give data "
                        f"of this game"
                    )
                yield transition

    def _stack(self, stored: dict[str, Any]) -> np.ndarray:
        """Return a stack of frames, uint8 [height, width, C]."""
        with self._refusing_damage():
            stack = _array(stored)
            if (stack.dtype, stack.shape) != (self._like.dtype, self._like.shape):
                raise ValueError(f"a stack {list(stack.shape)} after one {list(self._like.shape)}")
        return stack

    def _newest(self, stored: dict[str, Any]) -> np.ndarray:
        return self._stack(stored)[..., -1]

    @contextlib.contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        """Raise NoTeacher for what reading raises where the file has something else."""
        msgpack, cramjam = _libraries()
        theirs = (msgpack.UnpackException, cramjam.DecompressionError)
        try:
            yield
        except (ValueError, TypeError, LookupError, ArithmeticError, SyntaxError, *theirs) as e:
            raise NoTeacher(
                f"{self._path} is damaged, cut short or no replay of Dopamine "
                f"({join_lines(e)[:100] or type(e).__name__}): copy it again"
            ) from None


def _libraries() -> tuple[Any, Any]:
    """Return the modules msgpack and cramjam, which replays of earlier versions do not need."""
    try:
        import cramjam  # noqa: PLC0415
        import msgpack  # noqa: PLC0415
    except ImportError as error:
        raise NoTeacher(
            f"replays of Dopamine since version 4.1 need msgpack and cramjam ({error}): "
            f"`pip install 'impala_mm[dopamine]'` installs them"
        ) from None
    return msgpack, cramjam


def _find_values(file: BinaryIO) -> tuple[Any, int]:
    """Return an Unpacker that stands before the first transition, and how many there are."""
    msgpack, _ = _libraries()
    unpacker = msgpack.Unpacker(
        file,
        max_buffer_size=2 * _MOST_STACK,
        max_array_len=_MOST_VALUES,
        max_map_len=_MOST_VALUES,
    )
    _skip_to(unpacker, "memory")
    _skip_to(unpacker, "values")
    return unpacker, unpacker.read_array_header()


def _skip_to(unpacker: Any, name: str) -> None:
    """Skip what stands in a map before the value of this name."""
    for _ in range(unpacker.read_map_header()):
        if unpacker.unpack() == name:
            return
        unpacker.skip()
    raise ValueError(f"it has no {name}")


# -- what Dopamine writes as MessagePack


def _number(value: Any) -> Any:
    """Return a number, which may be an array of one."""
    return _array(value).item() if isinstance(value, dict) else value


def _array(stored: dict[str, Any]) -> np.ndarray:
    """Return an array, which may be compressed: a record (data, shape, dtype) of NumPy's."""
    if len(stored["dtype"]) > _MOST_OF_TYPE:
        raise ValueError("an array of a long type")
    fields = ast.literal_eval(stored["dtype"])
    if isinstance(fields, str):
        dtype = np.dtype(fields)
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of type {fields[:20]}")
        array = np.frombuffer(stored["data"], dtype)
        return array.reshape(stored["shape"], order="F" if stored.get("order") == "F" else "C")
    match fields:
        case [("data", "|u1", (int(size),)), ("shape", "<i4", (int(axes),)), ("dtype", str(of))]:
            data = stored["data"]
            shape = np.frombuffer(data, "<i4", axes, size).tolist()
            if data[size + 4 * axes :].rstrip(b"\0") != b"|u1" or of[:2] != "|S":
                raise ValueError("a stack that is not of bytes")
            return np.frombuffer(_uncompress(data[:size]), np.uint8).reshape(shape)
    raise ValueError("an array of unknown fields")


def _uncompress(content: bytes) -> bytes:
    """Return what snappy has compressed to these bytes."""
    _, cramjam = _libraries()
    size = cramjam.snappy.decompress_raw_len(content)  # it is allocated at once
    if size > _MOST_STACK:
        raise ValueError(f"a stack of {size:,} bytes")
    return bytes(cramjam.snappy.decompress_raw(content))
