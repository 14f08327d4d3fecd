"""The controller that a frontend leaves behind: it follows the run without a terminal.

The processes are stand-ins for experiment.py; sshd, mpirun and the supervisors are real.
"""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from far_cluster import MPI_PYTHON, FarCluster
from processes import needs_horovod
from searching import places_of, secrets_of
from supervising import until

from launcher.node.task import read_json
from launcher.running.followed_run import SETTLE_SECONDS

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


def _entry(far, place="runs/impala"):
    return read_json(far.lan.laptop.path(f"/root/.local/state/impala_mm/{place}/controller.json"))


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
    daemon = far.status()["daemons"]
    assert [(d["host"], d["state"], d["last"]) for d in daemon] == [
        ("10.77.1.12", "running", "mpirun's daemon is running")
    ]
    assert re.search(r"daemon +10.77.1.12 +running", status)

    ranks = _kill(learner2, "--job_name=learner --token_file")
    _kill(learner2, "launcher.node.daemon_supervisor")
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
    assert "controller: ended, as the run has ended" in far.run("--status")[1]
    assert far.run("--stop")[0] == 0


@pytest.fixture
def left_on_a_host(far):
    """A run whose controller is on the host of an actor, and the laptop is off."""
    rows = far.of(LEARNERS, ["actor1", "actor2"])
    seconds = "--lost_secs=10", "--rejoin_secs=5"
    printed = _detach(far, rows, "--restart_learners", "--controller=10.77.1.21", *seconds)
    assert re.search(r"controller: process \d+ on actor1, for ", printed)
    assert "the controller connects by the run's TLS (4 hosts)\n" in printed
    far.lan.laptop.kill_all()
    yield far
    if not far.lan.laptop.up:
        far.lan.laptop.boot()
    code, printed = far.run("--stop")
    assert code == 0, printed
    for frontend in far.followers:  # they end a moment after the one that stopped the run
        assert frontend.wait(20) == 0, frontend.printed()
    assert far.left() == {}, printed


def _log_on_actor1(far):
    [path] = far.lan.actor1.path("/root/.local/state/impala_mm").glob(
        "hosts/actor1/logs/*/controller.log"
    )
    return path.read_text()


@needs_horovod
def test_a_controller_on_a_host_restarts_by_the_runs_tls_without_any_key(left_on_a_host):
    far = left_on_a_host
    lan = far.lan
    before = _kill(lan.actor2, "actor-1/task.json")
    until(lambda: set(lan.actor2.pids("actor-1/task.json")) - set(before), 60)
    until(lambda: "restarted actor-1, whose supervisor was killed" in _log_on_actor1(far))

    ranks = [*_kill(lan.learner1, "learners/task.json"), *lan.learner1.pids("--job_name=learner")]
    until(lambda: set(lan.learner1.pids("--job_name=learner --token")) - set(ranks), 90)
    until(lambda: lan.learner2.pids("--job_name=learner --token"), 60)
    said = "the learners on 10.77.1.11 are not running any more: restarting the learners on "
    assert f"{said}10.77.1.11, 10.77.1.12 from the last checkpoint" in _log_on_actor1(far)

    secrets = secrets_of(lan.laptop, lan.key, b"")
    for name in (*LEARNERS, "actor1", "actor2"):
        assert places_of(lan.hosts[name], secrets) == [], f"{name} has the operator's key"
    assert not list(lan.actor1.path("/root/.ssh").glob("id_*"))
    assert not any(lan.actor1.pids("ssh ")), "no SSH starts there"


