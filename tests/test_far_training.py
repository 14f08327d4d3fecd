"""Tests of complete runs on other hosts: two learners, three actors, real training, lost hosts."""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pytest
from far_cluster import FarCluster
from processes import needs_horovod
from rows import read_rows
from supervising import until

pytestmark = [pytest.mark.slow, needs_horovod]
LOST = ("--stop_at_return=2", "--restart_learners", "--lost_secs=10", "--mirror_logdir")
LEARNERS, ACTORS = ("learner1", "learner2"), ("actor1", "actor2", "actor3")


@pytest.fixture
def far(lan):
    return FarCluster(lan, python=sys.executable)


def _checkpoints(frontend, count, seconds=120):
    for _ in range(count):
        frontend.until(r"checkpoint at update", seconds)


def test_two_learners_and_three_actors_on_five_hosts_train_to_the_end(far):
    """The checks include an all-reduce; unrolls and gradients are sent over the network."""
    lan = far.lan
    rows = far.of(LEARNERS, ACTORS)
    flags = ("--level_name=catch", "--logdir=/root/run", "--total_environment_frames=60000")
    frontend = lan.laptop.start(*far.frontend(rows, *flags, "--stop_at_return=2"))
    frontend.until(r"checks: (\d+) of \1 passed", 120)
    frontend.until(r"weights on 2 learners", 90)
    frontend.until(r"\[learner 0\] [1-9][\d,]* frames \|", 60)
    updates = _updates(lan)
    before = {name: host.bytes_sent() for name, host in lan.hosts.items()}
    assert frontend.wait(180) == 0, frontend.printed()
    assert "reached 60,000 frames" in frontend.printed()
    sent = {name: host.bytes_sent() - before[name] for name, host in lan.hosts.items()}
    actors = [sent[name] for name in ACTORS]
    assert min(actors) > 0.1 * sum(actors), sent
    made = _updates(lan) - updates
    weights = int(
        re.search(r"with ([\d,]+) weights on 2 learners", frontend.printed())[1].replace(",", "")
    )
    for name in LEARNERS:  # one float32 for each gradient is sent at least once an update
        assert sent[name] > 4 * weights * made, (sent, weights, made)
    rows = _rows(lan)
    assert rows[-1]["steps/learner0"] > 0
    assert rows[-1]["steps/learner1"] > 0
    assert rows[-1]["unrolls_dropped"] == 0
    assert far.left() == {}


def _rows(lan):
    return read_rows(lan.laptop.path("/root/run"))


def _updates(lan):
    return _rows(lan)[-1]["updates"]


def test_a_learners_host_that_was_cut_off_is_named_left_out_and_used_again_later(far):
    flags = ("--stop_at_return=2", "--restart_learners", "--lost_secs=30", "--rejoin_secs=10")
    frontend = far.start(far.of(LEARNERS, ACTORS), *flags)
    frontend.until(r"weights on 2 learners", 90)
    frontend.until(r"\[learner 0\] [1-9][\d,]* frames \|", 90)
    actors = {name: far.status(name)["up"] for name in ("actor-0", "actor-1", "actor-2")}
    frontend.until(r"checkpoint at update", 90)
    far.lan.learner2.cut()
    silent = "bottleneck: learner 1 (10.77.1.12:8001 has not answered for 1"
    until(lambda: far.status()["verdict"].startswith(silent), 40)
    frontend.until(r"10.77.1.12 stays unreachable: restarting the learners on 10.77.1.11 from", 60)
    frontend.until(r"resumed at [1-9][\d,]* frames", 60)
    frontend.until(r"\[learner\] [1-9][\d,]* frames \|", 60)
    far.lan.learner2.restore()
    again = "10.77.1.12 answers again: the learners are restarted with it once it has answered"
    frontend.until(f"{again} for 10 s", 60)
    frontend.until("saving, to restart the learners on 10.77.1.11, 10.77.1.12 from this", 60)
    played = _rows(far.lan)[-1]["frames"]
    resumed = frontend.until(r"resumed at ([\d,]+) frames", 90)[1]
    assert int(resumed.replace(",", "")) >= played, "the checkpoint is a new one"
    frontend.until(r"\[learner 0\] [1-9][\d,]* frames \|", 60)
    until(lambda: _rows(far.lan)[-1].get("steps/learner1"), 60)
    known = far.status()["processes"]
    assert {p["state"] for p in known} == {"running"}
    for name, before in actors.items():
        assert next(p["up"] for p in known if p["name"] == name) > before, "it was not restarted"
    far.stop(frontend)


