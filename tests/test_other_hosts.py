"""Tests of the frontend with hosts over SSH: real sshds, tmux and supervisors.

The processes are stand-ins for experiment.py; `test_far_training` tests complete runs.
"""

import json
import os
import re
import shutil
import signal

import pytest
from deadlines import within
from far_cluster import STANDS_IN, FarCluster
from searching import files_with
from supervising import until

from impala_mm.runtime import certificates

# Reached by key; by password on another port; through a jump host.
ACTORS = ("actor1", "actor2", "actor3")


@pytest.fixture
def far(lan):
    return FarCluster(lan)


def _start(far, *flags):
    """Start a run, and return its frontend once all processes are running."""
    frontend = far.start(*flags)
    frontend.until(r"\nup\n", 20)
    far.until_all("running")
    return frontend


def test_processes_on_other_hosts_run_in_tmux_are_restarted_and_end_with_the_run(far):
    rows = far.of(["learner1"], ACTORS)
    frontend = far.start(rows, "--env", "MORE=a 'b")
    frontend.until(r"impala: started 4 processes on 4 hosts in .* s; results: /root/run\n")
    frontend.until(r"\nup\n", 20)
    far.until_all("running")
    # Its metrics are copied to this machine.
    known = until(lambda: (found := far.status()).get("frames") and found)
    assert [(p["name"], p["state"]) for p in known["processes"]] == [
        *[("learners", "running"), ("actor-0", "running")],
        *[("actor-1", "running"), ("actor-2", "running")],
    ]
    assert (known["frames"], known["verdict"]) == (1000, "all is well")
    lan = far.lan
    windows = lan.actor3.run("tmux", "list-windows", "-t", "impala", "-F", "#{window_name}")
    assert windows.stdout == "actor-2\n"

    def shown_in_the_window():
        shown = lan.actor1.run("tmux", "capture-pane", "-pJ", "-S-", "-t", "impala").stdout
        return re.search(r"^told (.*)$", shown, re.MULTILINE)

    told = json.loads(until(shown_in_the_window)[1])
    assert told["environment"]["MORE"] == "a 'b"
    assert told["environment"]["HOME"] == "/root"
    assert "WORKERS" not in told["environment"]
    assert told["flags"]["learner_hosts"] == "10.77.1.11:8001"
    reader = lan.laptop.start(*far.frontend("--logs=actor-1"))
    reader.until("told", 20)
    reader.interrupt(10)
    for host in lan.hosts.values():  # not even /etc/shadow contains the password
        found = files_with(host.root, [lan.actor2.password.replace('"', '""').encode()])
        assert [path.name for path in found] == ["workers.csv"] * (host.name == "laptop")
        assert not files_with(host.root, [lan.actor2.password.encode()])
        assert not [line for line in host.processes() if lan.actor2.password in line]
    token = (lan.laptop.home / ".local/state/impala_mm/runs/impala/token").read_text()
    of_learners, of_actors = (part.splitlines()[2] for part in certificates.split(token)[2::2])
    for name in ACTORS:
        assert not files_with(lan.hosts[name].root, [of_learners.encode()]), (
            "it could pose as the learner"
        )
    for name, line in (("learner1", of_learners), *((name, of_actors) for name in ACTORS)):
        places = files_with(lan.hosts[name].root, [line.encode()])
        assert [path.name for path in places] == ["token"]
    # A child of it has its name for a moment.
    [supervisor] = until(
        lambda: len(found := lan.actor1.pids("launcher.supervise.supervisor")) == 1 and found
    )
    os.kill(supervisor, signal.SIGKILL)
    frontend.until("10.77.1.21: restarted actor-0, whose supervisor was killed", 20)
    far.until_all("running")
    assert sum("standing_in" in line for line in lan.actor1.processes()) == 1
    far.stop(frontend)
    assert "got SIGUSR1" in frontend.printed()
    code, printed = far.run("--stop")
    assert code == 0, printed
    state = lan.actor2.home / ".local/state/impala_mm/hosts/actor2"
    assert not (state / "runs/impala").exists()
    assert list(state.glob("logs/*/actor-1.log")), "logs are kept on the host"
    assert lan.actor1.run("tmux", "list-sessions", check=False).stdout == ""