@needs_horovod
def test_what_a_controller_on_a_host_cannot_do_waits_for_a_frontend(left_on_a_host):
    far = left_on_a_host
    lan = far.lan
    lan.actor2.kill_all()  # what took orders there is gone, and no frontend is attached
    lan.actor2.boot()
    gone = "trainer@10.77.1.22:2222 is unreachable (10.77.1.22 takes no orders"
    until(lambda: gone in _log_on_actor1(far), 90)
    lan.laptop.boot()
    status = far.run("--status")[1]
    said = "it cannot reach trainer@10.77.1.22:2222: what fails there waits for `--attach`"
    assert re.search(rf"controller: process \d+ on actor1, for .*; {re.escape(said)}", status)
    frontend = far.start_following("--restart_learners")
    frontend.until("controller: process [0-9]+ on actor1", 60)
    frontend.until("`d` detaches", 60)
    until(lambda: lan.actor2.pids("--job_name=actor"), 90)
    far.until_all("running")
    until(lambda: "it cannot reach" not in far.run("--status")[1], 60)
    until(lambda: "is connected again" in _log_on_actor1(far), 60)
    time.sleep(SETTLE_SECONDS + 2)  # then the controller has looked at the host's processes
    before = _kill(lan.actor2, "actor-1/task.json")
    until(lambda: set(lan.actor2.pids("actor-1/task.json")) - set(before), 60)
    until(lambda: "restarted actor-1, whose supervisor was killed" in _log_on_actor1(far))
    assert "whose supervisor was killed" not in frontend.printed()


@needs_horovod
def test_learners_lose_a_host_and_get_it_back_by_a_controller_on_a_host(left_on_a_host):
    far = left_on_a_host
    lan = far.lan
    lan.learner2.cut()
    _kill(lan.learner1, "launcher.node.mpirun_agent ")  # instead of a minute until TCP gives up
    said = "10.77.1.12 stays unreachable: restarting the learners on 10.77.1.11 from the last"
    until(lambda: said in _log_on_actor1(far), 120)
    alone = until(lambda: lan.learner1.pids("--job_name=learner --token"), 60)
    for pid in alone:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert "--learner_hosts=10.77.1.11:8001\0" in command
    lan.learner2.restore()
    until(lambda: "10.77.1.12 answers again" in _log_on_actor1(far), 90)
    until(lambda: "saving, to restart the learners on 10.77.1.11, 10.77" in _log_on_actor1(far), 60)
    both = until(lambda: lan.learner2.pids("--job_name=learner --token"), 90)
    until(lambda: set(lan.learner1.pids("--job_name=learner --token")) - set(alone), 60)
    command = Path(f"/proc/{both[0]}/cmdline").read_text()
    assert "--learner_hosts=10.77.1.11:8001,10.77.1.12:" in command
    lan.laptop.boot()
    far.until_all("running")


@needs_horovod
@pytest.mark.parametrize("place", ["here", "10.77.1.21"])
def test_a_host_that_was_lost_before_the_controller_came_is_taken_back_by_it(far, place):
    lan = far.lan
    flags = ("--restart_learners", f"--controller={place}", "--lost_secs=10", "--rejoin_secs=5")
    frontend = far.start(far.of(LEARNERS, ["actor1"]), *flags)
    frontend.until(r"\nup\n", 60)
    far.until_all("running")
    former = lan.learner2.pids("--job_name=learner --token")
    lan.learner2.cut()
    _kill(lan.learner1, "launcher.node.mpirun_agent ")  # instead of a minute until TCP gives up
    said = "10.77.1.12 stays unreachable: restarting the learners on 10.77.1.11 from the last"
    frontend.until(said, 120)
    alone = until(lambda: lan.learner1.pids("--job_name=learner --token"), 60)
    far.until_all("running")
    frontend.process.send_signal(signal.SIGHUP)
    assert frontend.wait(20) == 0
    code, printed = far.run("--attach", "--detach", *flags, timeout=120)
    assert code == 0, printed
    assert re.search(r"controller: process \d+ on ", printed)
    lan.learner2.restore()
    log = _log if place == "here" else _log_on_actor1
    until(lambda: "10.77.1.12 answers again" in log(far), 120)
    until(lambda: "saving, to restart the learners on 10.77.1.11, 10.77.1.12" in log(far), 60)
    again = until(lambda: set(lan.learner2.pids("--job_name=learner --token")) - set(former), 90)
    until(lambda: set(lan.learner1.pids("--job_name=learner --token")) - set(alone), 60)
    command = Path(f"/proc/{again.pop()}/cmdline").read_text()
    assert "--learner_hosts=10.77.1.11:8001,10.77.1.12:" in command
    far.until_all("running")
    code, printed = far.run("--stop")
    assert code == 0, printed
    assert far.left() == {}, printed


