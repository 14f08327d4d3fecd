"""The games of a data set, cut into the unrolls of a student, whatever length its own have.

`data_set` says what lies in a folder. Each student cuts the streams as its actors would have: T new
entries in each unroll, and before them the overlap with the one before.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.replay.data_set import About, BadData, files, intact, place, read_about, unroll_spec
from impala_mm.replay.store import unpack
from impala_mm.replay.unroll_files import UnrollInFile
from impala_mm.runtime.log import Say

_MOST_BYTES = 2**30  # of an unroll


class _Stream:
    """Entries of one environment in a row: those from a reset to the end of a complete game.

    Behind a gap a row begins in the middle of a game, of which the frames before are not known.
    """

    def __init__(self, unrolls: Sequence[UnrollInFile], codec: UnrollCodec, check: UnrollCheck):
        self._unrolls, self._codec, self._check = unrolls, codec, check
        self._length = codec.spec.length
        self._unroll = functools.lru_cache(maxsize=1)(self._decode)
        self.cut = 0  # steps after the last complete game, which are left out
        self._begin = self._find_begin()
        self.skipped = max(self._begin - 1, 0)  # steps before the first reset, likewise
        found = self._find_end() - self._begin
        self.entries = found if found > 1 else 0

    def _find_begin(self) -> int:
        """Return the number of the first entry that is a reset; the number of all if none is."""
        for number in range(len(self._unrolls)):
            first = self._unroll(number).first
            if first.any():
                return number * self._length + int(np.argmax(first))
        return len(self._unrolls) * self._length + 1

    def _find_end(self) -> int:
        """Return the number of entries up to the end of the last game; 0: no game ends."""
        reset_follows = True
        for number in reversed(range(len(self._unrolls))):
            entries = self._unroll(number)
            # A lost life does not end a game: no reset follows.
            follows = np.append(entries.first[1:], reset_follows)
            ends = np.flatnonzero(((entries.terminated | entries.truncated) & follows)[1:])
            last = int(ends[-1]) + 2 if ends.size else 1
            self.cut += int((~entries.first[last:]).sum())
            if ends.size:
                return number * self._length + last
            reset_follows = bool(entries.first[1])
        return 0

    def _decode(self, number: int) -> Entry:
        """Return the entries [T+1, ...] of an unroll."""
        packed = self._unrolls[number]
        try:
            content = unpack(packed.read(), self._codec.size)
        except ValueError as error:
            raise BadData(
                f"{packed.path} is damaged ({error}): delete it, or copy it again"
            ) from None
        if mistake := self._check.mistake(content):
            raise BadData(
                f"{packed.path} has an unroll that no student can learn from: {mistake}: "
                f"delete the file, or record the data again"
            )
        rows = np.frombuffer(content, np.uint8)[np.newaxis].copy()
        entries: Entry = tf.nest.map_structure(lambda x: x[0], self._codec.arrays(rows).entries)
        return entries

    def copy(self, begin: int, entries: Entry) -> None:
        """Write the entries from number `begin` on into arrays [N, ...].

        Where the stream has none, they are like a reset: copies of the nearest entry.
        """
        to = _leaves(entries)
        size = len(entries.first)
        low, high = max(-begin, 0), min(size, self.entries - begin)
        at = low
        while at < high:
            place = self._begin + begin + at
            number = min(place // self._length, len(self._unrolls) - 1)
            offset = place - number * self._length
            count = min(self._length + 1 - offset, high - at)
            for ours, theirs in zip(to, _leaves(self._unroll(number)), strict=True):
                ours[at : at + count] = theirs[offset : offset + count]
            at += count
        for ours in to:
            ours[:low], ours[high:] = ours[low], ours[high - 1]
        for part in (slice(None, low), slice(high, None)):
            entries.first[part] = True
            for flag in (entries.reward, entries.terminated, entries.truncated):
                flag[part] = 0


def _leaves(entries: Entry) -> list[np.ndarray]:
    """Return all arrays of entries but the extras, which are the algorithm's own."""
    leaves: list[np.ndarray] = tf.nest.flatten(entries._replace(extras=()))
    return leaves


class _Window(NamedTuple):
    """An unroll of a student: where it lies."""

    stream: int
    begin: int  # entry of the stream; negative in the first unroll if unrolls overlap by several


