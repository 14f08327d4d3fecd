"""Record the games of a Dopamine replay as a data set, for --teacher_data.

python -m impala_mm.teachers.record_dopamine REPLAY FOLDER --level_name=PongNoFrameskip-v4

REPLAY is a run of Dopamine's, its folder with the replay's files, of which the newest replay is
read, or one of these files or of the run's checkpoints. A checkpoint whose replay does not lie
beside it has number (checkpoint + 1) // 4 in the run's replay_logs/, as reincarnating_rl reads it.
The games are added to FOLDER, as --mode=record does it. Rewards are those of the replay, limited to
-1 to 1. Since version 4.1 a replay is one file, which `dopamine_replay` reads; before that:

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

Nothing in the files is executed: an array of objects, which NumPy would unpickle, is refused.
"""

import argparse
import contextlib
import gzip
import math
import os
import re
import sys
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.errors import UserMistake
from impala_mm.config.messages import join_lines
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.environments import from_flags
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Step
from impala_mm.evaluation import recording
from impala_mm.replay.data_set import About, DataSetWriter, unroll_spec
from impala_mm.teachers import dopamine, pickles
from impala_mm.teachers.dopamine_replay import FILE, StackedReplay, check_frames, step_of
from impala_mm.teachers.teacher import NoTeacher

_UNROLL_LENGTH = 20  # students may have any other
_STORED = re.compile(r"\$store\$_observation_ckpt\.(\d{1,9})\.gz")
# A file of a replay, or of a checkpoint.
_FILE = re.compile(
    r"[$\w]+_ckpt\.(\d{1,9})\.gz|"
    r"(?:ckpt\.|tf_ckpt-|sentinel_checkpoint_complete\.)(\d{1,9})(?:\..*)?"
)
_LOGS = "replay_logs"  # the folder of the public replays, beside checkpoints/
_NUMBERS = "biuf"  # kinds of NumPy types
_MOST_ROWS, _MOST_IN_ROW = 2**27, 2**22  # Dopamine keeps a million frames of 84x84


def record(path: Path, folder: Path, level_name: str) -> About:
    """Add a replay's games to a data set, and return its description; raise UserMistake."""
    config = Config(level_name=level_name, life_loss_ends=False)  # as Dopamine plays
    spec = level_spec(level_name, **from_flags.environment_options(config))
    stored = find(path)
    if stored is None:
        raise NoTeacher(
            f"{path} has no replay of Dopamine's ($store$_observation_ckpt.N.gz or N/{FILE}), and "
            f"no replay_logs beside it have one: give the folder in which it is stored"
        )
    replay: Replay | StackedReplay
    if stored.is_one_file:
        replay = StackedReplay(stored.folder / str(stored.number) / FILE, spec)
    else:
        replay = read(stored.folder, stored.number, spec)
    unroll = unroll_spec(entry_spec(spec, ()), _UNROLL_LENGTH)
    policy = f"Dopamine's replay {stored.folder.resolve()}, {stored.number}"
    about = recording.describe(spec, unroll, config, policy)
    with contextlib.closing(DataSetWriter(folder, about)) as data:
        print(f"{stored.folder}, {stored.number}: {replay.transitions:,} transitions", flush=True)
        recording.add(unrolls(replay, spec, unroll, data.count), data)
    return data.about


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

    @property
    def transitions(self) -> int:
        """The number of transitions."""
        return len(self.action)

    def steps(
        self, padding: int, on_game: Callable[[int, float], None]
    ) -> Iterator[tuple[Step, int | None]]:
        """Yield (step, action before it), game by game; the action of a reset is None.

        Before each game may stand `padding` transitions of zeros.
        """
        order, frames = self.order, self._frames()
        action, reward, terminal = (
            array[order] for array in (self.action, self.reward, self.terminal)
        )
        ends = np.flatnonzero(self.end[order])
        # Once the ring is full, the beginning of the oldest game is overwritten.
        overwritten = self.is_full
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
                    yield step_of(frame, first=True), None
                else:
                    cut = at == last and not terminal[at]
                    yield step_of(frame, reward[at - 1], truncated=cut), int(action[at - 1])
                    total += float(reward[at - 1])
                steps += 1
            if frame is not None and steps >= 0 and terminal[last]:
                # The frame after the end is not stored, and has no part in learning.
                yield step_of(frame, reward[last], terminated=True), int(action[last])
                steps, total = steps + 1, total + float(reward[last])
            if steps > 0:
                on_game(steps, total)
            begin = last + 1

    def _frames(self) -> Iterator[np.ndarray]:
        """Yield the frames, the oldest first: those from it on, then those before it."""
        count, oldest = len(self.action), self.oldest
        for begin, end in ((oldest, count), (0, oldest)):
            if begin == end:
                continue
            with StoredArray(self.path) as array:
                for number in range(end):
                    row = array.read(self.shape)
                    if number >= begin:
                        yield row


class Stored(NamedTuple):
    """A replay that was found."""

    folder: Path
    number: int
    is_one_file: bool = False  # as since version 4.1


