"""The replay of a Dopamine agent as unrolls, for students that learn from recorded games.

    checkpoints/
        $store$_observation_ckpt.199.gz     uint8 [N, 84, 84]: single frames, as our unrolls have
        $store$_action_ckpt.199.gz          int32 [N]; also $store$_reward_ and $store$_terminal_
        add_count_ckpt.199.gz               transitions that were ever added
        episode_end_indices_ckpt.199.gz     a pickle: where episodes end (of later versions only)

Each is the compressed file of one array. The arrays are a ring: number add_count modulo N is the
oldest. A transition has a frame, the action after it, and the reward (limited to -1 to 1) and end
that followed. Before each episode stand transitions of zeros, one fewer than frames are stacked.

Only one frame at a time is read, so a replay of any size takes little memory. The oldest game is
left out if its beginning is overwritten. A game that is cut by a limit, or because the replay ends,
is truncated at its last frame, and the action after it is left out: no frame shows what followed.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import EnvironmentSpec, Step
from impala_mm.teachers import pickles
from impala_mm.teachers.dopamine_arrays import StoredArray, decompress, read_array
from impala_mm.teachers.kinds import NoTeacher

_STORED = re.compile(r"\$store\$_observation_ckpt\.(\d+)\.gz")


class Replay(NamedTuple):
    """A replay without its frames, in the order in which they lie in the files."""

    path: Path  # of the frames
    shape: tuple[int, ...]  # of one frame
    oldest: int  # number of the oldest transition
    action: np.ndarray  # int64 [N]
    reward: np.ndarray  # float32 [N]
    terminal: np.ndarray  # bool [N]
    end: np.ndarray  # bool [N]: an episode ends here, whether terminal or cut by a limit
    is_full: bool  # the oldest transitions have been overwritten

    @property
    def order(self) -> np.ndarray:
        """The numbers of the transitions, the oldest first."""
        return np.roll(np.arange(len(self.action)), -self.oldest)


def find(folder: Path) -> int | None:
    """Return the number of the newest replay in a folder; None if it has none of Dopamine's."""
    names = [_STORED.fullmatch(path.name) for path in folder.glob("$store$_observation_ckpt.*")]
    return max((int(name[1]) for name in names if name), default=None)


def read(folder: Path, number: int, spec: EnvironmentSpec) -> Replay:
    """Return a replay, but for its frames; raise NoTeacher if levels with this spec differ."""
    path = folder / f"$store$_observation_ckpt.{number}.gz"
    with StoredArray(path) as frames:
        capacity, *shape = frames.shape or (0,)
        _check_frames(path, frames.dtype, tuple(shape), spec)
    action = _read_whole(folder / f"$store$_action_ckpt.{number}.gz", (capacity,))
    reward, terminal = (
        read_array(folder / f"$store$_{name}_ckpt.{number}.gz", (capacity,))
        for name in ("reward", "terminal")
    )
    count = int(_read_whole(folder / f"add_count_ckpt.{number}.gz", ()))
    kept = min(max(count, 0), capacity)
    if not kept:
        raise NoTeacher(f"{folder} has a replay {number} without transitions: give another one")
    known = range(spec.actions.discrete or 0)
    extremes = (int(action[:kept].min()), int(action[:kept].max()))
    if wrong := [each for each in extremes if each not in known]:
        raise NoTeacher(
            f"{folder} has action {wrong[0]} in replay {number}, and {spec.level_name} takes "
            f"{spec.actions.describe()}: give data of this game"
        )
    end = terminal.astype(bool)
    ends = folder / f"episode_end_indices_ckpt.{number}.gz"
    if ends.exists():
        numbers = pickles.interpret(
            decompress(ends, min(100 + 64 * capacity, pickles.MOST_BYTES)), str(ends)
        )
        if not isinstance(numbers, set) or not all(n in range(kept) for n in numbers):
            raise NoTeacher(f"{ends} has no set of transitions' numbers: copy it again")
        end[[int(n) for n in numbers]] = True
    return Replay(
        path,
        tuple(shape),
        oldest=count % capacity if count > capacity else 0,
        action=action[:kept].astype(np.int64),
        reward=reward[:kept].astype(np.float32),
        terminal=terminal[:kept].astype(bool),
        end=end[:kept],
        is_full=count > capacity,
    )