def test_learners_resume_after_the_first_learners_host_is_lost_if_its_folder_is_mirrored(far):
    frontend = far.start(far.of(LEARNERS, ACTORS), *LOST, "--save_checkpoint_secs=3")
    _checkpoints(frontend, 2)
    checkpoints = far.lan.laptop.path("/root/run/checkpoints")
    until(lambda: checkpoints.exists() and list(checkpoints.glob("[0-9]*/about.json")), 60)
    far.lan.learner1.kill_all()
    frontend.until(
        r"10.77.1.11 stays unreachable: restarting the learners on 10.77.1.12 from the last", 90
    )
    frontend.until(r"resumed at [1-9][\d,]* frames", 90)
    _checkpoints(frontend, 1)
    assert far.status("learners")["host"] == "10.77.1.12"
    far.lan.learner1.boot()
    frontend.until("10.77.1.11 is connected again", 60)
    time.sleep(8)
    assert not [line for line in far.left().get("learner1", []) if "experiment.py" in line]
    far.stop(frontend)


def test_learners_resume_on_another_host_from_a_mirror_in_a_store(far):
    """The hosts share a folder, which plays the store; the frontend's machine has no checkpoint."""
    pytest.importorskip("fsspec")
    with tempfile.TemporaryDirectory(dir="/srv") as store:
        flags = (*LOST[:-1], f"--mirror=file://{store}/run", "--save_checkpoint_secs=3")
        frontend = far.start(far.of(LEARNERS, ["actor1"]), *flags)
        until(lambda: list(Path(store).glob("run/checkpoints/[0-9]*/about.json")), 200)
        far.lan.learner1.kill_all()
        frontend.until(r"downloaded the run from file://.*/run: \d+ checkpoints", 200)
        frontend.until(r"resumed at [1-9][\d,]* frames", 90)
        assert far.status("learners")["host"] == "10.77.1.12"
        far.stop(frontend)


def test_training_starts_over_if_the_learners_host_is_lost_before_the_first_checkpoint(far):
    frontend = far.start(far.of(LEARNERS, ["actor1"]), *LOST, "--save_checkpoint_secs=600")
    frontend.until(r"[1-9][\d,]* frames \|", 120)
    far.lan.learner1.kill_all()
    frontend.until(
        r"no checkpoint was copied to /root/run before 10.77.1.11 became unreachable: training "
        r"starts over; a smaller --save_checkpoint_secs saves earlier",
        90,
    )
    frontend.until(r"[1-9][\d,]* frames \|", 90)
    assert far.status("learners")["host"] == "10.77.1.12"
    far.stop(frontend)


def test_checks_print_what_is_wrong_with_each_host_and_how_to_fix_it(far):
    """The checks report each of a number of broken hosts.

    An SSH port that accepts connections and then hangs, a host that does not exist, another version
    of TensorFlow, a missing project or Python, a full disk, an unknown host key, and a host name
    that resolves to 127.0.1.1 on the host itself.
    """
    lan = far.lan
    hangs = "import socket, time; s = socket.create_server(('', 2200)); print('up'); time.sleep(99)"
    lan.jump.start("python3", "-uc", hangs).until("up", 10)
    older = lan.actor1.path("/tmp/older")
    older.write_text(
        '#!/bin/sh\ncase "$2" in *importlib*) echo python 3.11.2; echo tensorflow 2.20.0; exit;; '
        f'esac\nexec {sys.executable} "$@"\n'
    )
    older.chmod(0o755)
    lan.learner1.run("mount", "-t", "tmpfs", "-o", "size=100M", "tmpfs", "/mnt")
    rows = [
        far.row("learner", "learner1"),
        "actor,10.77.1.21,,,,,/tmp/older,",
        "actor,10.77.1.3,,2200,,,,",
        "actor,10.77.1.99,,,,,,",
        "actor,10.77.1.12,,,,,/no/python,",
    ]
    begin = time.monotonic()
    code, printed = far.run(
        *("--check", far.csv(*rows), "--level_name=catch", "--logdir=/mnt/run"), timeout=120
    )
    assert time.monotonic() - begin < 90
    assert code == 1
    for line in (
        r"FAILED +ssh +10.77.1.99: .* cannot be reached",
        r"FAILED +ssh +10.77.1.3:2200: .* accepts the connection, but sends nothing for 15 s",
        r"note +versions +10.77.1.21: python 3.11.2, tensorflow 2.20.0\s+-> --deploy installs",
        r"FAILED +versions +10.77.1.12: there is no /no/python in .*\s+-> --deploy copies it",
        r"FAILED +disk +10.77.1.11: 0.1 GiB free in /mnt, 1 GiB needed\s+-> free some space, ",
    ):
        assert re.search(line, printed), (line, printed)
    config = lan.laptop.path(lan.ssh_config)
    config.write_text(config.read_text().replace("  HostName 10.77.1.12\n", ""))
    known = lan.laptop.path(lan.known_hosts)
    lines = known.read_text().splitlines(keepends=True)
    known.write_text(
        "".join(line for line in lines if not line.startswith(("10.77.1.21", "actor1")))
    )
    rows = far.csv(f"learner,learner2,8001,,,,{sys.executable},", far.row("actor", "actor1"))
    flags = ("--check", rows, "--level_name=catch", "--logdir=/root/run")
    code, printed = far.run(*flags)
    assert code == 1
    assert re.search(
        r"FAILED +ssh +10.77.1.21: .* is not known: its \S+ key is SHA256:\S+; if that is the "
        r"host's own key,\s+--ssh_accept_key=SHA256:\S+ accepts it ",
        printed,
    )
    code, printed = far.run(*flags, re.search(r"--ssh_accept_key=\S+", printed)[0])
    assert code == 1
    assert "10.77.1.21 ssh-ed25519 " in known.read_text()
    assert re.search(
        r"FAILED +names +learner2: row 2: learner2 resolves to 127.0.1.1 on the host itself",
        printed,
    )
    code, printed = far.run(*flags, "--bind_address=0.0.0.0:8001")
    assert (code, "FAILED" in printed) == (0, False), printed