def find(path: Path) -> Stored | None:
    """Return the replay that a path means, in a folder the newest; None if there is none."""
    if (named := _FILE.fullmatch(path.name)) and not path.is_dir():
        number, of_checkpoint = int(named[1] or named[2]), bool(named[2])
        return _numbers(path.parent).get(number) or (
            _numbers(path.parent.parent / _LOGS).get((number + 1) // 4) if of_checkpoint else None
        )
    if (path / FILE).is_file() and path.name.isdecimal():
        return Stored(path.parent, int(path.name), is_one_file=True)
    run = dopamine.numbered_run(path) or path
    for folder in (run / "checkpoints", run, run / _LOGS, run.parent / _LOGS):
        if stored := _numbers(folder):
            return stored[max(stored)]
    return None


def _numbers(folder: Path) -> dict[int, Stored]:
    """Return the replays in a folder by number."""
    names = [_STORED.fullmatch(path.name) for path in folder.glob("$store$_observation_ckpt.*")]
    found = {int(name[1]): Stored(folder, int(name[1])) for name in names if name}
    for path in folder.glob(f"[0-9]*/{FILE}"):
        if (name := path.relative_to(folder).parts[0]).isdecimal():
            found[int(name)] = Stored(folder, int(name), is_one_file=True)
    return found


def read(folder: Path, number: int, spec: EnvironmentSpec) -> Replay:
    """Return a replay, but for its frames; raise NoTeacher if levels with this spec differ."""
    path = folder / f"$store$_observation_ckpt.{number}.gz"
    with StoredArray(path) as frames:
        capacity, *shape = frames.shape or (0,)
        check_frames(path, frames.dtype, tuple(shape), spec)
    action, reward, terminal = (
        read_array(folder / f"$store$_{name}_ckpt.{number}.gz", (capacity,), kinds)
        for name, kinds in (("action", "iu"), ("reward", _NUMBERS), ("terminal", _NUMBERS))
    )
    count = int(read_array(folder / f"add_count_ckpt.{number}.gz", (), "iu"))
    kept = min(max(count, 0), capacity)
    if not kept:
        raise NoTeacher(f"{folder} has a replay {number} without transitions: give another one")
    extremes = (int(action[:kept].min()), int(action[:kept].max()))
    if wrong := [n for n in extremes if n not in range(spec.actions.discrete or 0)]:
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


def unrolls(
    replay: Replay | StackedReplay,
    spec: EnvironmentSpec,
    unroll: UnrollSpec,
    on_game: Callable[[int, float], None] = lambda steps, episode_return: None,
) -> Iterator[bytes]:
    """Return unrolls of complete games in a row, as `recording.cut` makes them.

    `on_game` is called with the steps and the return of each game, whose rewards are those of the
    replay. Raises NoTeacher if a file is damaged.
    """
    steps = (
        (step, None if action is None else np.array([action], np.int32))
        for step, action in replay.steps(spec.frame_stack - 1, on_game)
    )
    return recording.cut(steps, spec, unroll)


class StoredArray:
    """An array in a compressed file, which is read row by row."""

    def __init__(self, path: Path):
        """Open the file; raise NoTeacher if it is damaged."""
        self._path = path
        with refusing_damage(path), contextlib.ExitStack() as opened:
            self._file = opened.enter_context(gzip.open(path))
            self.shape, self.dtype = _header(self._file)
            opened.pop_all()

    def __enter__(self) -> "StoredArray":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the next numbers in this shape; raise NoTeacher if they are damaged."""
        size = math.prod(shape) * self.dtype.itemsize
        with refusing_damage(self._path):
            content = self._file.read(size)
            if len(content) < size:
                raise EOFError("it ends too early")
        return np.frombuffer(content, self.dtype).reshape(shape)


def _header(file: gzip.GzipFile) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and type in NumPy's header of an array."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"format {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in _NUMBERS or (fortran and len(shape) > 1):
        raise ValueError(f"an array of type {dtype}")
    # Of a negative size, reading would return all that the file expands to.
    negative = any(size < 0 for size in shape)
    if negative or math.prod(shape[:1]) > _MOST_ROWS or math.prod(shape[1:]) > _MOST_IN_ROW:
        raise ValueError(f"an array of shape {shape}")
    return shape, dtype


def read_array(path: Path, shape: tuple[int, ...], kinds: str) -> np.ndarray:
    """Return an array of this shape and of one of these kinds of NumPy types; raise NoTeacher."""
    with StoredArray(path) as array:
        if array.shape != shape:
            raise NoTeacher(
                f"{path} has shape {list(array.shape)} in place of {list(shape)}: its files are "
                f"not of the same replay, so copy them again"
            )
        if array.dtype.kind not in kinds:
            raise NoTeacher(
                f"{path} has numbers of type {array.dtype.name} in place of whole ones: it may be "
                f"damaged, so copy it again"
            )
        return array.read(shape)


def decompress(path: Path, most: int) -> bytes:
    """Return a compressed file's content; raise NoTeacher if it has more bytes than that."""
    with refusing_damage(path), gzip.open(path) as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise ValueError("it is too long")
        return content


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Raise NoTeacher for errors of reading a file."""
    try:
        yield
    except FileNotFoundError:
        raise NoTeacher(
            f"{path} does not exist: a replay is complete with all its files, so copy this one, too"
        ) from None
    except (OSError, EOFError, ValueError, tokenize.TokenError, zlib.error) as error:
        raise NoTeacher(
            f"{path} is damaged or cut short ({join_lines(error)[:100]}): copy it again"
        ) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Record what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("replay", type=Path, help="a run of Dopamine's, or its replay")
    parser.add_argument("folder", type=Path, help="folder of the data set, new or to be added to")
    parser.add_argument("--level_name", required=True, help="the game that was played")
    arguments = parser.parse_args(argv)
    try:
        about = record(arguments.replay, arguments.folder, arguments.level_name)
    except (UserMistake, BadLevel) as error:
        sys.exit(f"error: {error}")
    print(f"{arguments.folder}: {about.contents}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