def _read_whole(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of whole numbers; raise NoTeacher if it has others."""
    array = read_array(path, shape)
    if array.dtype.kind not in "iu":
        raise NoTeacher(
            f"{path} has numbers of type {array.dtype.name} in place of whole ones: it may be "
            f"damaged, so copy it again"
        )
    return array


def _check_frames(
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


def unrolls(
    replay: Replay,
    spec: EnvironmentSpec,
    unroll: UnrollSpec,
    on_game: Callable[[int, float], None] = lambda steps, episode_return: None,
) -> Iterator[bytes]:
    """Yield unrolls of complete games in a row, as an actor's `UnrollWriter` makes them.

    Entries after the last game are like resets. `on_game` is called with the steps and the return
    of each game, whose rewards are those of the replay. Raises NoTeacher if a file is damaged.
    """
    writer = UnrollWriter(unroll, 1, ())
    nothing = spec.actions.zeros(1)
    step: Step | None = None
    begun = False
    partial = False  # whether the unroll has an entry that none before it has
    for step, action in _steps(replay, spec.frame_stack - 1, on_game):
        if not begun:
            begun = True
            writer.write_reset(step)
            writer.set_start_state([])
            continue
        taken = nothing if action is None else np.array([action], np.int32)
        partial = not writer.write(step, taken, [])
        if not partial:
            yield from writer.take_unrolls()
            writer.set_start_state([])
    while partial and step:
        no, yes = np.array([False]), np.array([True])
        step = step._replace(reward=np.zeros(1, np.float32), terminated=no, truncated=no, first=yes)
        partial = not writer.write(step, nothing, [])
        if not partial:
            yield from writer.take_unrolls()


def _steps(
    replay: Replay, padding: int, on_game: Callable[[int, float], None]
) -> Iterator[tuple[Step, int | None]]:
    """Yield (step, action before it), game by game; the action of a reset is None."""
    order, frames = replay.order, _frames(replay)
    action, reward, terminal = (
        each[order] for each in (replay.action, replay.reward, replay.terminal)
    )
    ends = np.flatnonzero(replay.end[order])
    # Once the ring is full, the beginning of the oldest game is overwritten.
    overwritten = replay.is_full
    begin = int(ends[0]) + 1 if overwritten and ends.size else len(order) * overwritten
    for _ in range(begin):
        next(frames)
    for last in [*ends[ends >= begin].tolist(), len(order) - 1]:
        steps, total, frame = -1, 0.0, None
        for at in range(begin, last + 1):
            frame = next(frames)
            is_padding = at - begin < padding and not (frame.any() or action[at] or reward[at])
            if steps < 0 and is_padding:
                continue
            if steps < 0:
                yield _step(frame, first=True), None
            else:
                cut = at == last and not terminal[at]
                yield _step(frame, reward[at - 1], truncated=cut), int(action[at - 1])
                total += float(reward[at - 1])
            steps += 1
        if frame is not None and steps >= 0 and terminal[last]:
            # The frame after the end is not stored, and has no part in learning.
            yield _step(frame, reward[last], terminated=True), int(action[last])
            steps, total = steps + 1, total + float(reward[last])
        if steps > 0:
            on_game(steps, total)
        begin = last + 1


def _step(
    frame: np.ndarray,
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    first: bool = False,
) -> Step:
    """Return the step of one environment."""
    return Step(
        reward=np.array([reward], np.float32),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        observation=frame[np.newaxis, ..., np.newaxis],
        first=np.array([first]),
        fault=np.array([False]),
    )


def _frames(replay: Replay) -> Iterator[np.ndarray]:
    """Yield the frames, the oldest first: those from it on, then those before it."""
    count, oldest = len(replay.action), replay.oldest
    for begin, end in ((oldest, count), (0, oldest)):
        if begin == end:
            continue
        with StoredArray(replay.path) as array:
            for number in range(end):
                row = array.row()
                if number >= begin:
                    yield row
