"""--save: the learners of a run are asked for a checkpoint, or the user is told why not."""

import sys

from large_run import LargeRun
from processes import ROOT, run

from impala_mm.records.run_folder import take_save_request


def _save(tmp_path):
    program = ROOT / "run_experiment_mm_raw.py"
    home = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return run(sys.executable, program, "--save", "--tmux_sess=night", **home)


def test_learners_that_are_running_are_asked_once_and_others_are_not(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    large = LargeRun("night", tmp_path / "pong", actors=2, hosts=1)
    assert not take_save_request(large.logdir)
    code, printed = _save(tmp_path)
    assert code == 0, printed
    assert f"night: the learners save a checkpoint; results: {large.logdir}" in printed
    assert take_save_request(large.logdir)
    assert not take_save_request(large.logdir)
    large.write_state("learners", state="failed", code=1)
    code, printed = _save(tmp_path)
    assert code == 2
    assert "night has no learners that are running: --status shows why" in printed
    assert not take_save_request(large.logdir)
