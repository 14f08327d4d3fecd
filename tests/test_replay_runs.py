"""Real runs with replay: what a kill leaves, and what a resumed run begins with."""

import re
import signal
import subprocess
import time

import pytest
from processes import EXPERIMENT, free_port, is_running, needs_horovod, run
from rows import read_rows
from supervising import until

FLAGS = (
    *("--level_name=catch", "--num_actors=1", "--num_envs=4", "--batch_size=4"),
    *("--replay=queue:0.5,uniform:0.25:500,prioritised:0.25:200", "--replay_ratio=1"),
)


def _address():
    return f"--learner_hosts=127.0.0.1:{free_port()}"


@pytest.mark.slow
@needs_horovod
def test_every_kind_of_replay_trains_and_is_measured_on_two_learners(tmp_path):
    kinds = "queue:0.2,uniform:0.2:200,prioritised:0.2:200,attentive:0.2:200,elite:0.2:200"
    code, printed = run(
        *(*EXPERIMENT, _address(), f"--logdir={tmp_path}", "--level_name=catch"),
        *("--num_learners=2", "--num_actors=2", "--num_envs=4", "--batch_size=10"),
        *(f"--replay={kinds}", "--trust_region=1"),
        *("--policy_cloning_cost=0.01", "--value_cloning_cost=0.005"),
        *("--total_environment_frames=16000", "--stop_at_return=2"),
    )
    assert code == 0, printed
    assert "replay: training begins with this many unrolls: uniform: 10" in printed
    rows = [row for row in read_rows(tmp_path) if "replay_share" in row]
    assert all(row["replay_share"] == pytest.approx(0.8) for row in rows)
    assert rows[-1]["replay_unrolls/uniform"] > 100
    assert rows[-1]["frames"] == pytest.approx(16000, rel=0.1)
    # The last row may count too few updates for a distance.
    row = [row for row in rows if "replay_distance/elite" in row][-1]
    for name in ("replay_age", "replay_uses"):
        own = [row[f"{name}/learner{rank}"] for rank in range(2)]
        assert min(own) > 0
        assert min(own) <= row[name] <= max(own)
    assert row["replay_priority_spread/prioritised"] > 0
    assert min(row["replay_distance/attentive"], row["replay_distance/elite"]) >= 0
    assert 0 < row["replay_cached_share/elite"] < 1


@pytest.mark.slow
def test_a_learner_that_is_killed_has_its_replay_back(tmp_path):
    flags = (f"--logdir={tmp_path / 'run'}", f"--replay_spill={tmp_path / 'spill'}", *FLAGS)
    command = [*EXPERIMENT, _address(), *flags, "--save_checkpoint_secs=1"]
    with (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 240
    files = tmp_path / "spill" / "learner-0"
    while len([*files.glob("*.unrolls")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    learner = int((tmp_path / "run" / "lock").read_text())  # its supervisor ends it within a second
    until(lambda: not is_running(learner), 20)
    kept = len([*files.glob("*.unrolls")])
    assert kept >= 3, (tmp_path / "printed").read_text()
    code, again = run(*EXPERIMENT, _address(), *flags, "--max_seconds=5")
    assert code == 0, again
    found = re.search(r"replay: (\d+) unrolls of an earlier start were found on disk", again)
    assert found, again
    assert int(found[1]) >= 3 * 16
    assert "damaged" not in again
    code, other = run(
        *(*EXPERIMENT, _address(), f"--logdir={tmp_path / 'other'}", *flags[1:]),
        "--max_seconds=5",
    )
    assert code == 2, other
    assert f"spill/learner-0 belongs to the run in {tmp_path / 'run'}: name another" in other


@pytest.mark.slow
def test_a_replay_that_is_saved_with_checkpoints_is_there_when_the_run_is_resumed(tmp_path):
    flags = (f"--logdir={tmp_path}", "--replay_save", "--stop_at_return=2", *FLAGS)
    for frames in (2000, 3000):
        total = f"--total_environment_frames={frames}"
        code, printed = run(*EXPERIMENT, _address(), *flags, total)
        assert code == 0, printed
    assert "restored its replay (" in printed
    begun = re.search(r"training begins with this many unrolls: uniform: (\d+)", printed)
    assert int(begun[1]) > 50
