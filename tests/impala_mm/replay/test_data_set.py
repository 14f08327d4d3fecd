"""Data sets on disk: what a student cuts out of the games, and what is refused in a sentence."""

import json
import resource
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.data.trajectory import Entry, UnrollCodec, UnrollSpec
from impala_mm.data.unroll_writer import UnrollWriter
from impala_mm.environments.types import Step
from impala_mm.replay import recorded_games, unroll_files
from impala_mm.replay.data_set import About, BadData, DataSetWriter, read_about
from impala_mm.replay.recorded_games import RecordedGames
from impala_mm.replay.store import StoredUnroll

FLAG = tf.TensorSpec([], tf.bool)
STEP = Entry(
    action=tf.TensorSpec([], tf.int32),
    reward=tf.TensorSpec([], tf.float32),
    terminated=FLAG,
    truncated=FLAG,
    observation={"a": tf.TensorSpec([2], tf.uint8), "b": tf.TensorSpec([], tf.float32)},
    first=FLAG,
    extras=(),
)


def _about(length, **changes):
    layout = UnrollCodec(UnrollSpec(length, 1, STEP, ())).digest
    about = About("catch", 3, "pictures", False, 1, 1, length, layout, "runs/a", choices="")
    return about._replace(**changes)


def _steps(lengths, lost_lives=()):
    """Return the steps of one environment that plays games of these lengths, each of one row."""
    steps, number = [], 0
    for game in lengths:
        for t in range(game + 1):
            number += 1
            observation = {"a": np.array([[t, game]], np.uint8), "b": np.array([number + 0.5])}
            is_end = t == game or number in lost_lives
            steps.append(
                Step(
                    reward=np.array([number * (t > 0)], np.float32),
                    terminated=np.array([is_end and game % 2 == 1]),
                    truncated=np.array([is_end and game % 2 == 0]),
                    observation=observation,
                    first=np.array([t == 0]),
                    fault=np.array([False]),
                )
            )
    return steps


def _unrolls(steps, length, overlap, extras=()):
    """Return the unrolls of entries [T+overlap, ...] that an actor writes of these steps."""
    spec = UnrollSpec(length, overlap, STEP._replace(extras=extras), ())
    writer, codec, found = UnrollWriter(spec, 1, ()), UnrollCodec(spec), []
    writer.write_reset(steps[0])
    for number, step in enumerate(steps[1:]):
        if writer.at_unroll_start:
            writer.set_start_state([])
        if writer.write(step, np.array([number % 3], np.int32), []):
            found += writer.take_unrolls()
    return [codec.arrays(np.frombuffer(c, np.uint8)[None]).entries for c in found], found


def _record(folder, steps, length, stream=None, keep=lambda number: True, **changes):
    """Write the unrolls of one environment's steps; return the writer, which is closed."""
    data = DataSetWriter(folder, _about(length, **changes))
    _, contents = _unrolls(steps, length, 1)
    stream = data.next_stream if stream is None else stream
    for number, content in enumerate(contents):
        if keep(number):
            data.add(stream, number, content)
            data.flush()
    data.close()
    return data


def _read(folder, length, overlap=1, **changes):
    """Return the unrolls that a student with unrolls of this layout cuts, and what is said."""
    said = []
    unroll = UnrollSpec(length, overlap, STEP, ())
    games = RecordedGames([folder], _about(length, **changes), unroll, said.append)
    rows = np.zeros([len(games), UnrollCodec(unroll).size], np.uint8)
    entries = UnrollCodec(unroll).arrays(rows).entries
    for i in range(len(games)):
        games.write(i, tf.nest.map_structure(lambda x, i=i: x[i], entries))
    return entries, said, games