def test_two_hundred_hosts_do_not_take_two_hundred_times_as_long_as_one(far):
    config = far.lan.laptop.path(far.lan.ssh_config)
    addresses = [far.lan.hosts[name].address for name in (*LEARNERS, "actor1")]
    aliases = "".join(f"Host h{i}\n  HostName {addresses[i % 3]}\n" for i in range(200))
    config.write_text(aliases + config.read_text())
    seconds = {}
    for count in (1, 200):
        actors = [f"actor,h{i},,,,,/no/python," for i in range(1, count)]
        rows = far.csv("learner,h0,8001,,,,/no/python,", *actors)
        begin = time.monotonic()
        code, printed = far.run("--check", rows, "--logdir=/root/run", timeout=200)
        seconds[count] = time.monotonic() - begin
        assert code == 1, printed
        assert re.search(rf"passed +ssh +{'200 hosts' if count > 1 else 'h0'}: connected", printed)
    assert seconds[200] < 100 * seconds[1]
    assert re.search(r"waiting for hosts: \d+ of 200 done \(\d+ s\)", printed), (
        "it prints the progress"
    )


def test_this_machine_may_be_one_of_the_hosts(far):
    """A local learner reaches a remote one by mpirun, and local actors reach a remote learner."""
    rows = far.csv(
        *[far.row("learner", name) for name in ("laptop", "learner2")],
        f"actor,localhost,,,,,{sys.executable},",
        far.row("actor", "actor1"),
    )
    frontend = far.start(rows, "--total_environment_frames=100000", "--stop_at_return=2")
    frontend.until(r"[1-9][\d,]* frames \|", 120)
    assert {p["state"] for p in far.status()["processes"]} == {"running"}
    assert frontend.wait(120) == 0, frontend.printed()
    assert "reached 100,000 frames" in frontend.printed()
    assert far.left() == {}
    assert _rows(far.lan)[-1]["actors"] == 2


def test_a_run_resumes_from_its_folder_with_the_learner_on_another_host(far):
    flags = ("--stop_at_return=2", "--mirror_logdir", "--save_checkpoint_secs=3")
    frontend = far.start(far.of(["learner1"], ["actor1"]), *flags)
    _checkpoints(frontend, 1)
    far.stop(frontend)
    frontend = far.start(far.of(["learner2"], ["actor1"]), *flags)
    frontend.until("copied the checkpoints in .* to 10.77.1.12:.*; training resumes", 30)
    frontend.until(r"resumed at [1-9][\d,]* frames", 90)
    far.stop(frontend)
    frames = [row["frames"] for row in _rows(far.lan)]
    assert frames == sorted(frames), "the metrics continue, too"


def test_learners_exit_by_themselves_if_the_host_of_their_mpirun_loses_power(far):
    flags = ("--stop_at_return=2", "--save_checkpoint_secs=3", "--detach")
    assert far.start(far.of(LEARNERS, ["actor1"]), *flags).wait(60) == 0
    until(lambda: far.status().get("frames", 0) > 0, 120)
    far.lan.laptop.cut()
    far.lan.learner1.kill_all()
    until(lambda: not far.lan.learner2.pids("experiment.py"), 150)


def test_the_machines_that_a_launcher_of_machines_names_train_together(far):
    """The same command is started on both of them, with the environment of SkyPilot."""
    lan = far.lan
    ips = "\n".join(lan.hosts[name].address for name in ("laptop", "actor1"))
    flags = ("--hosts_from=environment", "--level_name=catch", "--logdir=/root/run")
    command = far.frontend(*flags, "--total_environment_frames=20000")
    of_machine = [{"SKYPILOT_NODE_IPS": ips, "SKYPILOT_NODE_RANK": rank} for rank in "01"]
    first = lan.laptop.start(*command, **of_machine[0])
    other = lan.hosts["actor1"].start(*command, **of_machine[1])
    assert other.wait(60) == 0
    assert "machine 1: machine 0 starts this machine's processes" in other.printed()
    assert first.wait(300) == 0, first.printed()
    assert "reached 20,000 frames" in first.printed()
    assert f"actor,{lan.hosts['actor1'].address},,{len(os.sched_getaffinity(0))}" in first.printed()
    assert far.left() == {}
