"""Comparisons of kinds of replay and of teachers: the runs that are made, and what they show."""

import json
import shlex
import sys

import numpy as np
import pytest
from processes import ROOT, run

from impala_mm.config import command_line, replay_mix
from impala_mm.config.settings import Config
from sandbox import scripted_teacher
from tests.helpers.scripted import catcher
from tests.sandbox.test_plot import row, write

sys.path.append(str(ROOT / "sandbox"))  # the scripts import each other by their short names

import comparison
import replay_kinds
import teacher_changes
import teacher_methods
from replay_kinds import FRAMES

PROGRAM = ROOT / "sandbox" / "replay_kinds.py"


def _write_run(folder, level, kind, seed, final, over=True):
    """Write a run whose return rises in a line to `final` over its frames, in 50 s."""
    frames = FRAMES[level]
    rows = [row(frames * at / 10, 5.0 * at, final * at / 10) | {"games": 100} for at in range(11)]
    rows.insert(1, row(frames / 20, 2.5, 99.0) | {"games": 2})  # the short games end first
    write(folder / f"{level}-{kind}-{seed}", rows)
    if over:
        arguments = shlex.join(replay_kinds.command(level, kind, seed, folder))
        record = {"command": arguments, "commit": "abc"}
        (folder / f"{level}-{kind}-{seed}" / comparison.RECORD).write_text(json.dumps(record))


def _write_all(folder, seeds=(1, 2, 3, 4)):
    for level in FRAMES:
        for number, kind in enumerate(replay_kinds.KINDS):
            for seed in seeds:
                _write_run(folder, level, kind, seed, final=0.1 * number + 0.01 * seed)


def test_runs_are_told_by_kind_with_their_interquartile_mean(tmp_path):
    _write_all(tmp_path)
    _write_run(tmp_path, "catch", "none", 5, 99.0)  # no other kind has this seed
    code, printed = run(
        *(sys.executable, PROGRAM, "summarise", "replay-kinds"),
        *(f"--out={tmp_path}", f"--to={tmp_path}"),
        limit=60,
    )
    assert code == 0, printed
    assert "| catch | uniform | 0.125 (" in printed, "of 0.11, 0.12, 0.13, 0.14"
    assert "| memory | elite | 0.425 (" in printed
    found = json.loads((tmp_path / "replay-kinds.json").read_text())
    assert found["commits"] == ["abc"]
    assert found["levels"]["catch"]["seeds"] == [1, 2, 3, 4]
    assert len(found["commands"]) == 10
    at = found["levels"]["catch"]["kinds"]["none"]["frames"]
    np.testing.assert_allclose(at["returns"][0][-1], 0.01)
    assert at["at"][-1] == FRAMES["catch"]
    assert "3 seeds" not in (tmp_path / "replay-kinds.svg").read_text()
    assert "catch, 4 seeds" in (tmp_path / "replay-kinds.svg").read_text()


def test_runs_that_are_not_over_are_not_summarised(tmp_path):
    _write_all(tmp_path, seeds=(1,))
    (tmp_path / "catch-uniform-1" / comparison.RECORD).unlink()
    with pytest.raises(SystemExit, match="has no seed of catch that is over for each kind"):
        comparison.summarise(replay_kinds.OF, tmp_path, FRAMES)


