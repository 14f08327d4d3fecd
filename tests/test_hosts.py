"""Tests of the hosts that the SSH tests use: they are separate like real ones, and are removed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hosts
import pytest
from hosts import Lan
from processes import ROOT, Process
from supervising import until

pytestmark = pytest.mark.slow


def _by_password(lan, password, *command):
    """Run ssh to actor2 with a password, as a user who types it."""
    types = lan.laptop.path("/root/types")
    types.write_text('#!/bin/sh\nprintf "%s\\n" "$TYPED"\n')
    types.chmod(0o700)
    env = {"SSH_ASKPASS": "/root/types", "SSH_ASKPASS_REQUIRE": "force", "TYPED": password}
    flags = ("-oNumberOfPasswordPrompts=1", "actor2")
    return lan.laptop.run("ssh", *flags, *command, check=False, env=env)


def _answers_nothing(lan, *words):
    """Return whether a connection from the laptop is neither accepted nor refused."""
    ran = lan.laptop.run("ssh", "-oConnectTimeout=1", *words, "true", check=False)
    return ran.returncode == 255 and "timed out" in ran.stderr


def test_every_host_answers_the_laptops_ssh_under_a_name_of_its_own(lan):
    asked = {
        name: lan.laptop.start("ssh", "-oBatchMode=yes", name, "hostname; cat /etc/machine-id")
        for name, host in lan.hosts.items()
        if host.port and not host.password
    }
    assert len(asked) == 5
    ids = set()
    for name, process in asked.items():
        assert process.wait(20) == 0, process.printed()
        said, machine_id = process.printed().split()
        assert said == name
        ids.add(machine_id)
    assert len(ids) == 5

    ran = _by_password(lan, lan.actor2.password, "hostname; id -un; pwd")
    assert ran.stdout.split() == ["actor2", "trainer", "/home/trainer"], ran.stderr
    assert "Permission denied" in _by_password(lan, "tell", "hostname").stderr
    assert "Permission denied" in lan.laptop.run("ssh", "actor2", "true", check=False).stderr
    # Hosts are reachable by address, too, and see the project at the same path.
    project = f"cd {ROOT} && {sys.executable} -c 'import launcher.plan'"
    assert lan.laptop.run("ssh", lan.actor3.address, project).returncode == 0
    assert _by_password(lan, lan.actor2.password, project).returncode == 0


def test_actor3_is_behind_the_jump_host_and_can_reach_the_learners(lan):
    assert _answers_nothing(lan, "-oProxyJump=none", "actor3")
    assert _answers_nothing(lan, "10.77.1.99")
    for learner in (lan.learner1, lan.learner2):
        listens = "import socket; s = socket.create_server(('', 8001)); print('up', flush=True)"
        serving = learner.start(sys.executable, "-c", f"{listens}; print(s.accept()[1])")
        serving.until("up")
        dials = f"import socket; socket.create_connection(('{learner.name}', 8001), 5)"
        lan.actor3.run(sys.executable, "-c", dials)
        serving.until(lan.actor3.address)
    assert lan.learner2.run("getent", "hosts", "learner2").stdout.split()[0] == "127.0.1.1"
    assert lan.actor1.run("getent", "hosts", "learner2").stdout.split()[0] == lan.learner2.address


def test_a_cut_cable_is_silent_and_can_be_restored(lan):
    stream = lan.laptop.start("ssh", "learner1", "while echo tick; do sleep 0.05; done")
    stream.until("tick")
    lan.learner1.cut()
    time.sleep(0.3)
    stream.skip()
    assert _answers_nothing(lan, "learner1")
    assert stream.printed().endswith("tick\n")
    before = len(stream.printed())
    time.sleep(0.5)
    assert len(stream.printed()) == before
    assert stream.process.poll() is None, "ssh does not notice the cut"
    lan.learner1.restore()
    stream.until("tick", 20)
    lan.laptop.run("ssh", "learner1", "true")


def test_a_power_cut_ends_all_processes_of_a_host_and_keeps_its_disk(lan):
    host = lan.learner1
    first = host.run("cat", "/proc/sys/kernel/random/boot_id").stdout
    lan.laptop.run("ssh", "learner1", "echo kept >file; echo lost >/dev/shm/file")
    hung = lan.laptop.start("ssh", "learner1", "setsid sleep 1234 & sleep 1234")
    until(lambda: sum("sleep 1234" in line for line in host.processes()) >= 2)
    namespace = f"/proc/{host._pid}/ns/pid"
    host.kill_all()
    assert not Path(namespace).exists()
    assert _answers_nothing(lan, "learner1")
    assert hung.process.poll() is None, "no connection was closed"
    assert (host.home / "file").read_text() == "kept\n"
    host.boot()
    assert host.processes() == []
    assert lan.laptop.run("ssh", "learner1", "cat file; ls /dev/shm").stdout == "kept\n"
    assert host.run("cat", "/proc/sys/kernel/random/boot_id").stdout != first


def test_what_crosses_a_hosts_cable_is_counted(lan):
    before = lan.learner1.bytes_received(), lan.laptop.bytes_sent(), lan.actor1.bytes_received()
    lan.laptop.run("sh", "-c", "head -c 2000000 /dev/zero | ssh learner1 'cat >/dev/null'")
    after = lan.learner1.bytes_received(), lan.laptop.bytes_sent(), lan.actor1.bytes_received()
    got, sent, others = (b - a for a, b in zip(before, after, strict=True))
    assert 2_000_000 < got < 3_000_000
    assert 2_000_000 < sent < 3_000_000
    assert others < 100_000


def test_hosts_share_only_the_folders_that_are_named(tmp_path):
    if reason := hosts.why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    seen = {
        path: Path(path).read_bytes() for path in ("/etc/hosts", "/etc/passwd", "/etc/hostname")
    }
    with Lan(shared=[tmp_path]) as lan, Lan() as other:
        one, another = lan.learner1, lan.learner2
        for path in (
            "/tmp/of-one",
            "/root/of-one",
            "/run/of-one",
            "/dev/shm/of-one",
            "/home/of-one",
        ):
            one.run("touch", path)
            assert another.run("ls", path, check=False).returncode == 2, path
            assert not Path(path).exists()
        assert one.path("/tmp/of-one").exists()
        one.run("touch", tmp_path / "shared")
        another.run("ls", tmp_path / "shared")
        assert (tmp_path / "shared").exists()
        assert "Read-only" in one.run("touch", ROOT / "file", check=False).stderr
        # The other LAN has the same addresses, but is separate.
        assert other.learner1.address == one.address
        assert other.learner1.run("ls", "/tmp/of-one", check=False).returncode == 2
        assert other.learner1.run("ls", tmp_path, check=False).returncode == 2
        one.cut()
        other.laptop.run("ssh", "learner1", "true")
        for path, content in seen.items():
            assert Path(path).read_bytes() == content
        assert str(one.root.parent) not in Path("/proc/mounts").read_text()
    assert not any(Path(path).exists() for path in (lan.laptop.root, other.laptop.root))


def test_a_host_has_terminals_and_tmux(lan):
    lan.laptop.run("ssh", "learner1", "tmux new-session -d -s run -n window 'tty; exec sleep 60'")
    shows = "tmux capture-pane -p -t run:window"
    until(lambda: "/dev/pts/" in lan.laptop.run("ssh", "learner1", shows).stdout)
    assert "No such file" in lan.learner2.run("tmux", "ls", check=False).stderr
    assert _by_password(lan, lan.actor2.password, "tmux new-session -d 'sleep 60'").returncode == 0
    until(lambda: "sleep 60" in lan.actor2.processes())
    assert "/dev/pts/" in lan.laptop.run("ssh", "-tt", "learner1", "tty").stdout


def test_a_program_on_a_host_receives_signals_and_has_a_timeout(lan):
    traps = "trap 'echo told; exit 7' INT; echo $LEVEL up; while :; do sleep 0.05; done"
    program = lan.laptop.start("sh", "-c", traps, LEVEL="catch")
    program.until("catch up")
    program.process.send_signal(signal.SIGINT)
    assert program.wait(10) == 7
    program.until("told")
    with pytest.raises(subprocess.TimeoutExpired):
        lan.laptop.run("sh", "-c", "sleep 1234 & sleep 1234", timeout=0.5)
    with pytest.raises(AssertionError, match="on laptop exited with code 3:\nwhy"):
        lan.laptop.run("sh", "-c", "echo why; exit 3")
    until(lambda: lan.laptop.processes() == [])


def test_the_hosts_of_a_killed_test_end_and_the_next_test_removes_their_disks():
    if reason := hosts.why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    code = (
        "import hosts, time; lan = hosts.Lan(); lan.laptop.start('sleep', '1234'); "
        "print(*(h._pid for h in lan.hosts.values()), lan._switch.pid, lan._folder); time.sleep(99)"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    killed = Process(sys.executable, "-uc", code, PYTHONPATH=path)
    *pids, folder = killed.until("(.*)\n")[1].split()
    assert len(pids) == 8
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    killed.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    os.utime(folder, (1, 1))
    hosts._remove_leftovers()
    assert not Path(folder).exists()


@pytest.mark.parametrize("lacks", ["root", "sshd", "namespaces"])
def test_why_hosts_cannot_be_created_is_reported(lacks, monkeypatch):
    if lacks == "root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "need root" in hosts.why_not.__wrapped__()
        return
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    there = "" if lacks == "sshd" else "/bin/false"
    monkeypatch.setattr(shutil, "which", lambda name, path: name != "sshd" or there)
    monkeypatch.setattr(hosts, "NAMESPACES", ("--no-such",))
    said = hosts.why_not.__wrapped__()
    assert (
        "not installed: openssh-server" if there == "" else "namespaces are unavailable: unshare"
    ) in said
