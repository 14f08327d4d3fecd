"""Runs survive crashes, odd folder names and changed numbers of learners."""

import re
import socket
import sys
import time

import pytest
from deadlines import Deadline
from processes import ROOT, Process, catch_command, needs_horovod, run
from rows import read_rows


@pytest.mark.slow
@needs_horovod
def test_a_run_goes_on_with_other_numbers_of_learners(tmp_path):
    """One learner, two, one again; frames and schedules continue."""
    folder = tmp_path / "a run with spaces"
    frames = 0
    for learners, batch in ((1, 8), (2, 4), (1, 8)):
        frames += 8000
        code, printed = run(
            *catch_command(folder, f"--num_learners={learners}", f"--batch_size={batch}"),
            *("--num_actors=2", f"--total_environment_frames={frames}"),
        )
        assert code == 0, printed
        rows = read_rows(folder)
        assert rows[-1]["frames"] >= frames
        begin = 0.0008 * (1 - (frames - 8000) / frames)  # it decreases over the complete run
        rates = [row["learning_rate"] for row in rows if "learning_rate" in row]  # of updates
        assert rates[-1] < begin
        if frames > 8000:
            assert re.search(r"resumed at (8|9|16|17),\d{3} frames", printed)
            assert re.search(
                rf"the run continues on {learners} learners? instead of {3 - learners}:", printed
            )
            assert "8 unrolls instead of 8" in printed
            assert "(was 8)" in printed or "(was 4)" in printed
    began = [start["frames"] for start in read_rows(folder, "starts.jsonl")]
    assert began[0] == 0
    assert 8000 <= began[1] < 16_000 <= began[2] < rows[-1]["frames"]


@pytest.mark.slow
def test_what_cannot_go_on_says_why_and_a_damaged_checkpoint_is_passed_over(tmp_path):
    folder, limit = tmp_path / "run", "--total_environment_frames=20000"
    for frames in ("--total_environment_frames=10000", limit):  # each ends with a checkpoint
        assert run(*catch_command(folder, frames))[0] == 0
    code, printed = run(*catch_command(folder, "--agent_name=MLPLSTMAgent"))
    assert (code, "Traceback" in printed) == (2, False), printed
    assert "--agent_name is MLPLSTMAgent here and MLPAgent in" in printed
    newest = sorted((folder / "checkpoints").glob("[0-9]*"))[-1]
    data = next(newest.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-1])
    code, printed = run(*catch_command(folder, limit))
    assert code == 0, printed
    assert f"{data} is cut short since it was written; trying the previous checkpoint" in printed
    assert re.search(r"resumed at 1?\d,\d{3} frames", printed)
    assert "finished: reached 20,000 frames" in printed


@pytest.mark.slow
def test_a_run_that_is_killed_lags_by_two_save_intervals_at_most(tmp_path):
    command = catch_command(tmp_path, "--total_environment_frames=1e9", "--save_checkpoint_secs=2")
    first = Process(*command)
    first.until(r"checkpoint at update \d+")
    time.sleep(5)  # somewhere between two saves
    first.kill()
    (port,) = [int(f.rpartition(":")[2]) for f in command if str(f).startswith("--learner_hosts")]
    deadline = Deadline(20)  # the learner, a process of its own, ends with its parent
    while _listens(port):
        assert not deadline.is_over()
        time.sleep(0.1)
    rows = read_rows(tmp_path)
    second = Process(*command)
    resumed = int(second.until(r"resumed at [0-9,]+ frames, update (\d+)")[1])
    second.until(r"[1-9][0-9,]* frames \|")
    second.interrupt(20)
    rate = (rows[-1]["updates"] - rows[0]["updates"]) / (rows[-1]["seconds"] - rows[0]["seconds"])
    assert rows[-1]["updates"] - resumed <= 2 * 2 * rate
    saved = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    assert int(saved.name) == read_rows(tmp_path)[-1]["updates"]


def _listens(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_twenty_kills_while_200_mb_are_saved_lose_no_checkpoint(tmp_path):
    code, printed = run(
        *(sys.executable, ROOT / "tests" / "helpers" / "killed_saving.py", tmp_path, 20, 200),
        limit=600,
        PYTHONPATH=str(ROOT),
    )
    assert code == 0, printed[-3000:]
    within = re.search(r"20 kills, (\d+) of them during a save", printed)
    assert int(within[1]) > 8, "most of the time it saves"