@settings(max_examples=40, deadline=None)
@given(
    games=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    recorded=st.integers(1, 8),
    length=st.integers(1, 8),
    overlap=st.integers(1, 4),
)
def test_a_student_cuts_what_its_own_actor_would_have_sent(
    tmp_path_factory, games, recorded, length, overlap
):
    folder = tmp_path_factory.mktemp("data")
    steps = _steps(games)
    reset = _steps([1])[:1]
    padded = [*steps, *reset * 30]
    _record(folder, padded, recorded)
    found, said, read = _read(folder, length, overlap)
    expected, _ = _unrolls(padded, length, overlap)
    assert not said
    assert read.steps == len(steps) - 1
    assert len(read) == -(-(len(steps) - 1) // length), "no unroll of resets alone"
    for i in range(len(read)):
        for name in ("action", "reward", "terminated", "truncated", "first", "observation"):
            ours, theirs = (
                tf.nest.flatten(getattr(e, name))
                for e in (tf.nest.map_structure(lambda x, i=i: x[i : i + 1], found), expected[i])
            )
            real = max(len(steps) - i * length - 1 + overlap, 0)
            for mine, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(mine[:, :real], other[:, :real], name)
                if name in {"first", "reward", "terminated", "truncated"}:
                    np.testing.assert_array_equal(mine[:, real:], other[:, real:], name)


def test_entries_before_an_unroll_are_those_of_a_larger_overlap(tmp_path):
    steps = [*_steps([5, 2, 4]), *_steps([1])[:1] * 9]
    _record(tmp_path, steps, 4)
    wide, _, games = _read(tmp_path, 3, overlap=4)
    unroll = UnrollSpec(3, 2, STEP, ())
    read = RecordedGames([tmp_path], _about(3), unroll, print, earlier=2)
    assert (read.earlier, len(read)) == (2, len(games))
    for i in range(len(read)):
        ours = tf.nest.map_structure(lambda x: np.zeros(x.shape[1:], x.dtype), wide)
        read.write(i, ours)
        tf.nest.map_structure(lambda x, y, i=i: np.testing.assert_array_equal(x, y[i]), ours, wide)


def test_a_stream_that_ends_in_the_middle_of_a_game_is_cut_in_a_sentence(tmp_path):
    steps = _steps([5, 6, 20], lost_lives={9, 20})[:25]
    _record(tmp_path, steps, 4)
    found, said, games = _read(tmp_path, 5)
    assert games.steps == 12, "two games, and the reset between them"
    assert said == [f"{tmp_path} ends in the middle of 1 games: their 11 steps are left out"], (
        "the reset is no step"
    )
    assert found.first[-1, -1], "the last unroll is filled by resets"


def test_a_lost_file_leaves_out_what_is_no_complete_game_any_more(tmp_path):
    _record(tmp_path, _steps([6] * 5 + [30])[:33], 4)
    path = tmp_path / "0000000003.unrolls"
    path.write_bytes(path.read_bytes()[:-3])
    _, said, games = _read(tmp_path, 4)
    assert f"{path} is damaged and left out" in said
    assert games.steps < 33 - 4
    (tmp_path / "0000000003.unrolls").unlink()
    assert _read(tmp_path, 4)[2].steps == games.steps


def test_more_files_than_a_process_may_open_are_all_read(tmp_path):
    games = 30
    _record(tmp_path, [*_steps([3] * games), *_steps([1])[:1] * 4], 4)
    files = len(list(tmp_path.glob("*.unrolls")))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(len(used) + files) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[files // 2], limits[1]))
    try:
        _, said, read = _read(tmp_path, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not said
    assert read.steps == 4 * games - 1


def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(tmp_path):
    _record(tmp_path, _steps([6] * 5), 4)
    path = tmp_path / "0000000001.unrolls"
    path.unlink()
    path.symlink_to(path.name)
    said = r"0000000001.unrolls cannot be read: Too many levels of sym.*; make it readable for this"
    with pytest.raises(BadData, match=said):
        _read(tmp_path, 4)


def test_a_file_that_is_deleted_while_the_folder_is_read_is_left_out(tmp_path, monkeypatch):
    _record(tmp_path, _steps([6] * 5), 4)
    path = tmp_path / "0000000003.unrolls"
    listed = recorded_games.files(tmp_path)
    path.unlink()
    monkeypatch.setattr(recorded_games, "files", lambda folder: listed)
    _, said, games = _read(tmp_path, 4)
    assert f"{path} is gone and left out" in said
    assert games.steps


def test_games_are_added_as_streams_of_their_own(tmp_path):
    data = _record(tmp_path, _steps([4, 4]), 3)
    data.count(4, 1.0)
    again = DataSetWriter(tmp_path, _about(3, policy="runs/b"))
    assert again.next_stream == 1
    again.count(4, 1.0)
    again.count(6, 4.0)
    again.close()
    _record(tmp_path, _steps([4, 4]), 3)
    found = read_about(tmp_path)
    assert (found.steps, found.episodes, found.mean_return) == (0, 0, None), "no file since"
    assert found.policy == "runs/a", "nothing of runs/b was written"
    with pytest.raises(BadData, match=r"of another kind \(level catch, now Pong\): name another"):
        DataSetWriter(tmp_path, _about(3, level="Pong"))
    assert len(_read(tmp_path, 3)[2]) == 2 * 3


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    data = DataSetWriter(tmp_path, _about(3))
    with pytest.raises(BadData, match="is used by another process: end that first"):
        DataSetWriter(tmp_path, _about(3))
    data.close()
    DataSetWriter(tmp_path, _about(3)).close()


def test_folders_of_others_are_refused_and_left_as_they_are(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadData, match="is not empty, and no data set lies there"):
        DataSetWriter(tmp_path, _about(3))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(BadData, match=r"letter.txt cannot be written: .*"):
        DataSetWriter(tmp_path / "letter.txt", _about(3))


def _spoil(folder, **changes):
    about = json.loads((folder / "data.json").read_text()) | changes
    (folder / "data.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: _spoil(f, format=7), "has format 7, and this version reads format 1: record"),
        (lambda f: _spoil(f, colour=1), "is damaged: it does not have the entries of a data set"),
        (lambda f: (f / "data.json").write_text("{"), "is damaged: it is no JSON"),
        (lambda f: (f / "data.json").write_text("[]"), "has format None, and this version"),
        (lambda f: (f / "data.json").unlink(), "has no data.json: give the folder of a data set"),
        (lambda f: _spoil(f, actions=4), "with actions 4, and catch has 3: a student learns from"),
        (lambda f: _spoil(f, observations="float32 [4]"), r"observations float32 \[4\], and catch"),
        (lambda f: _spoil(f, frame_stack=4), "with a stack of frames 4, and catch has 1"),
        (lambda f: _spoil(f, unroll_length="3"), "is damaged: unroll_length = '3': copy the"),
        (lambda f: _spoil(f, unroll_length=0), "is damaged: unroll_length = 0: copy the"),
        (lambda f: _spoil(f, unroll_length=-1), "is damaged: unroll_length = -1: copy the"),
        (lambda f: _spoil(f, unroll_length=2**31), "unroll_length = 2147483648: copy"),
        (lambda f: _spoil(f, parts=[1]), r"is damaged: parts = \[1\]: copy the folder again"),
        (
            lambda f: _spoil(f, parts={"a": "b"}),
            "is damaged: parts = {'a': 'b'}: copy the fo",
        ),
        (lambda f: _spoil(f, mean_return=[1]), r"is damaged: mean_return = \[1\]: copy the"),
        (
            lambda f: (f / "data.json").rename(f / "$store$_observation_ckpt.1.gz"),
            "has a replay of Dopamine's, which becomes a data set by `python -m impala_mm.teachers",
        ),
        (lambda f: _spoil(f, layout="x"), "holds unrolls of another layout"),
        (lambda f: [p.unlink() for p in f.glob("*.unrolls")], "has no data: record more with"),
    ],
)
def test_what_is_no_data_for_a_student_is_refused_in_a_sentence(tmp_path, spoil, said):
    _record(tmp_path, _steps([4, 4]), 3)
    spoil(tmp_path)
    with pytest.raises(BadData, match=said):
        _read(tmp_path, 3)


_HEADERS = {
    "a text as a key": b'{"keys": ["0"], "versions": [0], "sizes": [%d], "checksum": %d}',
    "a negative key": b'{"keys": [-1], "versions": [0], "sizes": [%d], "checksum": %d}',
    "a key that no int64 holds": b'{"keys": [%d], "versions": [0], "sizes": [%%d], "checksum": %%d}'
    % 2**70,
    "a negative size": b'{"keys": [0, 1], "versions": [0, 0], "sizes": [%d, -1], "checksum": %d}',
    "no lists": b'{"keys": 0, "versions": 0, "sizes": %d, "checksum": %d}',
    "nested too deeply": b"[" * 100_000 + b"%d, %d" + b"]" * 100_000,
}


@pytest.mark.parametrize("header", _HEADERS.values(), ids=_HEADERS)
def test_a_file_whose_header_is_no_header_counts_as_damaged_though_its_checksums_agree(
    tmp_path, header
):
    _record(tmp_path, _steps([4, 4]), 3)
    path = tmp_path / "0000000000.unrolls"
    content = path.read_bytes().split(b"\n", 1)[1]
    numbers = (len(content) + header.count(b"-1]"), zlib.crc32(content))
    line = header % numbers
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(line), line) + content)
    _, said, games = _read(tmp_path, 3)
    assert f"{path} is damaged and left out" in said
    assert games.steps == 4, "the second game"


