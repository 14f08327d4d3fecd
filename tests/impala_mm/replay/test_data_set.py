"""Data sets on disk: what a student cuts out of the games, and what is refused in a sentence."""

import json

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
            reward, first = np.array([number * (t > 0)], np.float32), np.array([t == 0])
            ends = [np.array([is_end and game % 2 == odd]) for odd in (1, 0)]
            steps.append(Step(reward, *ends, observation, first, np.array([False])))
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


def _record(folder, steps, length, **changes):
    """Write the unrolls of one environment's steps; return the writer, which is closed."""
    data = DataSetWriter(folder, _about(length, **changes))
    _, contents = _unrolls(steps, length, 1)
    stream = data.next_stream
    for number, content in enumerate(contents):
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


@settings(max_examples=20, deadline=None)
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
        cut = tf.nest.map_structure(lambda x, i=i: x[i : i + 1], found)
        for name in ("action", "reward", "terminated", "truncated", "first", "observation"):
            ours, theirs = (tf.nest.flatten(getattr(e, name)) for e in (cut, expected[i]))
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
    assert "of 1 games: their 11 steps are left out" in said[0], "the reset is no step"
    assert found.first[-1, -1], "the last unroll is filled by resets"


def test_a_lost_file_leaves_out_what_is_no_complete_game_any_more(tmp_path, monkeypatch):
    _record(tmp_path, _steps([6] * 5 + [30])[:33], 4)
    path = tmp_path / "0000000003.unrolls"
    path.write_bytes(path.read_bytes()[:-3])
    _, said, games = _read(tmp_path, 4)
    assert f"{path} is damaged and left out" in said
    assert games.steps < 33 - 4
    listed = recorded_games.files(tmp_path)
    path.unlink()
    assert _read(tmp_path, 4)[2].steps == games.steps
    monkeypatch.setattr(recorded_games, "files", lambda folder: listed)
    _, said, again = _read(tmp_path, 4)
    assert f"{path} is gone and left out" in said, "it was deleted while the folder was read"
    assert again.steps == games.steps


def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(tmp_path):
    _record(tmp_path, _steps([6] * 5), 4)
    path = tmp_path / "0000000001.unrolls"
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(BadData, match=r"0000000001.unrolls cannot be read: Too many levels"):
        _read(tmp_path, 4)


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
    with pytest.raises(BadData, match="level catch, now Pong"):
        DataSetWriter(tmp_path, _about(3, level="Pong"))
    assert len(_read(tmp_path, 3)[2]) == 2 * 3


def test_folders_of_others_are_refused_and_left_as_they_are(tmp_path):
    data = DataSetWriter(tmp_path / "data", _about(3))
    with pytest.raises(BadData, match="is used by another process"):
        DataSetWriter(tmp_path / "data", _about(3))
    data.close()
    DataSetWriter(tmp_path / "data", _about(3)).close()
    with pytest.raises(BadData, match=r"has no data\.json"):  # nobody has recorded anything
        read_about(tmp_path / "data")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadData, match="is not empty, and no data set lies there"):
        DataSetWriter(tmp_path, _about(3))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "letter.txt"}
    with pytest.raises(BadData, match=r"letter.txt cannot be written"):
        DataSetWriter(tmp_path / "letter.txt", _about(3))


