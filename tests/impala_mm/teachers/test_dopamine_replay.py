"""Replays that the real Dopamine wrote (make_dopamine_replay.py), as unrolls; and damaged ones."""

import gzip
import io
import itertools
import re
import shutil
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from dopamine_stacks import games, unpack

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.interface import entry_spec
from impala_mm.data.trajectory import UnrollCodec, UnrollSpec
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.replay import data_set
from impala_mm.teachers import record_dopamine
from impala_mm.teachers.dopamine_replay import FILE, StackedReplay
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.teacher import NoTeacher

_WRITTEN = Path(__file__).parent / "dopamine" / "replay"
_STACKED = Path(__file__).parent / "dopamine" / "stacked"  # make_dopamine_stacks.py


def _spec(shape=(3, 2, 1), actions=3):
    return EnvironmentSpec(
        "small", tf.TensorSpec(shape, tf.uint8), ActionSpec(Discrete(actions)), 1, None, 4
    )


def _read(folder, number, length=7, spec=None):
    """Return (entries of all unrolls in a row, the games that were counted)."""
    spec, counted = spec or _spec(), []
    unroll = UnrollSpec(length, 1, entry_spec(spec, ()), ())
    codec = UnrollCodec(unroll)
    if folder == _STACKED or (folder / str(number)).is_dir():
        replay = StackedReplay(folder / str(number) / FILE, spec)
    else:
        replay = record_dopamine.read(folder, number, spec)
    rows = [
        codec.arrays(np.frombuffer(content, np.uint8)[np.newaxis].copy()).entries
        for content in record_dopamine.unrolls(replay, spec, unroll, lambda *g: counted.append(g))
    ]
    for one, other in itertools.pairwise(rows):
        for last, first in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            np.testing.assert_array_equal(last[0, -1], first[0, 0])
    parts = [rows[0], *[tf.nest.map_structure(lambda x: x[:, 1:], each) for each in rows[1:]]]
    joined = tf.nest.map_structure(lambda *x: np.concatenate(x, 1)[0], *parts)
    return joined, counted


def _expected(frames, actions, rewards, terminal):
    """Return (first, terminated, truncated, action, reward, frame) of each entry of a game."""
    rows = [(True, False, False, 0, 0.0, frames[0])]
    for t in range(1, len(frames)):
        cut = t == len(frames) - 1 and not terminal
        rows.append((False, False, cut, actions[t - 1], rewards[t - 1], frames[t]))
    if terminal:
        rows.append((False, True, False, actions[-1], rewards[-1], frames[-1]))
    return rows


def _check(entries, counted, expected):
    rows = [row for game in expected for row in _expected(*game)]
    names = ("first", "terminated", "truncated", "action", "reward")
    for column, name in enumerate(names):
        found = getattr(entries, name)
        np.testing.assert_array_equal(found[: len(rows)], [row[column] for row in rows], name)
    np.testing.assert_array_equal(
        entries.observation[: len(rows), ..., 0], [row[5] for row in rows]
    )
    assert entries.first[len(rows) :].all()
    ends = [len(frames) - (not terminal) for frames, _, _, terminal in expected]
    assert [steps for steps, _ in counted] == ends
    returns = [sum(game[2][:end]) for game, end in zip(expected, ends, strict=True)]
    np.testing.assert_allclose([total for _, total in counted], returns)


@pytest.mark.parametrize("length", [1, 7, 500])
def test_all_games_of_a_replay_become_unrolls(length):
    entries, counted = _read(_WRITTEN, 1, length)
    _check(entries, counted, list(games()))


def test_games_that_are_overwritten_or_not_at_their_end():
    assert record_dopamine.find(_WRITTEN) == (_WRITTEN, 2, False), "the newest"
    entries, counted = _read(_WRITTEN, 2)
    *_, before, (frames, actions, rewards, _) = games()
    rest = len(frames) - 5
    _check(entries, counted, [*_kept(before), (frames[:rest], actions, rewards, False)])


def _kept(before):
    """Return the games of replay 2 whose beginning is there, but for the last."""
    number = 60 - (4 + 3 * 5 - 5 + 3)  # transitions before those of the last game
    kept = []
    for game in reversed(list(games())[:-1]):
        number -= len(game[0]) + 3
        if number < 0:
            break
        kept.insert(0, game)
    assert kept[-1][0].shape == before[0].shape
    return kept


