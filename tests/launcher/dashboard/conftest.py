"""These tests see only their own runs, whatever runs beside them on this machine."""

import pytest


@pytest.fixture(autouse=True)
def no_other_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # of runs of frontends
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # of those in the foreground
