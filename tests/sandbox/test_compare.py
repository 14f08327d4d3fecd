"""Ways to train are compared by interquartile means over seeds; recorded comparisons repeat."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from sandbox.results import compare
from sandbox.results.runs import read_run
from tests.sandbox.test_plot import row, write


def _write_run(folder, kind, seed, final, level="catch", **settings):
    """Write a run whose return rises in a line to `final` over 40,000 frames, in 50 s."""
    rows = [row(4000.0 * at, 5.0 * at, final * at / 10) | {"games": 100} for at in range(11)]
    rows.insert(1, row(2000.0, 2.5, 99.0) | {"games": 2})  # the short games end first
    logdir = folder / level / f"{kind}-{seed}"
    logdir.parent.mkdir(exist_ok=True)
    write(logdir, rows, seed=seed, level_name=level, **settings)
    words = f"python experiment.py --level_name={level} --seed={seed} --logdir={logdir}"
    (logdir / "starts.jsonl").write_text(json.dumps({"command": words, "revision": "abc"}) + "\n")
    return logdir


def test_kinds_are_told_with_their_interquartile_mean(tmp_path, results):
    runs = [
        _write_run(tmp_path, kind, seed, 0.1 * number + 0.01 * seed, level)
        for level in ("catch", "memory")
        for number, kind in enumerate(("no-replay", "uniform"))
        for seed in (1, 2, 3, 4)
    ]
    code, printed = results("compare", *runs, "--group=(.*)-", f"--out={tmp_path}/pictures/replay")
    assert code == 0, printed
    assert "| catch | uniform | 4 | 0.125 (" in printed, "of 0.11, 0.12, 0.13, 0.14"
    assert "| memory | no-replay | 4 | 0.025 (" in printed
    found = json.loads((tmp_path / "pictures" / "replay.json").read_text())
    assert found["commits"] == ["abc"]
    kind = found["levels"]["catch"]["no-replay"]
    assert kind["seeds"] == [1, 2, 3, 4]
    assert kind["command"] == "python experiment.py --level_name=catch --seed={seed}"
    np.testing.assert_allclose(kind["frames"]["returns"][0][-1], 0.01)
    assert (kind["frames"]["at"][-1], kind["seconds"]["at"][-1]) == (40_000, 50)
    drawn = "".join(ElementTree.parse(tmp_path / "pictures" / "replay.svg").getroot().itertext())
    assert "catch, 4 seeds" in drawn
    assert "uniform" in drawn


def test_without_a_pattern_kinds_are_settings_and_one_seed_has_no_interval(tmp_path):
    runs = [
        read_run(_write_run(tmp_path, f"run{rate}", 1, 1.0, learning_rate=rate))
        for rate in (0.01, 0.02)
    ]
    rows = compare.table(compare.summarise(runs)).splitlines()[2:]
    assert rows == [
        "| catch | learning_rate=0.01 | 1 | 1.000 | 0.508 | 50 |",
        "| catch | learning_rate=0.02 | 1 | 1.000 | 0.508 | 50 |",
    ]


def test_a_run_without_a_return_is_refused(tmp_path, results):
    write(tmp_path / "a", [{"frames": 1.0, "seconds": 1.0}], level_name="catch")
    code, printed = results("compare", tmp_path / "a")
    assert code == 2
    assert "catch: a run has no mean return yet" in printed


def test_published_examples_of_the_interquartile_mean():
    for mean, *scores in (
        (1.5, 2, 2, 1, 1, 2, 1, 1, 2),  # the tests of rliable
        # Wikipedia's article on the interquartile mean.
        (6.5, 5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6),
        (9, 1, 3, 5, 7, 9, 11, 13, 15, 17),
    ):
        assert compare.interquartile_mean(np.array(scores, float)) == pytest.approx(mean)


def test_the_band_of_repeated_experiments_holds_the_true_mean_about_as_often_as_it_says():
    random, hits, trials = np.random.default_rng(0), 0, 300
    for _ in range(trials):
        scores = random.normal(size=20)
        band = compare.bootstrap_band(scores, samples=300)
        hits += band.low <= 0.0 <= band.high
        assert band.low < compare.interquartile_mean(scores) < band.high
    assert 0.86 < hits / trials < 0.99