def test_a_kind_whose_name_begins_with_anothers_has_seeds_of_its_own(tmp_path):
    for name in ("catch-network-1", "catch-network-scratch-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / comparison.RECORD).touch()
    assert comparison._seeds_over(tmp_path, "catch-network") == {1}
    assert comparison._seeds_over(tmp_path, "catch-network-scratch") == {2}


def test_one_seed_has_no_interval(tmp_path):
    _write_all(tmp_path, seeds=(1,))
    found = comparison.summarise(replay_kinds.OF, tmp_path, FRAMES)
    comparison.draw(found, tmp_path / "replay-kinds.svg")
    assert "catch, 1 seed<" in (tmp_path / "replay-kinds.svg").read_text()
    (row,) = [r for r in comparison.table(found, "replay").splitlines() if "catch | none" in r]
    assert "to" not in row


def test_a_level_of_another_comparison_is_refused(tmp_path, monkeypatch, capsys):
    given = ["x", "run", "pong-students", "--levels", "catch", "--out", str(tmp_path)]
    monkeypatch.setattr(comparison.sys, "argv", given)
    with pytest.raises(SystemExit):
        comparison.main("", teacher_methods.COMPARISONS)
    assert "pong-students has PongNoFrameskip-v4, and not catch" in capsys.readouterr().err


def test_one_task_alone_may_be_compared(tmp_path):
    for kind in replay_kinds.KINDS:
        for seed in (1, 2):
            _write_run(tmp_path, "memory", kind, seed, 0.9)
    assert list(comparison.summarise(replay_kinds.OF, tmp_path, ["memory"])["levels"]) == ["memory"]


def test_a_task_that_is_summarised_alone_leaves_the_others_of_the_file(tmp_path):
    _write_all(tmp_path, seeds=(1,))
    catch, both = (comparison.summarise(replay_kinds.OF, tmp_path, x) for x in (["catch"], FRAMES))
    memory = comparison.summarise(replay_kinds.OF, tmp_path, ["memory"])
    assert comparison.with_other_levels(catch, memory)["levels"] == both["levels"]
    assert sorted(comparison.with_other_levels(catch, memory)["commands"]) == sorted(
        both["commands"]
    )
    assert comparison.with_other_levels(memory, both)["levels"] == both["levels"]
    assert comparison.with_other_levels(both, catch) == both


def test_only_runs_that_are_not_over_are_made_and_a_failed_one_ends_it(tmp_path, monkeypatch):
    _write_all(tmp_path, seeds=(1,))
    _write_run(tmp_path, "memory", "elite", 2, 1.0, over=False)
    made = []

    class Ended:
        returncode = 0

    def start(arguments, **how):
        made.append(arguments[-1].rpartition("/")[2])
        (tmp_path / made[-1]).mkdir(exist_ok=True)
        (tmp_path / made[-1] / "starts.jsonl").write_text('{"revision": "abc"}\n')
        Ended.returncode = int("attentive" in made[-1])
        return Ended

    monkeypatch.setattr(comparison.subprocess, "run", start)
    with pytest.raises(SystemExit, match=r"ended with code 1; .*catch-attentive-2.log says why"):
        comparison.make_runs(replay_kinds.OF, tmp_path, 2, FRAMES)
    assert made == [f"catch-{kind}-2" for kind in ("none", "uniform", "prioritised", "attentive")]
    record = json.loads((tmp_path / "catch-uniform-2" / comparison.RECORD).read_text())
    assert record["commit"] == "abc"
    assert not (tmp_path / "catch-attentive-2" / comparison.RECORD).exists()


def test_every_kind_of_replay_is_compared():
    for kind, text in replay_kinds.KINDS.items():
        assert not text or [part.kind for part in replay_mix.parse(text).replays] == [kind]
    assert set(replay_kinds.KINDS) == {"none", *replay_mix.KINDS.names} - {replay_mix.QUEUE}


@pytest.mark.parametrize(
    "of", [*teacher_methods.COMPARISONS, teacher_changes.OF], ids=lambda of: of.name
)
def test_every_method_of_a_teacher_is_a_command_that_is_valid(of, tmp_path):
    out = ROOT / "runs" / of.name
    for level in of.frames:
        for kind in of.kinds:
            arguments = of.command(level, kind, 3, out)
            (config,), _ = command_line.parse(arguments[1:], "", Config)
            assert config.seed == 3
            assert config.level_name == level
            assert bool(config.teacher) == (not kind.endswith("scratch") and kind != "cloning")
            if config.teacher_data:
                assert (
                    config.teacher_data
                    == f"runs/{of.name}/{level}-qdagger-3/teacher_data/learner-0"
                )
                assert of.kinds.index("qdagger") < of.kinds.index(kind), "it is played first"


def test_the_rule_for_catch_is_the_tests_own():
    random = np.random.default_rng(0)
    shown = random.random([50, 10, 5])
    np.testing.assert_array_equal(scripted_teacher.catch_the_ball(shown), catcher(shown))


def test_returns_at_the_end_are_drawn_where_runs_have_no_curve(tmp_path):
    _write_all(tmp_path)
    found = comparison.summarise(replay_kinds.OF, tmp_path, ["catch"])
    comparison.draw_ends(found, tmp_path / "ends.svg")
    drawn = (tmp_path / "ends.svg").read_text()
    assert "catch, 4 seeds" in drawn
    assert all(kind in drawn for kind in replay_kinds.KINDS)
