"""Tests of `results verify`: a curve like the recorded ones is within the band, others are not."""

import json

import pytest
from processes import ROOT

from sandbox.results import runs, verify

REFERENCE = ROOT / "sandbox" / "reference"


def _run_folder(folder, name, *, late=1.0, most=float("inf"), since=0):
    """Write the run recorded with seed 1, `late` times as slow.

    It lacks returns from `most` on, and those before `since` frames.
    """
    curve = json.loads((REFERENCE / f"{name}-1.json").read_text())["curve"]
    rows = [
        {"frames": frames * late, "seconds": seconds * late, "episode_return": value}
        for frames, seconds, value in curve
        if value < most and frames >= since
    ]
    lines = [json.dumps(row) for row in rows] + [
        '{"frames": 1',
        "",
    ]  # the last row was cut off by a kill
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return f"--of={folder}"


def test_recorded_curves_are_within_the_band(tmp_path, results):
    for name in sorted({path.stem[:-2] for path in REFERENCE.glob("*-1.json")}):
        code, printed = results("verify", name, _run_folder(tmp_path, name))
        assert code == 0, printed
        assert "OUTSIDE" not in printed
        assert "within the band" in printed
        shared = "the recorded runs shared their machine" in printed
        assert shared or name != "harvest"


def test_what_a_resume_has_replaced_is_no_part_of_a_curve(tmp_path):
    values = [(1, 1, 5), (2, 2, 6), (3, 3, 99), (2.5, 4, 7), (4, 5, 8)]
    rows = [dict(zip(("frames", "seconds", "episode_return"), v, strict=True)) for v in values]
    rows.insert(4, {"frames": 3, "seconds": 4.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["episode_return"] for row in runs.read_returns(tmp_path)] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("name", "changes", "words", "outside"),
    [
        ("cartpole", {"late": 5}, (), 4),
        ("cartpole", {"late": 0.5, "most": 470}, (), 1),  # it never arrives, though it is early
        ("cartpole", {"late": 0.5, "most": 470}, ("--until=200",), 0),
        # The mean of its first games was 0.23 once, and below 0 before and afterwards.
        ("tictactoe", {"since": 2_300}, (), 0),
        ("tictactoe", {"since": 50_000}, (), 1),
    ],
)
def test_a_curve_that_comes_too_late_or_never_is_outside(
    tmp_path, results, name, changes, words, outside
):
    code, printed = results("verify", name, _run_folder(tmp_path, name, **changes), *words)
    assert (code, printed.count("OUTSIDE")) == (min(outside, 1), outside), printed
    assert ("never" in printed) == ("most" in changes and not words)


def test_a_return_that_a_recorded_seed_never_reached_is_said_not_to_be_compared(
    tmp_path, monkeypatch, capsys
):
    curves = [[[0, 0, 0.0], [100, 1, most]] for most in (0.5, 0.7, 0.9)]  # the goal is 0.9
    recorded = [{"machine": "another", "curve": curve} for curve in curves]
    monkeypatch.setattr(verify, "read_references", lambda name: recorded)
    rows = [{"frames": f, "seconds": s, "episode_return": r} for f, s, r in curves[0]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit) as ended:
        verify.verify("catch", 1, tmp_path, None, [])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "0.68 is not compared: 1 of 3 seeds never reached it" in printed
    assert "0.90 is not compared: 2 of 3 seeds never reached it" in printed
    assert printed.count("not compared: ") == 3, "these, and the seconds"
    with pytest.raises(SystemExit) as ended:
        verify.verify("catch", 1, None, 2.0, [])
    assert ended.value.code == 2, "no recorded curve reaches this return"
    # It was once 0.9000000000000001, which no recorded run had.
    assert verify.target_returns([[(0, 0, -0.78)]], 0.9)[-1] == 0.9


def test_seconds_of_a_fetched_run_are_compared_by_its_own_machine(tmp_path, results):
    of = _run_folder(tmp_path, "pong")
    (tmp_path / "starts.jsonl").write_text('{"machine": "96 cores of another machine"}\n')
    printed = results("verify", "pong", of)[1]
    assert "96 cores of another machine" in printed
