"""A data set: what a policy has played, in files, for students that learn before they play.

    FOLDER/
        data.json               what lies here, in words and numbers (`About`)
        0000000000.unrolls      unrolls, compressed (`unroll_files`)

A stream is what one environment showed in a row: complete games, one after the other. Its unrolls
have the keys `stream_key(stream, number)`, and number n+1 begins with the last entry of number n.
After the last game, entries that count as resets fill the unroll. `recorded_games` reads a folder.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import Entry, UnrollSpec
from impala_mm.replay import unroll_files
from impala_mm.replay.store import StoredUnroll, pack
from impala_mm.replay.unroll_files import UnrollInFile
from impala_mm.runtime import safe_files
from impala_mm.runtime.safe_files import from_json, to_json

FORMAT = 1  # of the folder; it grows when a reader of earlier formats would be wrong
ABOUT = "data.json"
_STREAM = 2**32  # keys from one stream to the next
_MOST_ENTRIES = 2**20  # of an unroll, which is decompressed into as much memory as its length asks
_FILE_BYTES, _FILE_SECONDS = 8e6, 5.0  # after which a file is written


class About(NamedTuple):
    """The description of a data set."""

    level: str
    actions: Any  # as messages describe them: a number of Discrete actions, or a text
    observations: str
    masks: bool  # whether the environment offers masks of its actions
    frame_stack: int  # newest observations that a network sees at once; each is stored once
    action_repeats: int  # environment frames in a step
    unroll_length: int  # T: an unroll has T+1 entries
    layout: str  # `UnrollCodec.digest` of the unrolls
    policy: str  # what played
    steps: int = 0
    episodes: int = 0
    mean_return: float | int | None = None  # of the complete games; None without any
    format: int = FORMAT
    # Flags that say which numbers choices of actions stand for; None: an earlier version wrote it.
    choices: str | None = None
    parts: dict | None = None  # steps of each part, by the name that its writer gave it
    # Whether a lost life ends an episode; None: an earlier version wrote it, or there are no lives.
    life_loss_ends: bool | None = None

    @property
    def contents(self) -> str:
        """What it holds, in words."""
        mean = "" if self.mean_return is None else f", mean return {self.mean_return:.2f}"
        return f"{self.episodes:,} complete games, {self.steps:,} steps{mean}"


_SHARED = (
    *("level", "actions", "choices", "observations", "masks"),
    *("frame_stack", "life_loss_ends", "unroll_length", "layout"),
)


class BadData(UserMistake):
    """A folder holds no data that can be used; the message says why."""


def unroll_spec(step: Entry, length: int) -> UnrollSpec:
    """Return the layout of recorded unrolls: without extras, and without a policy's memory.

    `step` are the specs of an entry (`algorithms.interface.entry_spec`).
    """
    return UnrollSpec(length, 1, step._replace(extras=()), ())


def stream_key(stream: int, number: int) -> int:
    """Return the key of an unroll: its number in a stream."""
    return stream * _STREAM + number


def place(key: int) -> tuple[int, int]:
    """Return the stream of an unroll, and its number there."""
    return divmod(key, _STREAM)


def read_about(folder: Path) -> About:
    """Return the description of a folder; raise BadData if it is none of a data set."""
    path = folder / ABOUT
    try:
        found = from_json(path.read_bytes())
    except FileNotFoundError:
        if any(folder.glob("$store$_*")) or any(folder.glob("checkpoints/$store$_*")):
            raise BadData(
                f"{folder} has a replay of Dopamine's, which becomes a data set by `python -m "
                f"impala_mm.teachers.record_dopamine {folder} FOLDER --level_name=...`: give that "
                f"FOLDER"
            ) from None
        what = "has no data.json" if folder.is_dir() else "does not exist"
        raise BadData(
            f"{folder} {what}: give the folder of a data set, which --mode=record writes"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError:
        raise BadData(f"{path} is damaged: it is no JSON") from None
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise BadData(
            f"{path} has format {version}, and this version reads format {FORMAT}: record the "
            f"data again with this version"
        )
    try:
        about = About(**found)
    except TypeError:
        raise BadData(f"{path} is damaged: it does not have the entries of a data set") from None
    kinds = About.__annotations__.items()
    wrong = [n for n, kind in kinds if kind is not Any and not isinstance(getattr(about, n), kind)]
    if not wrong and not all(type(n) is int for n in (about.parts or {}).values()):
        wrong = ["parts"]
    if not wrong and not 1 <= about.unroll_length <= _MOST_ENTRIES:
        wrong = ["unroll_length"]
    if wrong:
        value = getattr(about, wrong[0])
        raise BadData(f"{path} is damaged: {wrong[0]} = {value!r}: copy the folder again")
    return about


class DataSetWriter:
    """A folder to which one process writes a data set, or adds to one of the same kind."""

    def __init__(self, folder: Path, about: About):
        """Use a folder, which is made if it does not exist; raise BadData if it cannot serve."""
        self._folder, self.about = folder, about
        self.part = ""  # the part to which what is counted belongs; empty: to none
        self._waiting: list[StoredUnroll] = []  # for the next file
        self._bytes, self._began = 0, time.monotonic()
        self._written: About | None = None  # what was written beside the last file
        try:
            self._lock = unroll_files.claim(folder / ABOUT, "data set", self._go_on, BadData)
            keys = [u.key for path in files(folder) for u in intact(path)]
        except OSError as error:
            raise BadData(f"{folder} cannot be written: {error.strerror}") from None
        numbers = [int(path.stem) for path in files(folder) if path.stem.isdecimal()]
        self._next_file = max(numbers, default=-1) + 1
        # Streams from here on are new.
        self.next_stream = max((place(key)[0] for key in keys), default=-1) + 1

    def _go_on(self) -> None:
        """Continue the counts of a folder's data; refuse data of another kind."""
        found = read_about(self._folder)
        if found.choices is None:
            self.about = self.about._replace(choices=None)
        if found.life_loss_ends is None:
            self.about = self.about._replace(life_loss_ends=None)
        if differs := [n for n in _SHARED if getattr(found, n) != getattr(self.about, n)]:
            here, there = (getattr(each, differs[0]) for each in (self.about, found))
            raise BadData(
                f"{self._folder} holds data of another kind ({differs[0]} {there}, now {here}): "
                f"name another folder"
            )
        policies = [found.policy] * (self.about.policy not in found.policy.split(", "))
        self.about = self.about._replace(
            policy=", ".join([*policies, self.about.policy]) if policies else found.policy,
            steps=found.steps,
            episodes=found.episodes,
            mean_return=found.mean_return,
            parts=found.parts,
        )

    def add(self, stream: int, number: int, content: bytes) -> None:
        """Take an unroll, by its number in its stream; raises BadData if it cannot be written."""
        packed = pack(content)
        self._waiting.append(StoredUnroll(stream_key(stream, number), 0, packed))
        self._bytes += len(packed)
        if self._bytes > _FILE_BYTES or time.monotonic() - self._began > _FILE_SECONDS:
            self.flush()

    def count(self, steps: int, episode_return: float) -> None:
        """Count a complete game."""
        about, games = self.about, self.about.episodes + 1
        mean = about.mean_return or 0.0
        if self.part:
            parts = about.parts or {}
            about = about._replace(parts=parts | {self.part: parts.get(self.part, 0) + steps})
        self.about = about._replace(
            steps=about.steps + steps,
            episodes=games,
            mean_return=mean + (episode_return - mean) / games,
        )

    def flush(self) -> None:
        """Write what has been added and counted; raise BadData if that fails."""
        path = self._folder / ABOUT
        try:
            if self._waiting:
                if not path.exists():  # a folder of unrolls without it would be refused
                    self._write_about()
                path = self._folder / f"{self._next_file:010d}{unroll_files.SUFFIX}"
                safe_files.write_whole(path, unroll_files.encode(self._waiting))
                self._next_file += 1
            if self._waiting or self._written not in (None, self.about):
                self._write_about()
                self._written = self.about
        except OSError as error:
            raise BadData(f"{path} cannot be written: {error.strerror}") from None
        self._waiting, self._bytes, self._began = [], 0, time.monotonic()

    def _write_about(self) -> None:
        text = to_json(self.about._asdict(), indent=2)
        safe_files.write_whole(self._folder / ABOUT, f"{text}\n".encode())

    def close(self) -> None:
        """Write what has been added, and let another process use the folder."""
        try:
            self.flush()
        finally:
            self._lock.close()


def files(folder: Path) -> list[Path]:
    """Return the files of unrolls in a folder, in the order in which they were written."""
    return sorted(folder.glob(f"*{unroll_files.SUFFIX}"))


def intact(path: Path) -> list[UnrollInFile]:
    """Return the unrolls of a file; none if it is damaged or was deleted.

    Raises BadData if it cannot be read.
    """
    try:
        return unroll_files.find(path)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> BadData:
    return BadData(
        f"{path} cannot be read: {error.strerror}; make it readable for this user, or give the "
        f"folder of other data"
    )