@pytest.mark.slow
def test_a_cut_link_and_a_killed_host_are_reported_and_recovered(far):
    frontend = _start(far, far.of(["learner1"], ["actor1", "actor3"]))
    actor = far.lan.actor1
    before = [line for line in actor.processes() if "standing_in" in line]
    actor.cut()
    frontend.until(
        r"10.77.1.21 is unreachable \(no answer for 12 s\); processes on it: actor-0;", 30
    )
    assert far.status("actor-0")["state"] == "away"
    assert far.status("actor-1")["state"] == "running"
    actor.restore()
    frontend.until(r"10.77.1.21 is connected again after", 30)
    until(lambda: far.status("actor-0")["state"] == "running", 20)
    assert [line for line in actor.processes() if "standing_in" in line] == before
    assert far.status("actor-0")["restarts"] == 0
    actor.kill_all()
    frontend.until(r"10.77.1.21 is unreachable", 40)
    actor.boot()
    frontend.until(r"10.77.1.21: restarted actor-0\n", 40)
    until(lambda: far.status("actor-0")["state"] == "running", 20)


@pytest.mark.slow
def test_an_actor_that_was_stopped_in_its_window_stays_stopped_after_an_outage(far):
    frontend = _start(
        far, far.csv(far.row("learner", "learner1"), far.row("actor", "actor1", count=2))
    )
    host = far.lan.actor1

    def shows(text):
        pane = "tmux", "capture-pane", "-pJ", "-t", "=impala:=actor-0"
        return lambda: text in host.run(*pane).stdout

    for said in ("-- Ctrl-C again within 5 s stops actor-0 for good", "-- actor-0: stopped --"):
        host.run("tmux", "send-keys", "-t", "=impala:=actor-0", "C-c")
        until(shows(said))
    host.cut()
    frontend.until("10.77.1.21 is unreachable", 40)
    for pid in host.pids("actor-1/task.json"):
        os.kill(pid, signal.SIGKILL)
    host.restore()
    assert frontend.until(r"10.77.1.21: restarted (.*)\n", 60)[1].startswith("actor-1")
    until(lambda: far.status("actor-1")["state"] == "running")
    host.kill_all()
    frontend.until("10.77.1.21 is unreachable", 40)
    host.boot()
    assert frontend.until(r"10.77.1.21: restarted (.*)\n", 60)[1] == "actor-1"
    until(lambda: far.status("actor-1")["state"] == "running")
    assert sum("standing_in" in line for line in host.processes()) == 1


def test_the_first_error_of_a_remote_process_is_printed_within_seconds(far):
    frontend = far.start(far.of(["learner1"], ACTORS), "--env=TOLD=fail", "--max_restarts=1")
    frontend.until(
        r"actor-2 on actor3 failed: it exited with code 1\n"
        r"(?:(?:    .*\n)* +ValueError: an actor that fails"
        r"| +its lines are the same as those of actor-[01])\n"
        r".*it will be restarted in 0.5 s; log: /root/\.local/",
        15,
    )
    assert re.search(r"\n +ValueError: an actor that fails\n", frontend.printed())
    assert far.lan.actor3.path(
        re.search(r"; log: (\S+actor-2\.log)", frontend.printed())[1]
    ).exists()


