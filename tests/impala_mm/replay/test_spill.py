"""A replay on disk: what survives, what is refused, and what a full disk does."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import ROOT

from impala_mm.config.errors import UserMistake
from impala_mm.replay import unroll_files
from impala_mm.replay.spill import Owner, Spill
from impala_mm.replay.store import StoredUnroll

OWNER = Owner("/runs/a", "layout")


def _open(folder, owner=OWNER, per_file=4):
    said = []
    return Spill(folder, owner, per_file, said.append), said


def _unroll(key):
    return StoredUnroll(key, 100 + key, f"unroll {key} ".encode() * (key % 7 + 1))


def _fill(made, keys):
    return [each for key in keys for each in made.add(_unroll(key))]


def test_complete_files_are_read_back_and_their_bytes_lie_in_the_file(tmp_path):
    made, _ = _open(tmp_path)
    written = _fill(made, range(10))
    assert [u.key for u in written] == list(range(8)), "two are not enough for a file"
    made.close()
    again, said = _open(tmp_path)
    for found in (written, again.read()):
        expected = [_unroll(key)[:3] for key in range(8)]
        assert [(u.key, u.version, bytes(u.content)) for u in found] == expected
        assert isinstance(found[0].content, memoryview)
    assert not said


def test_files_that_no_replay_uses_are_deleted_and_their_bytes_stay_readable(tmp_path):
    made, _ = _open(tmp_path)
    written = _fill(made, range(12))
    made.delete_unused(lambda keys: (keys >= 6).any())
    assert sorted(int(p.stem) for p in tmp_path.glob("*.unrolls")) == [4, 8]
    assert bytes(written[0].content) == _unroll(0).content


def test_a_damaged_file_is_left_out_by_name_and_the_others_are_read(tmp_path):
    made, _ = _open(tmp_path)
    _fill(made, range(8))
    made.close()
    path = tmp_path / "0000000000.unrolls"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    again, said = _open(tmp_path)
    assert [u.key for u in again.read()] == list(range(4, 8))
    assert f"{path} is damaged (" in said[0]
    assert not path.exists()


def test_a_file_that_the_system_cannot_read_is_kept_for_a_later_start(tmp_path, monkeypatch):
    made, _ = _open(tmp_path)
    _fill(made, range(8))
    made.close()
    again, said = _open(tmp_path)

    def refuse(number, length, access):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as failing:
        failing.setattr(unroll_files.mmap, "mmap", refuse)
        assert again.read() == []
    assert [line.count("Too many open files") for line in said] == [1, 1]
    assert again.next_key() == 8, "no new file takes the names of those that were not read"
    assert _fill(again, range(8, 12))[0].key == 8
    again.close()
    kept = sorted(tmp_path.glob("*.unrolls.unread"))
    assert [int(path.name.partition(".")[0]) for path in kept] == [0, 4]
    for path in kept:
        path.rename(path.with_suffix(""))
    opened, _ = _open(tmp_path)
    assert [u.key for u in opened.read()] == list(range(12))
    assert opened.next_key() == 12


def test_folders_of_others_are_refused_and_left_as_they_are(tmp_path):
    _open(tmp_path / "a")[0].close()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("dear")
    for folder, owner, said in (
        ("a", Owner("/runs/b", "layout"), "belongs to the run in /runs/a"),
        ("a", Owner("/runs/a", "other"), "holds unrolls of another network"),
        ("b", OWNER, "is not empty"),
        ("b/letter.txt", OWNER, "cannot be written: File exists"),
    ):
        with pytest.raises(UserMistake, match=said):
            _open(tmp_path / folder, owner)
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["letter.txt"]
    held, _ = _open(tmp_path / "a")
    with pytest.raises(UserMistake, match="is used by another process"):
        _open(tmp_path / "a")
    held.close()


def test_a_new_run_does_not_go_on_with_the_unrolls_of_a_deleted_one_in_the_same_folder(tmp_path):
    Spill(tmp_path, OWNER, 4, print, is_new=True).close()
    made = Spill(tmp_path, OWNER, 4, print, is_new=True)  # it ended before it was trained
    _fill(made, range(4))
    made.close()
    with pytest.raises(UserMistake, match="holds unrolls of an earlier run in /runs/a"):
        Spill(tmp_path, OWNER, 4, print, is_new=True)
    assert len(_open(tmp_path)[0].read()) == 4


def test_a_full_disk_ends_the_spill_and_not_the_run(tmp_path, monkeypatch):
    made, said = _open(tmp_path)
    _fill(made, range(4))

    def refuse(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", refuse)
    assert _fill(made, range(4, 20)) == []
    (line,) = said
    assert "cannot be written (No space left on device)" in line
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    made.close()
    assert [u.key for u in _open(tmp_path)[0].read()] == list(range(4))


WRITER = """
import sys
from pathlib import Path
from tests.impala_mm.replay import test_spill
made, _ = test_spill._open(Path(sys.argv[1]))
kept = {u.key for u in made.read()}
key = max(kept, default=-1) + 1
while True:
    for each in made.add(test_spill._unroll(key)):
        print(each.key, flush=True)
    key += 1
"""


@pytest.mark.slow
def test_fifty_kills_lose_nothing_that_was_written(tmp_path):
    written = set()
    random = np.random.default_rng(0)
    paths = [str(ROOT), str(ROOT / "tests" / "helpers")]
    for _ in range(50):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        process.stdout.readline()
        time.sleep(random.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].split("\n")
        written |= {int(line) for line in lines[:-1]}
        made, said = _open(tmp_path)
        found = made.read()
        made.close()
        assert not said
        assert {u.key for u in found} >= written
        assert [u.key for u in found] == list(range(len(found)))
        assert all(bytes(u.content) == _unroll(u.key).content for u in found[-8:])
    assert len(written) > 100