def test_earlier_versions_do_not_say_which_games_were_cut(tmp_path):
    folder = shutil.copytree(_WRITTEN, tmp_path / "replay")
    (folder / "episode_end_indices_ckpt.1.gz").unlink()
    entries, _ = _read(folder, 1)
    assert entries.terminated.sum() == 4
    assert entries.truncated.sum() == 1  # the last one


# -- of version 4.1


def _check_stacked(entries, counted, expected):
    """Check games of version 4.1, which lack the last action and its reward."""
    names = ("first", "terminated", "truncated", "action", "reward")
    rows = []
    for frames, actions, rewards, terminal in expected:
        rows.append((True, False, False, 0, 0.0, frames[0]))
        for t in range(1, len(frames)):
            last = t == len(frames) - 1
            ends = (last and terminal, last and not terminal)
            rows.append((False, *ends, actions[t - 1], rewards[t - 1], frames[t]))
    for column, name in enumerate(names):
        found = getattr(entries, name)[: len(rows)]
        np.testing.assert_array_equal(found, [row[column] for row in rows], name)
    frames = entries.observation[: len(rows), ..., 0]
    np.testing.assert_array_equal(frames, [row[5] for row in rows])
    assert entries.first[len(rows) :].all()
    assert counted == [(len(game[0]) - 1, game[2][:-1].sum()) for game in expected]


@pytest.mark.parametrize("number", [1, 4])
def test_games_of_whole_stacks(number):
    """A game's last transition is stored with fewer and fewer frames, and once counts."""
    _check_stacked(*_read(_STACKED, number), list(games()))


def test_games_of_whole_stacks_that_are_overwritten_or_not_at_their_end():
    entries, counted = _read(_STACKED, 2)
    *complete, (frames, actions, rewards, _) = games()
    rest = len(frames) - 5
    last = frames[:rest], actions[:rest], rewards[:rest], False
    # The ends of 3 games are stored 4 times: 60 transitions go back into game 1.
    _check_stacked(entries, counted, [*complete[2:], last])


def test_rewards_of_several_steps_are_refused():
    with pytest.raises(NoTeacher, match=r"only replays of agents with update_horizon = 1 become"):
        _read(_STACKED, 3)


_CUT = {
    "is damaged, cut short or no replay of Dopamine (": lambda content: content[:-15000],
    "cut short or no replay of Dopamine (Unexpected type": lambda content: b"\x90" + content,
    "has no memory": lambda content: b"\x80" + content,
    "no replay of Dopamine (an array of unknown fields": lambda content: content.replace(
        b"('data', '|u1'", b"('dato', '|u1'"
    ),
    "no replay of Dopamine (snappy: ": lambda content: content.replace(b"\x18\\", b"\x19\\"),
    "no replay of Dopamine (a stack of 268,435,455 bytes": lambda content: content.replace(
        b"\x18\\\0\0", b"\xff\xff\xff\x7f"
    ),
    "(16777216 exceeds": lambda content: content.replace(
        b"\xa5shape\x90", b"\xa5shape\xdd\1\0\0\0"
    ),
    "has action 7, and small takes": lambda content: content.replace(
        b"\xa5shape\x90\xa4data\xc4\x08\2", b"\xa5shape\x90\xa4data\xc4\x08\7"
    ),
}


@pytest.mark.parametrize("said", _CUT)
def test_a_damaged_file_of_stacks_is_refused_in_a_sentence(said, tmp_path):
    path = shutil.copytree(_STACKED / "1", tmp_path / "1") / FILE
    path.write_bytes(_CUT[said](path.read_bytes()))
    with pytest.raises(NoTeacher, match=re.escape(said)) as refused:
        _read(tmp_path, 1)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("hidden", ["msgpack", "cramjam"])
def test_only_files_of_stacks_need_the_libraries(hidden, monkeypatch):
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(NoTeacher, match=rf"{hidden}.*pip install 'impala_mm\[dopamine\]'"):
        _read(_STACKED, 1)
    assert _read(_WRITTEN, 1)[1]


def test_stacks_of_another_level_are_refused():
    with pytest.raises(NoTeacher, match=r"has frames uint8 \[3, 2\], and observations of small"):
        _read(_STACKED, 1, spec=_spec((4, 2, 1)))


# -- which replay