@needs_horovod
def test_a_dead_controller_on_a_host_is_reported_and_started_again(left_on_a_host):
    far = left_on_a_host
    _kill(far.lan.actor1, "--control --tmux_sess=impala")
    far.lan.laptop.boot()
    assert far.status()["controller"]["state"] == "lost"
    frontend = far.start_following("--restart_learners")
    frontend.until("controller: gone, last seen .* on actor1", 60)
    frontend.until(r"controller: process \d+ on actor1", 60)
    assert far.status()["controller"]["state"] == "running"
    assert len(far.lan.actor1.pids("--control --tmux_sess=impala")) == 1


@needs_horovod
def test_learners_of_rebooted_hosts_are_planned_anew_by_a_frontend_and_started_by_the_controller(
    left_on_a_host,
):
    far = left_on_a_host
    lan = far.lan
    lan.laptop.boot()
    frontend = far.start_following("--restart_learners")
    frontend.until("`d` detaches", 60)
    for host in (lan.learner1, lan.learner2):  # the first has the plan of all learners
        host.kill_all()
        until(lambda host=host: f"{host.address} is unreachable" in _log_on_actor1(far), 90)
        host.boot()
        for name in LEARNERS:
            until(lambda name=name: lan.hosts[name].pids("--job_name=learner --token"), 120)
    far.until_all("running", 60)
    assert "restarting the learners" not in frontend.printed(), "the controller does that"
    assert "could not" not in frontend.printed()


@needs_horovod
def test_a_controller_that_only_the_frontend_cannot_reach_is_refused_and_replaced(left_on_a_host):
    far = left_on_a_host
    lan = far.lan
    lan.laptop.boot()
    frontend = far.start_following("--restart_learners", "--lost_secs=10")
    frontend.until("`d` detaches", 60)
    [first] = lan.actor1.pids("--control --tmux_sess=impala")
    lan.actor1.lose_packets_to(lan.laptop)  # it reaches all other hosts
    frontend.until("in place of the controller on actor1, whose orders are refused from now on", 90)
    until(lambda: "a frontend has taken over from this controller" in _log_on_actor1(far), 60)
    before = _kill(lan.actor2, "actor-1/task.json")
    until(lambda: set(lan.actor2.pids("actor-1/task.json")) - set(before), 60)
    frontend.until("restarted actor-1, whose supervisor was killed", 60)
    assert lan.actor1.pids("--control --tmux_sess=impala") == [first]
    lan.actor1.lose_packets_to(lan.laptop, lost=False)
    frontend.until(r"\ncontroller: process \d+ on actor1, for ", 120)
    [second] = lan.actor1.pids("--control --tmux_sess=impala")
    assert second != first
    assert far.status()["controller"]["state"] == "running"
    before = _kill(lan.actor2, "actor-1/task.json")
    until(lambda: set(lan.actor2.pids("actor-1/task.json")) - set(before), 60)
    assert frontend.printed().count("restarted actor-1") == 1, "the next controller does that"


def test_a_controller_on_a_host_that_cannot_have_it_is_refused(far):
    rows = far.of(["learner1"], ["actor1"])
    code, printed = far.run(rows, "--skip_check", "--level_name=catch", "--controller=10.77.1.99")
    assert code == 2
    assert (
        "error: --controller=10.77.1.99: no row of the CSV has this host; write one of its hosts "
        "(10.77.1.11, 10.77.1.21), here (this machine) or none\n"
    ) in printed
    rows = far.csv(far.row("learner", "learner1"), f"actor,localhost,,,,,{MPI_PYTHON},")
    code, printed = far.run(rows, "--skip_check", "--level_name=catch", "--controller=10.77.1.11")
    assert code == 2
    assert "a controller on a host reaches no process of this machine, which the rows 3" in printed
    assert far.left() == {}