class RecordedGames:
    """The unrolls of a student, of all games in some folders."""

    def __init__(
        self,
        folders: Sequence[Path],
        ours: About,
        unroll: UnrollSpec,
        say: Say,
        earlier: int = 0,
        meanwhile: Callable[[], None] = lambda: None,
        check: Callable[[UnrollSpec], UnrollCheck] = UnrollCheck,
    ):
        """Read folders of data that fit `ours`, the student's own description.

        `unroll` is that of the student, and each is preceded by `earlier` entries. `meanwhile` is
        called for each file and each stream. `check` makes the check of unrolls of a layout, which
        come from files that anybody may have written. Raises BadData if a folder does not fit, or
        no game of it is complete.
        """
        self.earlier, self._streams = earlier, list[_Stream]()
        for folder in folders:
            self._streams += _read(folder, ours, unroll, say, meanwhile, check)
        self.steps = sum(stream.entries - 1 for stream in self._streams)  # with resets
        before = unroll.overlap - 1 + earlier
        self._windows = [
            _Window(i, begin - before)
            for i, stream in enumerate(self._streams)
            for begin in range(0, stream.entries - 1, unroll.length)
        ]

    def __len__(self) -> int:
        return len(self._windows)

    def write(self, window: int, entries: Entry) -> None:
        """Write an unroll's entries into arrays [earlier+T+overlap, ...], but for the extras."""
        stream, begin = self._windows[window]
        self._streams[stream].copy(begin, entries)


def _read(
    folder: Path,
    ours: About,
    unroll: UnrollSpec,
    say: Say,
    meanwhile: Callable[[], None],
    check: Callable[[UnrollSpec], UnrollCheck],
) -> list[_Stream]:
    """Return the streams of a folder that have a complete game."""
    about = read_about(folder)
    _refuse_other(folder, about, ours, say)
    codec = UnrollCodec(unroll_spec(unroll.step, about.unroll_length))
    if codec.digest != about.layout:
        raise BadData(
            f"{folder} holds unrolls of another layout ({about.layout}, here {codec.digest}): "
            f"record the data again with this version"
        )
    if codec.size > _MOST_BYTES:
        raise BadData(
            f"{folder} holds unrolls of {codec.size:,} bytes, and at most {_MOST_BYTES:,} can be "
            f"read: record the data again with a smaller --unroll_length"
        )
    found: list[UnrollInFile] = []
    for path in files(folder):
        meanwhile()
        unrolls = intact(path)
        if not unrolls:
            say(f"{path} is {'damaged' if path.exists() else 'gone'} and left out")
        found += unrolls
    streams, checked = list[_Stream](), check(codec.spec)
    for row in _in_rows(found):
        meanwhile()
        streams.append(_Stream(row, codec, checked))
    usable = [stream for stream in streams if stream.entries]
    if not usable:
        what = "no game that is complete" if streams else "no data"
        raise BadData(f"{folder} has {what}: record more with --mode=record --record_dir={folder}")
    if skipped := sum(stream.skipped for stream in streams):
        say(
            f"{folder} has gaps, behind which {skipped:,} steps are left out, up to the next game: "
            f"the frames before them are missing"
        )
    if cut := sum(stream.cut for stream in streams):
        say(
            f"{folder} ends in the middle of {sum(stream.cut > 0 for stream in streams)} games: "
            f"their {cut:,} steps are left out"
        )
    return usable


def _in_rows(unrolls: Sequence[UnrollInFile]) -> list[list[UnrollInFile]]:
    """Return unrolls in rows without gaps: each begins where the one before it ends."""
    rows: list[list[UnrollInFile]] = []
    for unroll in sorted(unrolls, key=lambda each: each.key):
        stream, number = place(unroll.key)
        if not rows or place(rows[-1][-1].key) != (stream, number - 1):
            rows.append([])
        rows[-1].append(unroll)
    return rows


def _refuse_other(folder: Path, theirs: About, ours: About, say: Say) -> None:
    """Raise BadData if a student cannot read this data; say what differs otherwise."""
    for name, what in (
        ("actions", "actions"),
        ("observations", "observations"),
        ("masks", "masks of actions"),
    ):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            raise BadData(
                f"{folder} was recorded on {theirs.level} with {what} {there}, and {ours.level} "
                f"has {here}: a student learns from data with its own spaces only"
            )
    if theirs.choices is None and ours.choices:
        say(
            f"the data in {folder} does not say which numbers its choices stand for: they are "
            f"taken as those of {ours.choices}"
        )
    elif theirs.choices is not None and theirs.choices != ours.choices:
        there, here = (each or "--discretization=none" for each in (theirs.choices, ours.choices))
        raise BadData(
            f"{folder} was recorded with {there}, and the student has {here}: the same choice "
            f"would be another number, so give {there} here"
        )
    if theirs.level != ours.level:
        say(f"the data in {folder} is of {theirs.level}, not of {ours.level}")
    if theirs.life_loss_ends not in {None, ours.life_loss_ends}:
        there, here = (
            f"--life_loss_ends={str(each.life_loss_ends).lower()}" for each in (theirs, ours)
        )
        say(
            f"the data in {folder} was recorded with {there}, and the student has {here}: a lost "
            f"life ends an episode in one of them only"
        )
    if theirs.action_repeats != ours.action_repeats:
        say(
            f"the data in {folder} has {theirs.action_repeats} frames in a step, and the student "
            f"acts every {ours.action_repeats}"
        )