def test_the_replay_of_a_run_or_checkpoint_is_found_as_its_runner_lays_it(tmp_path):
    """As the public files lie: DQN_400/Breakout/1/checkpoints and .../1/replay_logs."""
    run = tmp_path / "Breakout" / "1"
    checkpoints, logs = run / "checkpoints", run / "replay_logs"
    for folder, numbers in ((checkpoints, ()), (logs, (49, 50, 100))):
        folder.mkdir(parents=True)
        for number in numbers:
            (folder / f"$store$_observation_ckpt.{number}.gz").touch()
    for number in (199, 399):
        (checkpoints / f"ckpt.{number}").touch()
        (checkpoints / f"sentinel_checkpoint_complete.{number}").touch()
    find = record_dopamine.find
    for path in (run.parent, run, checkpoints, logs, checkpoints / "ckpt.399"):
        assert find(path) == (logs, 100, False), path
    assert find(checkpoints / "ckpt.199") == (logs, 50, False)
    assert find(checkpoints / "tf_ckpt-199.index") == (logs, 50, False)
    assert find(logs / "$store$_observation_ckpt.49.gz") == (logs, 49, False)
    assert find(checkpoints / "ckpt.3") is None
    (checkpoints / "$store$_observation_ckpt.199.gz").touch()
    assert find(checkpoints / "ckpt.199") == find(run) == (checkpoints, 199, False)
    (checkpoints / "399" / FILE).parent.mkdir(parents=True)
    (checkpoints / "399" / FILE).touch()
    for path in (run, checkpoints, checkpoints / "399", checkpoints / "ckpt.399"):
        assert find(path) == (checkpoints, 399, True), path
    shutil.copytree(run, run.parent / "2")
    with pytest.raises(NoTeacher, match=r"has the runs 1, 2: give one of them, such as .*/1$"):
        find(run.parent)


def test_the_public_checkpoints_teach_and_their_replay_becomes_games(tmp_path, monkeypatch):
    """Files of the same shape, as `gsutil cp -R gs://rl_checkpoints/DQN_400/Breakout` lays them."""
    game = tmp_path / "DQN_400" / "Breakout"
    checkpoints = unpack(game / "1", "dqn") / "checkpoints"
    for name in ("ckpt.", "sentinel_checkpoint_complete."):
        (checkpoints / f"{name}3").rename(checkpoints / f"{name}399")
    (game / "1" / "replay_logs").mkdir()
    for path in _WRITTEN.glob("*_ckpt.2.gz"):
        shutil.copy(path, game / "1" / "replay_logs" / path.name.replace(".2.", ".100."))
    level = "BreakoutNoFrameskip-v4"
    (teacher,) = load_teachers(TeacherSettings(teacher=str(game)), level_spec(level))
    assert teacher.num_actions == 4
    monkeypatch.setattr(record_dopamine, "level_spec", lambda name, **options: _spec())
    command = [str(checkpoints / "ckpt.399"), str(tmp_path / "data"), f"--level_name={level}"]
    record_dopamine.main(command)
    assert data_set.read_about(tmp_path / "data").episodes == len(_read(_WRITTEN, 2)[1])


# -- what cannot be used


def _header(shape):
    """Return NumPy's header of an array of bytes with this shape."""
    file = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _save(path, array, cut=None, **options):
    with gzip.open(path, "wb") as file:
        np.save(file, array, **options)
    path.write_bytes(path.read_bytes()[:cut])


