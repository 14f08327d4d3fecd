"""Heartbeats of real processes stop if a process hangs, and continue while it only waits."""

import json
import os
import signal
import time

import pytest
from processes import EXPERIMENT, Process, free_port
from supervising import until


def _age(path):
    """Return the seconds since the last heartbeat."""
    return time.time() - os.stat(path).st_mtime


@pytest.mark.slow
def test_an_actor_whose_environment_hangs_stops_beating_and_those_who_wait_go_on(tmp_path):
    """Its learner waits for unrolls, and another actor waits for a learner that does not exist."""
    here, nowhere = (f"127.0.0.1:{free_port()}" for _ in range(2))
    beats = {name: tmp_path / name for name in ("learner", "hanging", "waiting")}

    def start(name, address, *flags):
        return Process(
            *(
                *EXPERIMENT,
                "--level_name=tests.helpers.games:Hanging-v0",
                f"--learner_hosts={address}",
            ),
            *(f"--token_file={tmp_path / 'token'}", "--num_envs=4", *flags),
            IMPALA_MM_HEARTBEAT=str(beats[name]),
        )

    learner = start("learner", here, "--job_name=learner", f"--logdir={tmp_path / 'run'}")
    start("hanging", here, "--job_name=actor")
    start("waiting", nowhere, "--job_name=actor", "--task=1")
    until(lambda: all(path.exists() for path in beats.values()), 60)
    until(lambda: _age(beats["hanging"]) > 3, 60)
    assert _age(beats["learner"]) < 3
    assert _age(beats["waiting"]) < 3
    frames = {name: json.loads(path.read_text())["frames"] for name, path in beats.items()}
    assert frames["hanging"] > 0
    assert frames["waiting"] == 0
    learner.process.send_signal(signal.SIGSTOP)
    until(lambda: _age(beats["learner"]) > 3, 60)
    learner.process.send_signal(signal.SIGCONT)
    until(lambda: _age(beats["learner"]) < 2, 60)
    assert {path.name for path in tmp_path.iterdir()} == {*beats, "token", "run"}
