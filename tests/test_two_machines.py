"""Learners on two machines by the documented mpirun, which reaches the other machine by ssh."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import EXPERIMENT, needs_horovod

from impala_mm.runtime import run_token

pytestmark = [needs_horovod, pytest.mark.slow]


def test_two_learners_on_two_machines_train_with_actors_on_both(lan):
    machines = lan.learner1, lan.learner2
    lan.trust(lan.learner1)  # its mpirun connects to the other learner
    addresses = [machine.address for machine in machines]
    content = run_token.make()
    for machine in machines:  # as a user would copy it
        token = machine.home / ".config" / "impala_mm" / "token"
        token.parent.mkdir(parents=True)
        token.write_text(content)
        token.chmod(0o600)
    flags = ["--level_name=catch", f"--learner_hosts={','.join(f'{a}:8001' for a in addresses)}"]
    prefix = Path(sys.executable).parent.parent
    learners = lan.learner1.start(
        *(prefix / "bin" / "mpirun", "--allow-run-as-root", "--prefix", prefix),
        *("--host", ",".join(addresses), "-np", "2"),
        *(*EXPERIMENT, "--job_name=learner", *flags, "--logdir=/root/run"),
        "--total_environment_frames=1e9",
    )
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
