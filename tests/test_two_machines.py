"""Learners on two machines, by the documented mpirun: network namespaces with a cable between them.

In place of ssh, which needs a server on each, `--prtemca plm_ssh_agent` starts what mpirun wants on
the other machine: it is called as PROGRAM HOST COMMAND, as ssh is.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, Process, needs_horovod

pytestmark = [needs_horovod, pytest.mark.slow]
EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"))
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines():
    """The names of two namespaces that see each other at ADDRESSES, and nothing else."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    names = [f"impala{os.getpid()}{letter}" for letter in "ab"]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
        except subprocess.CalledProcessError:
            pytest.skip("no network namespaces here")
        ends = [f"v{os.getpid()}{letter}" for letter in "ab"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _on(name):
    """What stands before a command that is to run on a machine, which has a host name, too."""
    named = 'hostname "$0"; exec "$@"'
    return ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", named, name)


def test_two_learners_on_two_machines_train_with_actors_on_both(machines, tmp_path):
    agent = tmp_path / "agent"
    words = "' '".join(("ip", "netns", "exec", machines[1], "unshare", "--uts", "sh", "-c"))
    named = f'hostname {machines[1]}; exec sh -c "$1"'
    agent.write_text(f"#!/bin/sh\nshift\nexec '{words}' '{named}' sh \"$*\"\n")
    agent.chmod(0o755)
    flags = [
        *("--level_name=catch", f"--token_file={tmp_path / 'token'}"),
        f"--learner_hosts={','.join(f'{address}:8001' for address in ADDRESSES)}",
    ]
    prefix = Path(sys.executable).parent.parent
    learners = Process(
        *_on(machines[0]),
        *(str(prefix / "bin" / "mpirun"), "--allow-run-as-root", "--prefix", str(prefix)),
        *("--prtemca", "plm_ssh_agent", str(agent), "--host", ",".join(ADDRESSES), "-np", "2"),
        *("--mca", "btl_tcp_if_include", "10.77.0.0/24"),
        *(*EXPERIMENT, "--job_name=learner", *flags, f"--logdir={tmp_path / 'run'}"),
        "--total_environment_frames=1e9",
    )
    for task, machine in enumerate(machines):
        Process(*_on(machine), *EXPERIMENT, "--job_name=actor", f"--task={task}", *flags)
    learners.until("weights on 2 learners", seconds=90)
    learners.until(r"\[learner 0\] [1-9][0-9,]* frames \|", seconds=90)
    time.sleep(6)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    assert row["steps/learner0"] > 0
    assert row["steps/learner1"] > 0
    learners.process.send_signal(signal.SIGUSR1)
    assert learners.process.wait(timeout=20) == 0, learners.printed()
