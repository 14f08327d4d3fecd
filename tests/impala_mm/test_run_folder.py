"""Runs keep apart: each has a folder, and a folder one writer."""

import json

import pytest

from impala_mm.config import Config
from impala_mm.run_folder import RunFolder


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    folders = [RunFolder(Config(level_name="gym:Some/Game-v0, other")) for _ in range(3)]
    names = [folder.path.name for folder in folders]
    assert names == [
        "gym-Some-Game-v0-other-impala-now",
        "gym-Some-Game-v0-other-impala-now+2",
        "gym-Some-Game-v0-other-impala-now+3",
    ]


def test_a_folder_that_somebody_writes_to_is_refused_and_found_again_afterwards(tmp_path, capsys):
    import os  # noqa: PLC0415

    config = Config(logdir=str(tmp_path / "run"))
    first = RunFolder(config)
    with pytest.raises(SystemExit):
        RunFolder(config)
    assert f"process {os.getpid()} is writing to it" in capsys.readouterr().err
    os.close(first._lock)  # as its end does, kill -9 included
    second = RunFolder(config)
    assert not (second.path / "settings.json").exists()
    second.write_settings()
    assert json.loads((second.path / "settings.json").read_text())["batch_size"] == 8