def test_unrolls_that_are_none_are_refused_though_their_checksums_agree(tmp_path):
    data = DataSetWriter(tmp_path, _about(3))
    path = tmp_path / "0000000000.unrolls"
    path.write_bytes(unroll_files.encode([StoredUnroll(0, 0, b"nothing")]))
    data.close()
    with pytest.raises(BadData, match=r"0000000000.unrolls is damaged \(a stored unroll of 7 byt"):
        _read(tmp_path, 3)


def test_an_unroll_that_would_take_the_memory_is_refused(tmp_path, monkeypatch):
    _record(tmp_path, _steps([4, 4]), 3)
    monkeypatch.setattr(recorded_games, "_MOST_BYTES", 50)
    with pytest.raises(BadData, match=r"holds unrolls of [0-9]+ bytes, and at most 50 can be read"):
        _read(tmp_path, 3)


_LOG = "--discretization=log --action_ratio=30.0"


@pytest.mark.parametrize(
    ("recorded", "student", "said"),
    [
        (_LOG, "--discretization=lin", f"with {_LOG}, and the student has --discretization=lin: "),
        ("", _LOG, f"recorded with --discretization=none, and the student has {_LOG}: the same"),
        (_LOG, "", f"the same choice would be another number, so give {_LOG} here"),
    ],
)
def test_choices_that_stand_for_other_numbers_are_refused(tmp_path, recorded, student, said):
    _record(tmp_path, _steps([4, 4]), 3, choices=recorded)
    assert not _read(tmp_path, 3, choices=recorded)[1]
    with pytest.raises(BadData, match=said):
        _read(tmp_path, 3, choices=student)
    with pytest.raises(BadData, match="holds data of another kind"):
        _record(tmp_path, _steps([4]), 3, choices=student)


