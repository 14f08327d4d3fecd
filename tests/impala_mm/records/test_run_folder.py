"""Each run has its own folder, and each folder only one writer."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.learner import setup
from impala_mm.records.run_folder import RunFolder, recorded_settings
from impala_mm.runtime import provenance, safe_files


def _failing(number):
    """Return a stand-in for a call that the system refuses with this error."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    folders = [RunFolder(Config(level_name="gym:Some/Game-v0, other")) for _ in range(3)]
    names = [folder.path.name for folder in folders]
    first = "gym-Some-Game-v0-other-impala-now"
    assert names == [first, f"{first}+2", f"{first}+3"]


def test_a_folder_that_somebody_writes_to_is_refused_and_found_again_afterwards(tmp_path, capsys):
    config = Config(logdir=str(tmp_path / "run"))
    first = RunFolder(config)
    with pytest.raises(SystemExit):
        RunFolder(config)
    assert f"process {os.getpid()} is writing to it" in capsys.readouterr().err
    os.close(first._lock)  # as the end of the process does, even after kill -9
    second = RunFolder(config)
    assert not (second.path / "settings.json").exists()
    second.write_start(config, ["here:8001"], frames=0.0)
    assert json.loads((second.path / "settings.json").read_text())["batch_size"] == 8


def test_a_file_system_without_locks_is_noted_and_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fcntl.flock", _failing(errno.ENOSYS))
    folder = RunFolder(Config(logdir=str(tmp_path / "run")))
    assert f"note: {folder.path} cannot be locked" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_a_folder_that_is_lost_is_noticed_and_the_run_gets_one_beside_it(tmp_path, what):
    path = tmp_path / "run"
    config = Config(logdir=str(path), seed=5)
    folder = RunFolder(config)
    folder.write_start(config, ["a:1"], frames=0.0)
    assert not folder.why_lost()
    (tmp_path / "run+2").mkdir()  # of an earlier accident
    if what == "removed":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "elsewhere")
    if what == "replaced":
        other = RunFolder(config)
    said = folder.why_lost()
    assert str(path) in said
    assert ("removed" in said) == (what == "removed")
    assert (str(tmp_path / "elsewhere") in said) == (what != "removed")
    beside = folder.begin_beside()
    assert beside == folder.path == tmp_path / "run+3"
    assert not folder.why_lost()
    assert recorded_settings(beside)["seed"] == 5
    with pytest.raises(SystemExit):
        RunFolder(Config(logdir=str(beside)))
    if what == "replaced":
        assert os.listdir(path) == ["lock"]
        assert not other.why_lost()
    else:
        assert not path.exists()


def test_settings_are_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    folder = RunFolder(Config(logdir=str(tmp_path)))
    folder.write_start(Config(seed=5), ["a:1"], frames=0.0)
    monkeypatch.setattr("os.fsync", _failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        folder.write_start(Config(seed=6), ["a:1"], frames=0.0)
    assert recorded_settings(tmp_path)["seed"] == 5


def test_a_start_that_cannot_be_recorded_ends_no_run_that_has_begun(tmp_path, monkeypatch, capsys):
    folder = RunFolder(Config(logdir=str(tmp_path)))

    def record():
        start = SimpleNamespace(folder=folder, config=Config(), addresses=["a:1"])
        return setup._record_start(start, Config(), 0.0)

    with monkeypatch.context() as full:
        full.setattr(safe_files, "write_whole", _failing(errno.ENOSPC))
        with pytest.raises(SystemExit):
            record()
        assert f"--logdir={tmp_path}: No space left" in capsys.readouterr().err
    assert not record()
    monkeypatch.setattr(safe_files, "write_whole", _failing(errno.ENOSPC))
    assert "this start is not recorded" in record()


def test_each_start_leaves_what_it_was_and_changes_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "revision", lambda: "abc-dirty")
    monkeypatch.setattr(provenance, "changes", lambda: "+ a line\n")
    monkeypatch.setattr("sys.argv", ["experiment.py", "--logdir=with a space"])
    config = Config(logdir=str(tmp_path / "with a space"), seed=5)
    folder = RunFolder(config)
    assert recorded_settings(folder.path) == {}
    folder.write_start(config, ["a:1", "b:2"], frames=0.0)
    monkeypatch.setattr(provenance, "changes", lambda: "")
    assert recorded_settings(folder.path)["seed"] == 5
    folder.write_start(config, ["a:1"], frames=640.0)
    first, second = map(json.loads, (folder.path / "starts.jsonl").read_text().splitlines())
    assert first["command"] == "python experiment.py '--logdir=with a space'"
    assert (first["learners"], first["frames"]) == (["a:1", "b:2"], 0)
    assert first["revision"] == "abc-dirty"
    assert first["versions"]["dm-sonnet"] == "2.0.2"
    assert first["settings"]["seed"] == 5
    assert (folder.path / first["diff"]).read_text() == "+ a line\n"
    assert second["frames"] == 640
    assert "diff" not in second
    assert "settings.json" in (folder.path / "README.txt").read_text()


def test_the_code_has_a_revision_and_the_machine_is_named():
    if (ROOT / ".git").exists():
        assert provenance.revision()
    assert "cores" in provenance.machine()