def _spoil(folder, **changes):
    about = json.loads((folder / "data.json").read_text()) | changes
    (folder / "data.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: _spoil(f, format=7), "has format 7, and this version reads format 1"),
        (lambda f: _spoil(f, colour=1), "does not have the entries of a data set"),
        (lambda f: (f / "data.json").write_text("{"), "is damaged: it is no JSON"),
        (lambda f: (f / "data.json").write_text("[]"), "has format None"),
        (lambda f: (f / "data.json").unlink(), "has no data.json"),
        (lambda f: _spoil(f, actions=4), "with actions 4, and catch has 3"),
        (lambda f: _spoil(f, observations="float32 [4]"), r"observations float32 \[4\], and catch"),
        (lambda f: _spoil(f, unroll_length="3"), "is damaged: unroll_length = '3'"),
        (lambda f: _spoil(f, unroll_length=0), "is damaged: unroll_length = 0"),
        (lambda f: _spoil(f, unroll_length=2**31), "is damaged: unroll_length = 2147483648"),
        (lambda f: _spoil(f, parts={"a": "b"}), "is damaged: parts = {'a': 'b'}"),
        (lambda f: _spoil(f, mean_return=[1]), r"is damaged: mean_return = \[1\]"),
        (
            lambda f: (f / "data.json").rename(f / "$store$_observation_ckpt.1.gz"),
            "has a replay of Dopamine's",
        ),
        (lambda f: _spoil(f, layout="x"), "holds unrolls of another layout"),
        (lambda f: [p.unlink() for p in f.glob("*.unrolls")], "has no data"),
    ],
)
def test_what_is_no_data_for_a_student_is_refused_in_a_sentence(tmp_path, spoil, said):
    _record(tmp_path, _steps([4, 4]), 3)
    spoil(tmp_path)
    with pytest.raises(BadData, match=said):
        _read(tmp_path, 3)


def test_data_serves_students_that_stack_more_frames_and_says_that_lives_end_otherwise(tmp_path):
    _record(tmp_path, _steps([4, 4]), 3, life_loss_ends=False)
    _spoil(tmp_path, frame_stack=4)
    for student, count in ((True, 1), (False, 0)):
        _, said, games = _read(tmp_path, 3, life_loss_ends=student)
        assert len(games) == 3
        assert len(said) == count
    assert (
        "--life_loss_ends=false, and the student has --life_loss_ends=true"
        in _read(tmp_path, 3, life_loss_ends=True)[1][0]
    )


def test_unrolls_that_are_none_are_refused_though_their_checksums_agree(tmp_path):
    _record(tmp_path, _steps([4, 4]), 3)
    path = tmp_path / "0000000000.unrolls"
    path.write_bytes(unroll_files.encode([StoredUnroll(0, 0, b"nothing")]))
    with pytest.raises(BadData, match=r"0000000000.unrolls is damaged"):
        _read(tmp_path, 3)


def test_an_unroll_that_would_take_the_memory_is_refused(tmp_path, monkeypatch):
    _record(tmp_path, _steps([4, 4]), 3)
    monkeypatch.setattr(recorded_games, "_MOST_BYTES", 50)
    with pytest.raises(BadData, match=r"holds unrolls of \d+ bytes, and at most 50"):
        _read(tmp_path, 3)


_LOG = "--discretization=log --action_ratio=30.0"


@pytest.mark.parametrize(
    ("recorded", "student", "said"),
    [
        (_LOG, "--discretization=lin", f"{_LOG}, and the student has --discretization=lin"),
        ("", _LOG, f"with --discretization=none, and the student has {_LOG}"),
        (_LOG, "", f"another number, so give {_LOG} here"),
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
    (said,) = _read(tmp_path, 3, choices="--discretization=lin")[1]
    assert "they are taken as those of --discretization=lin" in said
    _record(tmp_path, _steps([4]), 3, choices="--discretization=lin")
    assert read_about(tmp_path).choices is None, "the games before are still of any kind"


def test_data_without_a_complete_game_is_refused(tmp_path):
    _record(tmp_path, _steps([20])[:15], 3)
    with pytest.raises(BadData, match="has no game that is complete"):
        _read(tmp_path, 3)
    with pytest.raises(BadData, match="does not exist"):
        _read(tmp_path / "nothing", 3)


def test_another_level_with_the_same_spaces_is_said_and_used(tmp_path):
    _record(tmp_path, _steps([4, 4, 3, 1]), 3, level="catch-2", action_repeats=4)
    _, said, games = _read(tmp_path, 3)
    assert len(games) == 5
    assert "is of catch-2, not of catch" in said[0]
    assert "has 4 frames in a step" in said[1]