def test_each_unusable_host_is_reported_with_how_to_fix_it(far):
    lan = far.lan
    far.of(["learner1"], ["actor1", "actor2", "actor3"])
    csv = lan.laptop.path("/root/workers.csv")
    right = csv.read_text()
    # One host has a new key, one rejects our key, one rejects the password, one does not exist.
    known = lan.laptop.path(lan.known_hosts)
    lines = [line.split() for line in known.read_text().splitlines()]
    other = next(f[2] for f in lines if f[:2] == ["10.77.1.12", "ssh-ed25519"])
    for fields in lines:
        if fields[0] == "10.77.1.21":
            fields[1:3] = ["ssh-ed25519", other]
    known.write_text("\n".join(" ".join(fields) for fields in lines) + "\n")
    lan.hosts["actor3"].path("/root/.ssh/authorized_keys").write_text("")
    csv.write_text(right.replace('""tell""', "tell") + "actor,10.77.1.99,,,,,,\n")
    with within(40):
        code, printed = far.run(
            *("--check", "--workers_csv_path=/root/workers.csv", "--level_name=catch"),
            "--logdir=/root/run",
        )
    assert code == 1
    bad = re.findall(r"FAILED +ssh +(.*)", printed)
    assert len(bad) == 4, printed
    said = "\n".join(bad)
    assert re.search(r"10\.77\.1\.21.*key.*changed|10\.77\.1\.21.*another key", said)
    assert re.search(r"trainer@10\.77\.1\.22.*", said)
    assert re.search(r"actor3.*", said)
    assert re.search(r"10\.77\.1\.99.*", said)
    assert lan.actor2.password not in printed


@pytest.mark.slow
def test_apply_adds_and_removes_actors_also_on_a_host_that_is_off_at_first(far):
    frontend = _start(far, far.of(["learner1"], ["actor1"]))
    far.lan.actor2.cut()
    code, printed = far.run("--apply", far.of(["learner1"], ["actor2", "actor3"]))
    assert code == 0, printed
    assert "impala: 2 actors added, 1 removed" in printed
    far.lan.actor2.restore()
    running = {"learners": "running", "actor-1": "running", "actor-2": "running"}

    def states():
        return {p["name"]: p["state"] for p in far.status()["processes"]}

    until(lambda: states() == running | {"actor-0": "stopped"}, 90)
    assert not [line for line in far.left().get("actor1", []) if "task.json" in line]
    log = far.status("actor-1")["log"]
    assert log.startswith("/")
    assert far.lan.actor2.path(log).read_text()
    assert not list(far.lan.actor2.home.glob("~*"))
    far.stop(frontend)


@pytest.mark.slow
def test_apply_needs_the_project_on_new_hosts_and_copies_it_with_deploy(far):
    """Hosts of the run keep what they have, though it is not where --deploy copies it to."""
    rows = [far.row("learner", "learner1"), far.row("actor", "actor1")]
    far.lan.laptop.path("/root/own_thing.py").write_text("")
    frontend = _start(far, far.csv(*rows), "--import=own_thing")
    new = far.row("actor", "actor2")
    without = new.replace(STANDS_IN, "/tmp/none")
    code, printed = far.run("--apply", far.csv(*rows, rows[1], without))
    assert code == 2, printed
    assert "error: nothing was changed: row 5: there is no /tmp/none in " in printed
    assert {p["name"] for p in far.status()["processes"]} == {"learners", "actor-0"}
    code, printed = far.run("--apply", "--deploy", far.csv(*rows, rows[1], new))
    assert code == 0, printed
    assert "code and environment: 1 of 1 hosts ready" in printed
    assert "impala: 2 actors added, 0 removed" in printed
    assert (far.lan.actor2.home / "impala_mm/experiment.py").exists()
    assert (far.lan.actor2.home / "impala_mm/own_thing.py").exists(), "a module of the start"
    assert not (far.lan.actor1.home / "impala_mm").exists()
    far.until_all("running")
    far.stop(frontend)


