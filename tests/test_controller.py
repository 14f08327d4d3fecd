"""The controller that a frontend leaves behind: it follows the run without a terminal.

The processes are stand-ins for experiment.py; sshd, mpirun and the supervisors are real.
"""

import os
import re
import signal

import pytest
from far_cluster import FarCluster
from processes import needs_horovod
from supervising import until

from launcher.supervise.json_files import read_json

pytestmark = pytest.mark.slow
LEARNERS = "learner1", "learner2"


@pytest.fixture
def far(lan):
    return FarCluster.with_mpirun(lan)


def _detach(far, *flags):
    """Start a run, leave it with a controller, and return what the frontend has printed."""
    frontend = far.start(*flags, "--detach")
    assert frontend.wait(60) == 0, frontend.printed()
    far.until_all("running")
    return frontend.printed()


def _entry(far):
    state = far.lan.laptop.path("/root/.local/state/impala_mm/runs/impala")
    return read_json(state / "controller.json")


def _controllers(far):
    """Return the controllers on the laptop, as this machine numbers them."""
    return far.lan.laptop.pids("--control --nodetach")


def _log(far):
    return far.lan.laptop.path("/root/run/controller.log").read_text()


def _kill(host, words):
    pids = until(lambda: host.pids(words))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


@needs_horovod
def test_a_run_that_was_left_alone_gets_its_learners_and_its_actors_back(far):
    actor1, learner2 = far.lan.actor1, far.lan.learner2
    printed = _detach(far, far.of(LEARNERS, ["actor1"]), "--restart_learners")
    assert "the controller connects by /root/.ssh/cluster_key (3 hosts)\n" in printed
    for command in ("--status", "--attach", "--stop"):
        assert f"run_experiment_mm_raw.py {command}`" in printed
    [controller] = _controllers(far)
    os.kill(controller, signal.SIGHUP)  # as at the end of a login
    os.kill(controller, signal.SIGINT)
    status = far.run("--status")[1]
    assert f"controller: process {_entry(far)['process'][0]} on laptop, for " in status
    assert re.search(r"learners-1 +10.77.1.12 +running", status)

    ranks = _kill(learner2, "--job_name=learner --token_file")
    _kill(learner2, "learners-1/task.json")
    again = until(lambda: set(learner2.pids("--job_name=learner --token_file")) - set(ranks), 60)
    assert again
    before = _kill(actor1, "actor-0/task.json")
    until(lambda: set(actor1.pids("actor-0/task.json")) - set(before), 60)
    until(lambda: "10.77.1.21: restarted actor-0, whose supervisor was killed" in _log(far))

    actor1.kill_all()
    until(lambda: "10.77.1.21 is unreachable" in _log(far), 60)
    actor1.boot()
    until(lambda: actor1.pids("--job_name=actor"), 90)
    far.until_all("running")
    assert _controllers(far) == [controller]
    code, printed = far.run("--stop")
    assert code == 0, printed
    assert far.left() == {}, printed
    assert "the run has ended, and so has its controller" in _log(far)


def test_a_controller_that_was_killed_is_reported_and_started_again_by_the_next_frontend(far):
    _detach(far, far.of(["learner1"], ["actor1"]))
    [first] = _controllers(far)
    os.kill(first, signal.SIGKILL)
    until(lambda: not _controllers(far))
    assert far.status()["controller"]["state"] == "lost"
    status = far.run("--status")[1]
    assert "controller: gone, last seen " in status
    assert "until `--attach` has started it again" in status

    frontends = [far.start_following(), far.start_following()]
    for each in frontends:
        each.until("`d` detaches", 60)
    [second] = until(lambda: _controllers(far))
    before = _kill(far.lan.actor1, "actor-0/task.json")
    until(lambda: set(far.lan.actor1.pids("actor-0/task.json")) - set(before), 60)
    until(lambda: "restarted actor-0" in _log(far))
    assert _log(far).count("restarted actor-0") == 1
    assert not any("restarted actor-0" in each.printed() for each in frontends)

    os.kill(second, signal.SIGSTOP)  # it keeps its lock, and sends no heartbeat
    until(lambda: far.status()["controller"]["state"] == "lost", 60)
    third = far.start_following()
    third.until("has hung for", 60)
    third.until("`d` detaches", 60)
    [now] = _controllers(far)
    assert now != second
    assert far.status()["controller"]["state"] == "running"
    assert far.run("--stop")[0] == 0
    assert [each.wait(30) for each in (*frontends, third)] == [0, 0, 0]
    assert far.left() == {}


def test_a_frontend_takes_over_from_a_controller_that_dies_while_it_follows(far):
    _detach(far, far.of(["learner1"], ["actor1"]))
    frontend = far.start_following()
    frontend.until("`d` detaches", 60)
    for pid in _controllers(far):
        os.kill(pid, signal.SIGKILL)
    frontend.until("the frontend that restarted what fails is gone: this one does so now", 30)
    _kill(far.lan.actor1, "actor-0/task.json")
    frontend.until("10.77.1.21: restarted actor-0", 60)
    frontend.process.send_signal(signal.SIGHUP)
    assert frontend.wait(20) == 0
    assert not _controllers(far), "a closed terminal leaves none"
    assert far.run("--attach", "--detach")[0] == 0
    [controller] = _controllers(far)
    code, printed = far.run("--attach", "--detach")
    assert code == 0
    assert _controllers(far) == [controller], printed
    code, printed = far.run("--apply", far.of(["learner1"], ["actor1", "actor3"]))
    assert code == 0, printed
    far.until_all("running")
    _kill(far.lan.actor3, "actor-1/task.json")
    until(lambda: "actor3: restarted actor-1" in _log(far), 60)
    assert far.run("--stop")[0] == 0
    assert far.left() == {}


def test_a_controller_ends_with_a_run_that_ends_by_itself(far):
    _detach(far, far.of(["learner1"], ["actor1"]), "--max_restarts=0")
    for pid in far.lan.learner1.pids("--job_name=learner"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not _controllers(far), 60)
    assert far.left() == {}
    assert "learners on 10.77.1.11 failed: it was killed" in _log(far)
    assert far.status()["controller"] is None
    assert far.run("--stop")[0] == 0