_FRAMES, _ACTIONS = "$store$_observation_ckpt.1.gz", "$store$_action_ckpt.1.gz"
_COUNT = "add_count_ckpt.1.gz"
_BAD = {
    "does not exist: a replay is complete with all": lambda f: (f / _ACTIONS).unlink(),
    "is damaged or cut short (": lambda f: _save(f / _FRAMES, np.ones([100, 3, 2], np.uint8), -20),
    "has shape [99] in place of [100]": lambda f: _save(f / _ACTIONS, np.zeros(99, np.int32)),
    "(an array of type object)": lambda f: _save(
        f / _ACTIONS, np.array([None] * 100), allow_pickle=True
    ),
    "(an array of shape (-1, 3, 2))": lambda f: (f / _FRAMES).write_bytes(
        gzip.compress(_header((-1, 3, 2)) + bytes(600))
    ),
    "cut short (": lambda f: (f / _ACTIONS).write_bytes(gzip.compress(b"nothing")),
    "damaged or": lambda f: (f / _ACTIONS).write_bytes(b"nothing"),
    "has action 5 in replay 1": lambda f: _save(f / _ACTIONS, np.full(100, 5, np.int32)),
    "has action -2 in replay 1": lambda f: _save(f / _ACTIONS, np.full(100, -2, np.int32)),
    f"{_ACTIONS} has numbers of type float64": lambda f: _save(f / _ACTIONS, np.full(100, np.nan)),
    f"{_COUNT} has numbers of type float64": lambda f: _save(f / _COUNT, np.array(np.inf)),
    "has frames uint8 []": lambda f: _save(f / _FRAMES, np.array(7, np.uint8)),
    "has frames uint8 [4, 2]": lambda f: _save(f / _FRAMES, np.ones([100, 4, 2], np.uint8)),
    "has a replay 1 without transitions": lambda f: _save(f / _COUNT, np.array(0)),
    "has the name 'os.system'": lambda f: (f / "episode_end_indices_ckpt.1.gz").write_bytes(
        gzip.compress(b"cos\nsystem\n(S'touch ran'\ntR.")
    ),
    "(an array of shape (1, 8388608))": lambda f: _save(
        f / _FRAMES, np.zeros([1, 2**23], np.uint8)
    ),
}


@pytest.mark.parametrize("said", _BAD)
def test_a_replay_that_cannot_be_used_is_refused_in_a_sentence(said, tmp_path):
    folder = shutil.copytree(_WRITTEN, tmp_path / "replay")
    _BAD[said](folder)
    with pytest.raises(NoTeacher, match=re.escape(said)) as refused:
        _read(folder, 1)
    assert str(refused.value).startswith(str(folder))
    assert "\n" not in str(refused.value)


def test_a_large_replay_takes_little_memory(tmp_path):
    folder = shutil.copytree(_WRITTEN, tmp_path / "replay")
    (folder / "episode_end_indices_ckpt.1.gz").unlink()
    count = 2000
    _save(folder / _FRAMES, np.ones([count, 84, 84], np.uint8))
    for name in ("action", "reward", "terminal"):
        _save(folder / f"$store$_{name}_ckpt.1.gz", np.zeros(count, np.uint8))
    _save(folder / "add_count_ckpt.1.gz", np.array(count + 1))
    _save(folder / "$store$_terminal_ckpt.1.gz", np.arange(count) % 500 == 0)
    spec = _spec((84, 84, 1))
    unroll = UnrollSpec(20, 1, entry_spec(spec, ()), ())
    tracemalloc.start()
    replay = record_dopamine.read(folder, 1, spec)
    made = sum(1 for _ in record_dopamine.unrolls(replay, spec, unroll))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made > 60
    assert peak < 3e6  # all frames take 14 million bytes


@pytest.mark.parametrize(("folder", "newest"), [(_WRITTEN, 2), (_STACKED, 4)])
def test_a_replay_becomes_a_data_set_to_which_another_is_added(
    tmp_path, monkeypatch, capsys, folder, newest
):
    monkeypatch.setattr(record_dopamine, "level_spec", lambda name, **options: _spec())
    command = [str(folder), str(tmp_path / "data"), "--level_name=small"]
    record_dopamine.main(command)
    counted = _read(folder, newest)[1]
    about = data_set.read_about(tmp_path / "data")
    assert about.episodes == len(counted)
    assert about.steps == sum(steps for steps, _ in counted)
    assert about.mean_return == pytest.approx(np.mean([total for _, total in counted]))
    said = capsys.readouterr().out
    assert f"{about.episodes} complete games, {about.steps} steps, mean return " in said
    record_dopamine.main(command)
    stored = [u for path in data_set.files(tmp_path / "data") for u in data_set.intact(path)]
    places = [data_set.place(unroll.key) for unroll in stored]
    half = len(places) // 2
    assert places == [(stream, number) for stream in (0, 1) for number in range(half)]
    assert [u.read() for u in stored[:half]] == [u.read() for u in stored[half:]]


def test_a_folder_without_a_replay_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(record_dopamine, "level_spec", lambda name, **options: _spec())
    with pytest.raises(SystemExit, match=r"has no replay of .* give the folder"):
        record_dopamine.main([str(tmp_path), str(tmp_path / "data"), "--level_name=small"])
    assert not (tmp_path / "data").exists()
