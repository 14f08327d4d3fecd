"""Kills, again and again, while training goes on; in `make test-slow`."""

import random
import sys
import time

import pytest
from conftest import ROOT, Process, free_port

pytestmark = pytest.mark.slow
EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"))


def test_an_actor_killed_and_restarted_20_times_leaves_training_whole(tmp_path):
    """One actor plays on; the other is killed at random moments, and its number used again."""
    flags = [
        "--level_name=catch",
        f"--learner_hosts=127.0.0.1:{free_port()}",
        f"--logdir={tmp_path}",
        "--total_environment_frames=1e9",
    ]
    learner = Process(*EXPERIMENT, "--job_name=learner", *flags)
    steady = Process(*EXPERIMENT, "--job_name=actor", "--task=1", *flags)
    learner.until("actor 1 on .* joined")
    moments = random.Random(0)
    for _ in range(20):
        actor = Process(*EXPERIMENT, "--job_name=actor", "--task=0", *flags)
        learner.until("actor 0 on .* joined")
        time.sleep(moments.uniform(0, 2))
        actor.kill()
    learner.until(r"[1-9][0-9,]* frames \|")
    assert steady.process.poll() is None
    learner.process.send_signal(2)
    assert learner.process.wait(timeout=10) == 130
    printed = learner.printed()
    assert printed.count("actor 0 on ") == 20
    assert "error" not in printed
