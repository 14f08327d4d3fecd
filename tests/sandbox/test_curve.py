"""Tests of `results curve`, which `make train` runs at its end."""

import json
import re
import signal
import sys

from processes import ROOT, run


def test_a_runs_curve_is_drawn_beside_a_random_policys_and_nothing_else_is_said(tmp_path):
    """The random policy takes the actions of any space that the masks allow."""
    rows = [{"frames": 100.0 * i, "seconds": float(i), "episode_return": i / 10} for i in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    level = "sandbox.own_spaces:Panel-v0,Pendulum-v1"
    (tmp_path / "settings.json").write_text(json.dumps({"level_name": level}))
    command = (sys.executable, ROOT / "sandbox" / "results", "curve", tmp_path)
    code, printed = run(*command, TF_CPP_MIN_LOG_LEVEL="3")
    assert code == 0, printed
    lines = printed.splitlines()
    assert lines[:2] == ["", f"{level}: mean return of the last 100 games"]
    assert re.match(r" +0\.90 ┤.*•$", lines[2])
    assert lines[13].startswith("     0.00 ┤•")
    assert lines[15].split() == ["0", "900"]
    assert re.search(r"mean return 0\.90; random: -[5-7]\d\d\.", printed), "4 and some -1200"


def test_a_run_without_a_game_is_told_so(tmp_path, monkeypatch, results):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # it is for a program
    (tmp_path / "metrics.jsonl").write_text('{"frames": 1.0, "seconds": 1.0}\n')
    (tmp_path / "settings.json").write_text('{"level_name": "catch"}')
    code, printed = results("curve", tmp_path)
    assert code
    assert "no game of the run" in f"{code}{printed}"
