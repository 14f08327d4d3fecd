"""An algorithm with rounds in real runs: kills, late and slow actors, Ctrl-C and resuming."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from deadlines import Deadline
from processes import Process, catch_command
from rows import read_rows

from launcher.supervise.procfs import descendants

pytestmark = pytest.mark.slow
ROUNDS = "--algorithm=tests.helpers.on_policy"
FLAGS = (ROUNDS, "--num_envs=4", "--num_actors=2", "--total_environment_frames=1e9")


def _actors(run):
    """Return the actors of a run, by task."""
    found = {}
    for pid in descendants(run.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        task = next((w.partition("=")[2] for w in words if w.startswith("--task=")), "")
        if task:
            found[int(task)] = pid
    return found


def _until_updates(logdir, more, seconds=90):
    """Wait until the run has made this many more updates; return the rows since now."""
    begin, deadline = len(read_rows(logdir)), Deadline(seconds)
    while True:
        rows = read_rows(logdir)[begin:]
        if rows and rows[-1]["updates"] >= rows[0]["updates"] + more:
            return rows
        assert not deadline.is_over(), rows[-1:]
        time.sleep(0.3)


def _check(rows):
    """Check that every batch was played by the policy that it improved."""
    trained = [row for row in rows if "policy_lag" in row]
    assert trained
    assert {row["policy_lag"] for row in trained} == {0.0}
    assert {row["versions"] for row in trained} == {1.0}


def test_a_killed_actor_stalls_no_round_and_the_run_is_resumed_in_rounds(tmp_path):
    run = Process(*catch_command(tmp_path, *FLAGS, "--batch_size=16"))
    run.until(r"frames/s|\| lag 0\.0 ", 90)
    _check(_until_updates(tmp_path, 20))
    assert "bottleneck: network" not in run.printed()
    os.kill(_actors(run)[1], signal.SIGKILL)
    rows = _until_updates(tmp_path, 20)
    _check(rows)
    joined = len(re.findall("actor 1 on .* joined", run.printed()))
    if joined < 2:
        run.until(r"actor 1 on \S+ joined", 90)
    rows = _until_updates(tmp_path, 20)
    _check(rows)
    assert rows[-1]["unrolls_padded"] <= 8, "in the round of the crash at most"
    assert rows[-1]["unrolls_dropped"] == 0
    assert rows[-1]["fresh_columns"] == 16
    run.interrupt(30)
    updates = read_rows(tmp_path)[-1]["updates"]
    resumed = Process(*catch_command(tmp_path, *FLAGS, "--batch_size=16"))
    resumed.until(r"\| lag 0\.0 ", 90)
    rows = _until_updates(tmp_path, 10)
    _check(rows)
    assert rows[0]["updates"] > updates
    resumed.interrupt(30)


def test_a_round_larger_than_the_environments_is_filled_by_several_unrolls_of_each(tmp_path):
    """It once made learner and actor wait for each other for ever."""
    flags = (ROUNDS, "--num_envs=8", "--num_actors=1", "--batch_size=32", "--max_seconds=10")
    run = Process(*catch_command(tmp_path, *flags, "--stop_at_return=9"))
    run.until(r"finished: reached --max_seconds=10 after the first unroll;", 120)
    rows = read_rows(tmp_path)
    _check(rows)
    assert rows[-1]["updates"] > 5
    assert rows[-1]["frames"] >= 32 * 10 * rows[-1]["updates"]


def test_while_slow_environments_play_a_round_the_progress_line_says_so(tmp_path):
    """A round takes 16 s here, and 4 of its unrolls arrive at a time."""
    flags = (ROUNDS, "--num_envs=4", "--num_actors=1", "--batch_size=16", "--unroll_length=500")
    run = Process(*catch_command(tmp_path, *flags, "--level_name=tests.helpers.games:Sleeping-v0"))
    run.until(r"a round is being played: (4|8|12) of its 16 unrolls have arrived\)", 200)
    assert "no unrolls arrive" not in run.printed()