@pytest.mark.slow
def test_a_run_name_that_another_frontend_uses_on_a_host_is_not_taken(far):
    rows = far.of(["learner1"], ["actor1"])
    far.start(rows, "--detach").wait(30)
    far.until_all("running")
    state = far.lan.laptop.path("/root/.local/state/impala_mm")
    state.rename(state.with_name("elsewhere"))  # as if another laptop connected
    flags = (rows, "--skip_check", "--level_name=catch", "--detach")
    code, printed = far.run(*flags, "--logdir=/root/run2", "--tmux_sess=impala")
    assert code == 2
    running = "a run named impala is running on that host, started from laptop"
    assert f"{running}: --tmux_sess=NAME starts" in printed
    assert "there is no run named impala" in far.run("--stop")[1], "no part of it was started"
    code, printed = far.run(*flags, "--logdir=/root/run")
    assert code == 2
    assert (
        "--logdir=10.77.1.11:/root/run: the run impala, started from laptop, is writing to it"
        in printed
    )
    code, printed = far.run(*flags, "--logdir=/root/run2")
    assert code == 0, printed
    assert f"{running}: this run is named impala-2\n" in printed
    assert "impala-2: started 2 processes on 2 hosts" in printed
    code, printed = far.run("--stop")
    assert code == 0, printed
    assert far.lan.learner1.run("tmux", "list-sessions", "-F", "#{session_name}").stdout == (
        "impala\n"
    )
    state.rename(state.with_name("refused"))
    state.with_name("elsewhere").rename(state)
    assert {p["state"] for p in far.status()["processes"]} == {"running"}
    code, printed = far.run("--stop")
    assert code == 0, printed
    assert far.left() == {}, printed


@pytest.mark.slow
def test_a_run_keeps_running_while_the_laptop_has_no_network(far):
    frontend = _start(far, far.of(["learner1"], ["actor1"]), "--lost_secs=5")
    far.lan.laptop.cut()
    frontend.until(r"the learners' host 10.77.1.11 stays unreachable: the run waits for it", 60)
    far.lan.laptop.restore()
    frontend.until("10.77.1.11 is connected again", 60)
    far.until_all("running")
    assert frontend.process.poll() is None
    far.stop(frontend)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["as it was", "empty"])
def test_learners_are_restarted_on_their_host_after_a_reboot(far, disk):
    frontend = _start(far, far.of(["learner1"], ["actor1"]), "--restart_learners")
    learner = far.lan.learner1
    learner.kill_all()
    if disk == "empty":
        shutil.rmtree(learner.path("/root/.local"))
    learner.boot()
    frontend.until(
        "the learners on 10.77.1.11 are not running any more: restarting the learners",
        60,
    )
    assert "10.77.1.11:0" in frontend.printed()
    frontend.skip()
    frontend.until(r'"learner_hosts": "10.77.1.11:8001"', 40)  # the port that actors know
    frontend.until(r"\nup\n", 10)
    far.until_all("running")
    far.stop(frontend)


@pytest.mark.slow
def test_an_unreachable_host_that_was_removed_from_the_csv_is_not_waited_for(far):
    far.start(far.of(["learner1"], ["actor1", "actor3"]), "--detach", "--controller=none").wait(30)
    far.until_all("running")
    far.lan.actor1.cut()
    code, printed = far.run("--apply", far.of(["learner1"], ["actor3"]))
    assert code == 0
    assert re.search(r"note: actor-0 keeps running until 10.77.1.21 can be reached", printed)
    assert [p["name"] for p in far.status()["processes"]] == ["learners", "actor-1"]
    assert set(far.left()) == {"learner1", "actor1", "actor3"}
    far.lan.actor1.restore()  # so the host was not lost for good
    code, printed = far.run("--apply", far.of(["learner1"], ["actor1", "actor3"]))
    assert "10.77.1.21 is connected again: ended the processes of an earlier run" in printed
    assert code == 0, printed
    far.until_all("running")
    assert sum("standing_in" in line for line in far.lan.actor1.processes()) == 1
    code, printed = far.run("--stop")
    assert code == 0, printed
    assert far.left() == {}, printed
