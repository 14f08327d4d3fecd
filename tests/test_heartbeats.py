"""Heartbeats of real processes stop if a process hangs, and continue while it only waits."""

import json
import os
import signal
import time

import pytest
from processes import EXPERIMENT, ROOT, Process, free_port, is_running
from rows import read_rows
from supervising import Supervised, until

from launcher.supervise import procfs


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


@pytest.mark.slow
def test_a_vectors_process_that_is_killed_is_replaced_and_one_that_hangs_costs_the_actor(tmp_path):
    """Supervisors kill an actor that makes no progress with all of its processes."""
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    level = "--level_name=tests.helpers.broken_levels:make_processes", address, "--num_envs=3"
    token = f"--token_file={tmp_path / 'token'}"
    learner = Process(
        *(*EXPERIMENT, *level, token, "--job_name=learner", f"--logdir={tmp_path / 'run'}")
    )
    learner.until("listening at")
    command = [*EXPERIMENT, *level, token, "--job_name=actor"]
    actor = Supervised(
        *(tmp_path, command),
        **{"name": "actor-0", "job": "actor", "restarts": 3, "stall_secs": 45.0},
        environment=os.environ | {"IMPALA_MM_HEARTBEAT": str(tmp_path / "actor-0" / "beat")},
        workdir=str(ROOT),
    )

    def processes():
        """Return those of the vector, which the actor started last."""
        return sorted(procfs.descendants(actor.state["process"][0]))[-3:]

    def plays(than=0):
        frames = lambda: next(iter(read_rows(tmp_path / "run")[-1:]), {}).get("frames", 0)  # noqa: E731
        return until(lambda: frames() > than and frames(), 120)

    try:
        frames = plays()
        os.kill(processes()[1], signal.SIGKILL)
        until(lambda: "process 1 of the vector was killed by SIGKILL" in actor.log.read_text(), 30)
        frames = plays(frames + 1000)
        assert actor.state["restarts"] == 0
        before = processes()
        os.kill(before[1], signal.SIGSTOP)
        until(lambda: actor.state["restarts"], 150)
        assert "it was killed: no heartbeat for 45 s" in actor.log.read_text()
        assert not any(is_running(pid) for pid in before)
        plays(frames + 2000)
    finally:
        actor.end()
