"""Tests of sandbox/published.py and record.py: results stand beside those that others publish."""

import json
import sys
import xml.etree.ElementTree

import pytest
from processes import ROOT

sys.path.append(str(ROOT / "sandbox"))  # the scripts import each other by their short names

import published
import record
from documented_runs import DOCUMENTED_RUNS, read_references


def _run(seed, result, *, level=2.0, frames=1_000_000, **known):
    curve = [[at, at / 1000, level * at / 1000] for at in range(0, 100_001, 1000)]
    command = f"python experiment.py --algorithm=ppo --total_environment_frames={frames}"
    row = {"seed": seed, "command": command, "episode_return": result, "curve": curve}
    return row | {"frames": frames} | known


def test_a_row_has_each_seeds_result_their_mean_and_deviation():
    runs = [
        _run(1, 1000.0, deterministic_return=1100.0),
        _run(2, 2000.0, deterministic_return=1300.0),
        _run(3, 3000.0, level=20.0),
    ]
    shorter = _run(4, 9.0) | {"frames": 300_000}
    assert len(published.table({"ppo-hopper": [shorter]})) == 2, "no run is complete"
    planned = _run(5, 9.0, frames=300_000)
    row = published.table({"ppo-halfcheetah": [*runs, shorter, planned]})[-1]
    assert row == (
        "| PPO, HalfCheetah-v4 | 1M | 1,443 ± 46 | 1,000, 2,000, 3,000 | 2,000 ± 1,000 "
        "| 1,200 ± 141 | never, never, 73k steps (73 s) |"
    )
    runs = [_run(1, 390.5, level=8.0, frames=8_000_000)]
    row = published.table({"ppo-breakout": runs})[-1]
    assert (
        row == "| PPO, BreakoutNoFrameskip-v4 | 2M | 415 ± 28 | 390 | 390 |  | 13k steps (52 s) |"
    )
    row = published.table({"ppo-acrobot": [_run(1, -84.25, frames=500_000)]})[-1]
    assert row == "| PPO, Acrobot-v1 | 500k | -86 ± 1 | -84.2 | -84.2 |  | 0 steps (0 s) |"


def test_the_picture_has_a_panel_for_each_task(tmp_path):
    recorded = {
        "ppo-halfcheetah": [_run(1, 200.0), _run(2, 300.0, level=3.0)],
        "ppo-acrobot": [_run(1, 5.0)],
    }
    published.draw(recorded, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    xml.etree.ElementTree.fromstring(drawn)
    for text in ("PPO, HalfCheetah-v4", "PPO, Acrobot-v1", "published", "2 seeds"):
        assert f">{text}<" in drawn, text


def test_a_run_is_saved_with_its_last_test_by_the_most_likely_actions(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "REFERENCE_FOLDER", tmp_path)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "record.json").write_text('{"name": "ppo-acrobot", "seed": 1}')
    row = {"frames": 10.0, "steps": 10.0, "seconds": 2.0, "episode_return": -90.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row))
    record.save_reference(folder)
    saved = json.loads((tmp_path / "ppo-acrobot-1.json").read_text())
    assert "deterministic_return" not in saved

    tests = [
        {"deterministic": True, "mean": -99.0, "returns": [-99.0]},
        {"deterministic": True, "mean": -80.0, "returns": [-79.0, -81.0]},
        {"deterministic": False, "mean": -120.0, "returns": [-120.0]},
    ]
    (folder / "evaluations.jsonl").write_text("\n".join(map(json.dumps, tests)))
    record.save_reference(folder)
    saved = json.loads((tmp_path / "ppo-acrobot-1.json").read_text())
    assert (saved["deterministic_return"], saved["deterministic_games"]) == (-80.0, 2)


@pytest.mark.parametrize(
    "name", [name for name, documented in DOCUMENTED_RUNS.items() if documented.published]
)
def test_the_readme_shows_what_was_recorded(name):
    rows = published.table({name: read_references(name)})[2:]
    if not rows:
        pytest.skip(f"{name} is not recorded")
    assert rows[0] in (ROOT / "README.md").read_text().splitlines()
