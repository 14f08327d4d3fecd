"""Tests of `results record` and `pages`: results stand beside those that others publish."""

import json
import os

from processes import ROOT

from sandbox.results import documented, pages
from sandbox.results.documented import DOCUMENTED_RUNS, read_references


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
    assert len(pages.published_table({"ppo-hopper": [shorter]})) == 2, "no run is complete"
    planned = _run(5, 9.0, frames=300_000)
    recorded = {"ppo-halfcheetah": [*runs, shorter, planned]}
    row = pages.published_table(recorded)[-1]
    assert row == "| HalfCheetah, PPO | 1,443 ± 46 | 2,000 ± 1,000 | 73 s (1 of 3 seeds) |"
    row = pages.seeds_table(recorded)[-1]
    assert row == "| HalfCheetah, PPO | 1,000, 2,000, 3,000 | 1,200 ± 141 | 73k (1 of 3 seeds) |"
    recorded = {"ppo-halfcheetah": [_run(1, 9.0, level=50.0), _run(2, 9.0, level=20.0)]}
    assert pages.published_table(recorded)[-1].endswith("| 29 to 73 s |"), "of both seeds"
    recorded = {"ppo-breakout": [_run(1, 390.5, level=8.0, frames=8_000_000)]}
    assert pages.published_table(recorded)[-1] == "| Breakout, PPO | 415 ± 28 | 390 | 52 s |"
    assert pages.seeds_table(recorded)[-1] == "| Breakout, PPO | 390 |  | 13k |"


def test_a_run_is_saved_with_its_last_test_by_the_most_likely_actions(tmp_path, monkeypatch):
    monkeypatch.setattr(documented, "REFERENCE_FOLDER", tmp_path)
    monkeypatch.setattr(documented, "ROOT", tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    start = {"settings": {"seed": 1}, "revision": "abc", "time": "2026-11-23T21:16:47+0000"}
    start["frames"] = 0.0
    (folder / "starts.jsonl").write_text(json.dumps(start))
    row = {"frames": 10.0, "steps": 10.0, "seconds": 2.0, "episode_return": -90.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row))
    documented.save_reference("ppo-acrobot", folder, True)
    saved = json.loads((tmp_path / "ppo-acrobot-1.json").read_text())
    assert "deterministic_return" not in saved
    assert saved["command"].endswith(" --level_name=Acrobot-v1 --seed=1")
    assert (saved["commit"], saved["date"], saved["alone"]) == ("abc", "2026-11-23", True)

    tests = [
        {"deterministic": True, "mean": -99.0, "returns": [-99.0]},
        {"deterministic": True, "mean": -80.0, "returns": [-79.0, -81.0]},
        {"deterministic": False, "mean": -120.0, "returns": [-120.0]},
    ]
    (folder / "evaluations.jsonl").write_text("\n".join(map(json.dumps, tests)))
    documented.save_reference("ppo-acrobot", folder, True)
    saved = json.loads((tmp_path / "ppo-acrobot-1.json").read_text())
    assert (saved["deterministic_return"], saved["deterministic_games"]) == (-80.0, 2)


def test_a_curve_of_several_starts_counts_no_seconds_between_them_or_while_suspended(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(documented, "REFERENCE_FOLDER", tmp_path)
    monkeypatch.setattr(documented, "ROOT", tmp_path)
    starts = [
        {"settings": {"seed": 1}, "revision": commit, "time": time, "frames": frames}
        for commit, time, frames in (
            *(("abc", "2026-11-23T21", 0.0), ("def", "2026-11-30T01", 40.0)),
            ("unused", "2026-11-30T02", 60.0),
        )
    ]
    # A suspension of 90 s, then a checkpoint at 40 frames, where the second start resumes.
    seconds = {0: 0, 10: 2, 20: 4, 30: 94, 40: 96, 50: 98, 45: 97.5, 60: 100}
    rows = [
        {"frames": f, "steps": f, "seconds": s, "episode_return": f} for f, s in seconds.items()
    ]
    del rows[0]["episode_return"]
    (tmp_path / "starts.jsonl").write_text("\n".join(map(json.dumps, starts)))
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    documented.save_reference("ppo-acrobot", tmp_path, True)
    saved = json.loads((tmp_path / "ppo-acrobot-1.json").read_text())
    assert [point[:2] for point in saved["curve"][:-1]] == [
        *([10, 2], [20, 4], [30, 4], [40, 6], [45, 7.5], [60, 10])
    ]
    assert saved["starts"] == [
        {"commit": "abc", "date": "2026-11-23", "frames": 0.0, "seconds": 0.0},
        {"commit": "def", "date": "2026-11-30", "frames": 40.0, "seconds": 6.0},
    ]
    assert (saved["commit"], saved["seconds"], saved["steps_per_second"]) == ("def", 10, 6)


def test_resume_continues_the_newest_run_of_any_commit(tmp_path, monkeypatch, results):
    called = []
    monkeypatch.setattr(documented, "ROOT", tmp_path)
    monkeypatch.setattr(documented, "run_documented", lambda *args: called.append(args[2]) or 1)
    code, printed = results("record", "catch", "--resume")
    assert code == 2
    assert "has no run of catch with seed 1" in printed
    for at, folder in enumerate(("catch-1-abc", "catch-1-def", "catch-2-abc", "catch-11-abc")):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        starts = tmp_path / "runs" / folder / "starts.jsonl"
        starts.touch()
        os.utime(starts, (at, at))
    results("record", "catch", "--resume")
    assert called == [tmp_path / "runs" / "catch-1-def"]


def test_the_pages_show_what_was_recorded():
    published = [name for name, documented in DOCUMENTED_RUNS.items() if documented.published]
    recorded = {name: read_references(name) for name in published}
    table = pages.published_table(recorded)
    assert len(table) <= 2 + 10
    readme, curves = ((ROOT / page).read_text() for page in ("README.md", "sandbox/curves.md"))
    assert set(table[2:]) <= set(readme.splitlines())
    assert set(pages.seeds_table(recorded)[2:]) <= set(curves.splitlines())
    assert set(pages.atari_5_table(recorded)[2:]) <= set(curves.splitlines())


def test_the_median_of_57_games_is_estimated_once_all_five_are_recorded():
    scores = (24284.0, -6.8, 5750.0, 14474.0, 17246.0)  # those of CleanRL
    recorded = {
        f"ppo-{game.lower()}": [_run(1, score)]
        for game, score in zip(documented.ATARI_5, scores, strict=True)
    }
    table = pages.atari_5_table(recorded)
    assert table[2] == "| BattleZone | 24,284 ± 1,842 | 24,284 | 30,307 ± 3,720 |  |"
    assert table[-1] == "| median of 57, estimated | 0.76 | 0.76 | 1.52 |  |"
    del recorded["ppo-qbert"]
    assert pages.atari_5_table(recorded)[-1] == "| median of 57, estimated | 0.76 |  | 1.52 |  |"