def test_data_of_an_earlier_version_does_not_say_what_choices_stand_for(tmp_path):
    _record(tmp_path, _steps([4, 4]), 3)
    about = json.loads((tmp_path / "data.json").read_text())
    del about["choices"]
    (tmp_path / "data.json").write_text(json.dumps(about))
    assert not _read(tmp_path, 3)[1]
    assert (
        "they are taken as those of --discretization=lin"
        in _read(tmp_path, 3, choices="--discretization=lin")[1][0]
    )
    _record(tmp_path, _steps([4]), 3, choices="--discretization=lin")
    assert read_about(tmp_path).choices is None, "the games before are still of any kind"


def test_data_without_a_complete_game_is_refused(tmp_path):
    _record(tmp_path, _steps([20])[:15], 3)
    with pytest.raises(BadData, match="has no game that is complete: record more with"):
        _read(tmp_path, 3)
    with pytest.raises(BadData, match="does not exist: give the folder of a data set"):
        _read(tmp_path / "nothing", 3)


def test_another_level_with_the_same_spaces_is_said_and_used(tmp_path):
    _record(tmp_path, _steps([4, 4, 3, 1]), 3, level="catch-2", action_repeats=4)
    _, said, games = _read(tmp_path, 3)
    assert len(games) == 5
    assert said == [
        f"the data in {tmp_path} is of catch-2, not of catch",
        f"the data in {tmp_path} has 4 frames in a step, and the student acts every 1",
    ]
