"""What the frontend is asked for: which of experiment.py's modes it plans for a CSV's processes."""

import re
import sys

import pytest
from processes import ROOT, run


def _dry_run(csv, *flags):
    frontend = (sys.executable, ROOT / "run_experiment_mm_raw.py", "--dry_run")
    return run(*frontend, f"--workers_csv_path={csv}", *flags, "--teacher=cartpole")


def test_two_learners_and_their_actors_reincarnate_a_teacher(tmp_path):
    csv = tmp_path / "workers.csv"
    csv.write_text("job,ip\nlearner,localhost\nlearner,localhost\nactor,localhost\n")
    code, printed = _dry_run(csv, "--mode=reincarnate", "--offline_updates=70")
    assert code == 0, printed
    told = printed.split("experiment.py")[1:]
    assert [part.count("--job_name=learner") for part in told] == [1, 1, 0]
    for part in told:
        for flag in (
            "mode=reincarnate",
            "teacher=cartpole",
            "teacher_method=qdagger",
            "offline_updates=70",
        ):
            assert f"--{flag}" in part
    code, printed = _dry_run(csv, "--mode=test")
    assert code == 2
    assert "--mode=test is one process: give it to `python experiment.py`" in printed


@pytest.mark.parametrize("flag", ["stop_secs", "stall_secs", "orphan_secs"])
def test_seconds_that_a_task_cannot_hold_are_refused(tmp_path, flag):
    code, printed = _dry_run(tmp_path / "none.csv", f"--{flag}=inf")
    assert code == 2
    assert re.search(rf"error: --{flag}=inf: it must be at least \d and at most 1e\+09", printed)
