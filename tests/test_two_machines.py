"""Learners on two machines by the documented mpirun, which reaches the other machine by ssh."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from hosts import give_token
from processes import EXPERIMENT, ROOT, needs_horovod

from impala_mm.transport.tls import Credentials

pytestmark = [needs_horovod, pytest.mark.slow]


def _start_learners(lan, flags):
    lan.trust(lan.learner1)  # its mpirun connects to the other learner
    prefix = Path(sys.executable).parent.parent
    return lan.learner1.start(
        *(prefix / "bin" / "mpirun", "--allow-run-as-root", "--prefix", prefix),
        *("--host", f"{lan.learner1.address},{lan.learner2.address}", "-np", "2"),
        *(*EXPERIMENT, "--job_name=learner", *flags, "--logdir=/root/run"),
        "--total_environment_frames=1e9",
    )


def _flags(lan):
    addresses = f"{lan.learner1.address}:8001,{lan.learner2.address}:8001"
    return ["--level_name=catch", f"--learner_hosts={addresses}"]


def test_two_learners_on_two_machines_train_with_actors_on_both(lan):
    machines, flags = (lan.learner1, lan.learner2), _flags(lan)
    content = give_token(*machines)
    credentials = Credentials.parse(content)
    secrets = [credentials.token, *re.findall("[A-Za-z0-9+/=]{64}", content)]
    reader = lan.learner2.start(
        sys.executable, ROOT / "tests" / "helpers" / "wire_reader.py", "/root/run", *secrets
    )
    reader.until("reads the network")
    learners = _start_learners(lan, flags)
    for task, machine in enumerate(machines):
        machine.start(*EXPERIMENT, "--job_name=actor", f"--task={task}", *flags)
    learners.until("weights on 2 learners", seconds=90)
    learners.until(r"\[learner 0\] [1-9][0-9,]* frames \|", seconds=90)
    time.sleep(6)
    lines = lan.learner1.path("/root/run/metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    assert row["steps/learner0"] > 0
    assert row["steps/learner1"] > 0
    assert any(re.search("job_name=learner", line) for line in lan.learner2.processes())
    learners.process.send_signal(signal.SIGUSR1)
    assert learners.wait(20) == 0, learners.printed()
    assert reader.printed().splitlines() == ["reads the network", "read '/root/run'"], (
        "learners send each other the run's folder, and nothing of the token file"
    )


def test_learners_with_different_token_files_end_with_the_command_that_copies_it(lan):
    """The second host has none; the one that its learner makes there is overwritten."""
    learners = _start_learners(lan, _flags(lan))
    assert learners.wait(60) != 0
    path = "/root/.config/impala_mm/token"
    command = f"scp {path} learner2:{path}"
    assert (
        "error: the learners' token files differ: copy learner 0's to the others' hosts (on "
        f"learner1: {command})"
    ) in learners.printed()
    assert "TensorFlow loaded" not in learners.printed()
    lan.learner1.run(
        *(command.replace("scp", f"scp -i {lan.key} -F {lan.ssh_config}").split(" ")),
    )
    mine, copied = (host.path(path) for host in (lan.learner1, lan.learner2))
    assert mine.read_text() == copied.read_text()
    assert copied.stat().st_mode & 0o777 == 0o600
    again = _start_learners(lan, _flags(lan))
    again.until("weights on 2 learners", seconds=90)
