"""Learners on two hosts, whose mpirun has its daemon started by a process on the other host.

The processes are stand-ins for experiment.py; mpirun, its daemon, sshd and the supervisors are
real.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from far_cluster import FarCluster
from processes import needs_horovod
from searching import files_with, places_of, secrets_of
from supervising import until

from impala_mm.runtime import certificates

pytestmark = [pytest.mark.slow, needs_horovod]
LEARNERS = "learner1", "learner2"


@pytest.fixture
def far(lan):
    return FarCluster.with_mpirun(lan)


def _start(far, *flags, **env):
    """Start a run with learners on two hosts, and return the frontend once they are running."""
    frontend = far.start(far.of(LEARNERS, ["actor1"]), *flags, **env)
    frontend.until("started", 30)
    return frontend


def _stand_ins(host):
    return host.pids("--job_name=learner --token_file")


def _until_up(far, but=()):
    """Wait until the learners on both hosts are running, others than these; return their pids."""

    def found():
        pids = [set(_stand_ins(far.lan.hosts[name])) - set(but) for name in LEARNERS]
        return pids[0] | pids[1] if all(pids) else set()

    return until(found, 30)


@pytest.mark.parametrize(
    "passphrase", [b"", b"1 passphrase of 26 letters"], ids=["a file", "an agent"]
)
def test_no_key_of_the_operator_is_on_a_host_of_the_run(far, passphrase):
    """The key is in a file of the laptop, or encrypted there and held by the laptop's agent."""
    laptop, key = far.lan.laptop, far.lan.key
    env = {}
    if passphrase:
        laptop.run("ssh-keygen", "-q", "-p", "-P", "", "-N", passphrase.decode(), "-f", key)
        laptop.path("/root/ask").write_text(f"#!/bin/sh\necho '{passphrase.decode()}'\n")
        laptop.path("/root/ask").chmod(0o700)
        env = {"SSH_AUTH_SOCK": "/root/agent.sock"}
        agent = laptop.start("ssh-agent", "-D", "-a", "/root/agent.sock")
        until(laptop.path("/root/agent.sock").exists)
        asks = {"SSH_ASKPASS": "/root/ask", "SSH_ASKPASS_REQUIRE": "force"}
        laptop.run("ssh-add", key, env=env | asks)
    secrets = secrets_of(laptop, key, passphrase)
    frontend = _start(far, **env)
    _until_up(far)
    assert laptop.path(key) in places_of(laptop, secrets)
    if not passphrase:  # an agent keeps its keys encrypted in memory
        in_memory = [path for path in places_of(laptop, secrets) if path.name == "mem"]
        assert in_memory, "the frontend's memory has it"
    for name in (*LEARNERS, "actor1"):
        host = far.lan.hosts[name]
        assert places_of(host, secrets) == []
        sockets = host.run("cat", "/proc/net/unix").stdout
        assert "agent" not in sockets
        assert "keys" not in sockets
        assert not any("SSH_AUTH_SOCK" in _environment(pid) for pid in host.pids(""))
    token = far.lan.laptop.path("/root/.local/state/impala_mm/runs/impala/token").read_text()
    key = certificates.split(token)[2].encode().splitlines()[1]  # the learners'
    having = {name: files_with(host.root, [key]) for name, host in far.lan.hosts.items()}
    names = {name: {path.name for path in paths} for name, paths in having.items() if paths}
    assert set(names) == {"laptop", *LEARNERS}, "no host of actors has it"
    assert all(each == {"token"} for each in names.values())
    if passphrase:
        agent.process.terminate()
        agent.process.wait()
    far.stop(frontend)


def _environment(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return ""


def test_a_variable_of_the_frontends_shell_and_the_hosts_names_reach_all_hosts(far):
    """The variable is on no command line; a host's name is the one that it has in the CSV."""
    frontend = _start(far, "--env=WORD", WORD="between us")
    _until_up(far)
    until(lambda: far.lan.actor1.pids("--job_name=actor"))
    for name in (*LEARNERS, "actor1"):
        host = far.lan.hosts[name]
        for pid in _stand_ins(host) or host.pids("--job_name=actor"):
            variables = _environment(pid).split("\0")
            assert "WORD=between us" in variables
            assert f"IMPALA_MM_HOST={host.address}" in variables
    for host in far.lan.hosts.values():
        assert not host.pids("between us")
    far.stop(frontend)


def test_learners_restart_on_both_hosts_while_no_frontend_is_attached(far):
    frontend = _start(far, "--restart_learners", "--detach")
    assert frontend.wait(30) == 0
    before = _until_up(far)
    laptop, second = far.lan.laptop, far.lan.learner2
    laptop.kill_all()
    for pid in _stand_ins(second):
        os.kill(pid, signal.SIGKILL)
    between = _until_up(far, before)
    for pid in second.pids("/bin/prted "):  # mpirun's daemon
        os.kill(pid, signal.SIGKILL)
    _until_up(far, before | between)
    laptop.boot()
    assert far.status("learners")["restarts"] == 2
    assert far.run("--stop")[0] == 0
    assert far.left() == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [("learner2", "/bin/prted "), ("learner1", "supervise.mpi_agent ")],
)
def test_an_mpirun_that_lost_its_daemon_has_failed(far, name, words):
    """It exits with code 0 if its agent was killed, with 255 if it saw the agent fail first."""
    frontend = _start(far)
    _until_up(far)
    for pid in far.lan.hosts[name].pids(words):
        os.kill(pid, signal.SIGKILL)
    assert frontend.wait(30) in (1, 255), frontend.printed()
    assert "learners on 10.77.1.11 failed" in frontend.printed()
    assert far.left() == {}


def test_learners_wait_for_a_host_until_a_frontend_has_started_its_process_again(far):
    """A host that was rebooted while no frontend was attached."""
    frontend = _start(far, "--restart_learners", "--detach", "--controller=none")
    assert frontend.wait(30) == 0
    before = _until_up(far)
    second = far.lan.learner2
    second.kill_all()
    second.boot()
    log = far.lan.learner1.path("/root/run/learners.log")
    until(lambda: "waiting for 10.77.1.12: no process" in log.read_text(), 90)
    time.sleep(5)
    assert not _stand_ins(second)
    frontend = far.start_following("--restart_learners", "--lost_secs=600")
    _until_up(far, before)
    assert far.status("learners")["restarts"] == 1, "waiting is no crash"
    far.stop(frontend)


def test_nothing_is_left_when_learners_end_while_no_frontend_is_attached(far):
    frontend = _start(far, "--detach", "--orphan_secs=5")
    assert frontend.wait(30) == 0
    _until_up(far)
    far.lan.laptop.kill_all()
    state = far.lan.learner1.path("/root/.local/state/impala_mm/hosts/learner1/runs/impala")
    (state / "learners" / "stop").write_text("save")
    until(lambda: not far.left().get("learner2"), 20)
    far.lan.laptop.boot()
    assert far.status("learners")["state"] == "stopped"
    assert far.run("--stop")[0] == 0
