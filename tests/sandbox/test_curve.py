"""Tests of `results curve`, which `make train` runs at its end."""

import json
import re
import sys

from processes import ROOT, run


def drawn(folder):
    return run(
        sys.executable, ROOT / "sandbox" / "results", "curve", folder, TF_CPP_MIN_LOG_LEVEL="3"
    )


def test_a_runs_curve_is_drawn_beside_a_random_policys_and_nothing_else_is_said(tmp_path):
    rows = [{"frames": 100.0 * i, "seconds": float(i), "episode_return": i / 10} for i in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "settings.json").write_text(json.dumps({"level_name": "catch"}))
    code, printed = drawn(tmp_path)
    assert code == 0, printed
    lines = printed.splitlines()
    assert lines[:2] == ["", "catch: mean return of the last 100 games"]
    assert lines[2].startswith("     0.90 ┤")
    assert lines[2].endswith("•")
    assert lines[13].startswith("     0.00 ┤•")
    assert lines[15].split() == ["0", "900"]
    assert "mean return 0.90; random: -0." in printed
    assert lines[-1].endswith("this run in a browser, with more metrics")


def test_a_random_policy_takes_the_actions_of_any_space_that_the_masks_allow(tmp_path):
    row = {"frames": 1.0, "seconds": 1.0, "episode_return": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    level = "sandbox.own_spaces:Panel-v0,Pendulum-v1"
    (tmp_path / "settings.json").write_text(json.dumps({"level_name": level}))
    code, printed = drawn(tmp_path)
    assert code == 0, printed
    assert re.search(r"mean return 1\.00; random: -[5-7]\d\d\.", printed), "4 and some -1200"


def test_a_run_without_a_game_is_told_so(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"frames": 1.0, "seconds": 1.0}) + "\n")
    (tmp_path / "settings.json").write_text(json.dumps({"level_name": "catch"}))
    code, printed = drawn(tmp_path)
    assert code == 1
    assert printed.strip() == f"error: no game of the run in {tmp_path} has ended yet"
