"""Tests of `results plot`: seeds form a line, replaced rows are left out, errors are sentences."""

import dataclasses
import json
import xml.etree.ElementTree

import numpy as np
import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from sandbox.results import runs

REFERENCE = ROOT / "sandbox" / "reference"


def recorded(folder, name, seed, **settings):
    """Write a run's folder from the recorded curve of this name and seed, with these settings."""
    folder.mkdir(parents=True)
    kept = json.loads((REFERENCE / f"{name}-{seed}.json").read_text())
    rows = [
        {"frames": f, "seconds": s, "episode_return": value, "frames_per_second": f / s}
        for f, s, value in kept["curve"]
    ]
    write(folder, rows, seed=seed, **settings)
    return folder


def write(folder, rows, **settings):
    """Write metrics.jsonl, and settings.json if settings are given."""
    folder.mkdir(exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if settings:
        defaults = dataclasses.asdict(Config.of_algorithm("impala")())
        whole = defaults | {"logdir": str(folder)} | settings
        (folder / "settings.json").write_text(json.dumps(whole))


def row(frames, seconds, value=0.0):
    return {"frames": frames, "seconds": seconds, "episode_return": value}


def _words(svg):
    """Return all texts of an SVG."""
    root = xml.etree.ElementTree.parse(svg).getroot()
    return [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_seeds_are_one_line_and_each_level_has_a_panel(tmp_path, results):
    folders = [
        recorded(tmp_path / f"run {seed}", "cartpole", seed, level_name="CartPole-v1")
        for seed in (1, 2)
    ]
    fast = {"level_name": "CartPole-v1", "learning_rate": 0.01}
    folders.append(recorded(tmp_path / "fast", "cartpole", 1, **fast))
    folders.append(recorded(tmp_path / "b", "catch", 1, level_name="catch"))
    code, printed = results("plot", *folders, f"--out={tmp_path}/new/all", "--only=return,speed")
    assert code == 0, printed
    assert "(2 seeds): run 1, run 2" in printed
    assert (tmp_path / "new" / "all.png").read_bytes().startswith(b"\x89PNG")
    words = _words(tmp_path / "new" / "all.svg")
    assert {"environment frames", "Throughput", "100k", "frames/s"} <= set(words)
    assert {"Mean return, CartPole-v1", "Mean return, catch"} <= set(words)
    assert any("learning_rate=0.01" in word for word in words)
    assert "Policy lag" not in words, "no run has it"


def test_what_was_made_again_after_a_kill_replaces_what_it_undid(tmp_path, results):
    before = [row(0, 0, 1), row(100, 1, 2), row(200, 2, 3), row(300, 3, 4)]
    # The first row after the resume follows one that the kill cut off, on the same line.
    first = '{"frames": 400, "seco' + json.dumps(row(150, 1.5, 5))
    before[1]["loss_per_step/total"] = 1.0
    write(tmp_path, [*before, first, row(250, 2.5, 6), row(350, 3.5, 7), '{"frames": 450, "s'])
    found = runs.read_run(tmp_path)
    assert found.columns["frames"].tolist() == [0, 100, 150, 250, 350]
    assert found.last("loss_per_step/total") == 1.0, "a column of few rows is kept"
    assert found.columns["episode_return"].tolist() == [1, 2, 5, 6, 7]
    assert (found.superseded_rows, found.resumed_at) == (2, [150.0])
    code, printed = results("plot", tmp_path, "--only=return")
    assert code == 0, printed
    assert "2 rows were replaced" in printed
    assert (tmp_path / "curves.png").exists(), "one run is drawn into its own folder"


def test_losses_of_older_rows_are_drawn_per_step(tmp_path):
    """16 unrolls of 5 steps; the last row is a newer version's."""
    rows = [row(0, 0) | {"loss/total": 160.0, "loss/shift": 8.0}]
    rows += [row(9, 9) | {"loss/total": 80.0, "loss_per_step/total": 7.0}]
    write(tmp_path, rows, batch_size=16, unroll_length=5)
    found = runs.read_run(tmp_path).columns
    assert found["loss_per_step/total"].tolist() == [2.0, 7.0]
    assert found["off_policyness"][0] == pytest.approx(0.1)
    write(tmp_path, rows, batch_size=16, unroll_length=5, loss_reduction="mean")
    found = runs.read_run(tmp_path).columns
    assert found["loss_per_step/total"].tolist() == [160.0, 7.0]


def test_a_missing_or_infinite_value_is_no_point(tmp_path):
    missing = {"frames": 20, "seconds": 2}
    write(tmp_path, [row(10, 1, float("nan")), missing, row(30, 3, 5.0), row(40, 4, float("inf"))])
    drawn = runs.make_curve(runs.read_run(tmp_path), "frames", "episode_return")
    assert (drawn.x.tolist(), drawn.mean.tolist()) == ([30.0], [5.0])
    assert runs.make_curve(runs.read_run(tmp_path), "frames", "policy_lag") is None


def test_a_long_run_is_thinned_between_its_lowest_and_highest_and_ends_as_it_did(tmp_path):
    values = np.random.default_rng(0).normal(size=30_000).cumsum()
    frames = np.arange(30_000.0)
    columns = {"frames": frames, "seconds": frames, "episode_return": values}
    drawn = runs.make_curve(
        runs.RunSeries(tmp_path, {}, columns, 0, []), "frames", "episode_return"
    )
    assert drawn.x.size == runs.MAX_BINS + 1
    assert (drawn.low.min(), drawn.high.max()) == (values.min(), values.max())
    assert (drawn.x[-1], drawn.mean[-1]) == (frames[-1], values[-1])
    assert np.all((drawn.low <= drawn.mean) & (drawn.mean <= drawn.high))
    assert np.all(np.diff(drawn.x) > 0)


def test_seeds_are_put_together_only_where_all_have_values():
    def straight(begin, end, slope):
        x = np.linspace(begin, end, 7)
        return runs.Curve(x, slope * x, slope * x, slope * x)

    whole = runs.combine_curves([straight(0, 100, 1), straight(10, 80, 2), straight(5, 200, 3)])
    assert (whole.x[0], whole.x[-1]) == (10, 80)
    np.testing.assert_allclose(whole.mean, 2 * whole.x)
    np.testing.assert_allclose(whole.low, whole.x)
    np.testing.assert_allclose(whole.high, 3 * whole.x)
    assert runs.combine_curves([straight(0, 10, 1), straight(20, 30, 1)]) is None


def _runs(tmp_path, *many):
    for name, settings in many:
        write(tmp_path / name, [row(1, 1)], **settings)
    return [runs.read_run(tmp_path / name) for name, _ in many]


def test_what_does_not_change_the_experiment_makes_no_other_line(tmp_path):
    same = {"seed": 2, "learner_hosts": "localhost:9", "keep_checkpoints": 9, "track": True}
    same |= {"track_tags": "seed-2", "replay_spill": "/fast/b"}
    other = {"batch_size": 32, "unroll_length": 40, "learning_rate": 0.01, "level_name": "catch"}
    found = _runs(tmp_path, ("a", {"seed": 1}), ("b", same), ("c", other))
    assert [group.legend for group in runs.group_runs(found)] == [
        "CartPole-v1 (2 seeds)",
        "catch, batch_size=32, unroll_length=40, learning_rate=0.01",
    ]


def test_a_flag_that_a_run_did_not_have_yet_counts_as_its_algorithms_default(tmp_path):
    ppo = dataclasses.asdict(Config.of_algorithm("ppo")()) | {"algorithm": "ppo"}
    found = _runs(
        tmp_path, ("new", ppo), ("old", ppo | {"seed": 2}), ("other", ppo | {"clip": 0.3})
    )
    for name in ("loss_reduction", "epochs"):
        del found[1].settings[name]
    labels = [group.legend for group in runs.group_runs(found)]
    assert labels == ["clip=0.2 (2 seeds)", "clip=0.3"]


def test_runs_without_settings_go_by_name_or_by_the_pattern_that_is_given(tmp_path):
    found = _runs(tmp_path, ("pong-1-ab12", {}), ("pong-2-ab12", {}), ("catch_seed3", {}))
    assert [g.legend for g in runs.group_runs(found)] == ["pong-ab12 (2 runs)", "catch"]
    assert [g.legend for g in runs.group_runs(found, "^.")] == ["p (2 runs)", "c"]


def test_what_cannot_be_drawn_is_said_and_left_out_beside_others(tmp_path, results):
    empty, none = tmp_path / "an empty run", tmp_path / "not there"
    write(empty, [])
    good = recorded(tmp_path / "good", "catch", 1)
    for words, said in {
        (none,): f"{none} is not a folder",
        (tmp_path,): f"{tmp_path} contains no readable metrics.jsonl",
        (empty,): f"{empty / 'metrics.jsonl'} has no row yet",
        (empty, none): "none of these folders",
        (good, "--only=returns"): "unknown panel 'returns'",
        (good, "--only=rate"): "learning_rate",
        (good, "--group=("): "--group=( is not a regular expression",
        (good, f"--out={good / 'metrics.jsonl' / 'x'}"): "cannot be read or written",
    }.items():
        code, printed = results("plot", *words)
        assert code == 2, printed
        assert said in printed
    code, printed = results("plot", good, none, f"--out={tmp_path / 'x'}", "--only=return")
    assert code == 0, printed
    assert f"left out: {none} is not a folder" in printed
