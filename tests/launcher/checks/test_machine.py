"""The checks of one machine, run on this one: what its rows name must exist."""

import dataclasses
import os
import sys

import pytest

from impala_mm.config.registry import Registry
from launcher.checks import machine, preflight
from launcher.checks.check import Check, PlannedRun, Scope, failed, passed
from launcher.hosts.hosts import Hosts
from launcher.plan.host_environment import local_installation
from launcher.plan.settings import LauncherConfig, SshSettings
from launcher.plan.workers_csv import Worker
from launcher.supervise import programs


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Return a function that makes this machine, as a host of rows with these columns."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(*columns, setup="", bind_address=""):
        rows = [Worker(i, "learner", "localhost", 8001, **each) for i, each in enumerate(columns)]
        run = PlannedRun(
            workers=rows,
            processes=[],
            installation_of=lambda row: local_installation(row, ""),
            hosts=Hosts("checked", {}, SshSettings()),
            unreached={},
            config=LauncherConfig(setup=setup),
            flags={"bind_address": bind_address},
            logdir=tmp_path,
        )
        (only,) = run.reached_hosts
        return only

    return make


def _said(findings):
    return [(each.subject, each.message, each.remedy) for each in findings if each.ok is False]


def test_a_folder_a_python_and_a_set_up_that_do_not_exist_are_told_apart(host, tmp_path):
    (tmp_path / "file").touch()
    python = tmp_path / "python"  # it has no TensorFlow
    python.write_text("#!/bin/sh\necho python 3.11.2\n")
    python.chmod(0o755)
    rows = host(
        {"workdir": "/no/folder"},
        {"workdir": str(tmp_path / "file")},
        {"python": "/no/python"},
        {"python": "/no/python", "setup": "true"},
        {"python": sys.executable, "setup": "source /no/activate"},
        {"python": sys.executable, "setup": "exit 3"},
        {"python": str(python)},
    )
    expected = [
        ("workdir", "/no/folder: No such file or directory", "correct workdir in the CSV"),
        ("workdir", f"{tmp_path}/file: Not a directory", "correct workdir in the CSV"),
        ("", "/no/python: No such file or directory", "correct python in the CSV"),
        ("", "/no/python: No such file or directory", "correct python in the CSV"),
        ("setup", "/no/activate: No such file or directory", "correct setup in the CSV"),
        ("setup", "failed (exit code 3): no output", "correct setup in the CSV"),
        ("", f"{python}: TensorFlow is not installed", "correct python in the CSV"),
    ]
    for found, (subject, message, remedy) in zip(
        _said(machine.check_versions(rows)), expected, strict=True
    ):
        assert found[0] == subject
        assert found[1].endswith(message)
        assert remedy in found[2]
    assert _said(machine.check_versions(host({}, {"python": sys.executable}))) == []
    ((subject, message, _),) = _said(machine.check_versions(host({}, setup="exit 4")))
    assert subject == "setup"
    assert "(exit code 4)" in message


def test_gpus_that_do_not_exist_are_named(host, monkeypatch, tmp_path):
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho '0, GPU-8f2a-11'\necho '1, GPU-93bb-22'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    present = ("", "-1", "NoDevFiles", "0,1", "GPU-8f2a", "GPU-93bb-22,0", "MIG-1-2")
    found = machine.check_gpus(host(*[{"cuda_visible_devices": each} for each in present]))
    assert [(each.ok, each.message) for each in found] == [(True, "2 found")]
    wrong = host({"cuda_visible_devices": "0,2"}, {"cuda_visible_devices": "GPU-1,GPU-93"})
    assert [each[:2] for each in _said(machine.check_gpus(wrong))] == [
        ("", "the CSV names GPU 2, GPU-1, which does not exist")
    ]


def test_processes_that_systemd_would_end_at_the_logout_are_reported(host, monkeypatch, tmp_path):
    """The host has a stand-in for loginctl that answers as systemd's does."""
    monkeypatch.setattr(programs, "_user", lambda: "anna")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def report(kills, excluded="root", only="", lingers="no"):
        for program, line in {
            "loginctl": f"case $2 in anna) echo Linger={lingers};; --property=KillUserProcesses) "
            f"echo KillUserProcesses={kills}; echo KillOnlyUsers={only}; "
            f"echo KillExcludeUsers={excluded};; esac",
            "systemd-run": "exit 0",
        }.items():
            (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / program).chmod(0o755)
        programs.staying_command.cache_clear()
        return [found.ok for found in machine.check_logout(host({}))]

    assert report("no") == []
    assert programs.staying_command() == []
    assert report("yes") == [None]
    assert report("yes", excluded="root anna") == []
    assert report("yes", only="bob") == []
    assert report("no", only="'bob anna'") == [None], "the lists override it"
    assert report("yes", lingers="yes") == []
    assert programs.staying_command() == ["systemd-run", "--user", "--scope", "--quiet", "--"]
    (tmp_path / "loginctl").unlink()
    programs.staying_command.cache_clear()
    assert programs.staying_command() == [], "there is no systemd"
    programs.staying_command.cache_clear()


@pytest.mark.parametrize(
    ("bind_address", "asked"),
    [("", "localhost:8001"), ("0.0.0.0:8001", "0.0.0.0:8001"), ("[::]:0", "[::]:8001")],
)
def test_a_learners_port_is_tried_where_it_will_listen(host, monkeypatch, bind_address, asked):
    """Behind a router, its own machine does not have the address in the CSV."""
    tried = []
    monkeypatch.setattr(machine.ports, "check_free", tried.append)
    (found,) = machine.check_ports(host({}, bind_address=bind_address))
    assert (found.ok, tried) == (True, [asked])


def test_checks_between_hosts_wait_until_all_others_passed(host, monkeypatch):
    """A failed check of the run leaves out those that fill the network."""
    called = []
    run = host({}).run
    far = Worker(9, "actor", "far")
    run = dataclasses.replace(
        run,
        workers=[*run.workers, far],
        installation_of=lambda row: local_installation(row, "")._replace(
            host_id="far" if row is far else ""
        ),
    )
    for verdict, asked in ((failed("no"), ["run"]), (passed("yes"), ["run", "between"])):
        ours = Registry("check of hosts")
        for subject, scope in (("between", Scope.BETWEEN_HOSTS), ("run", Scope.RUN)):
            ours.register(
                subject, Check(scope, lambda _, s=subject, v=verdict: called.append(s) or [v])
            )
        monkeypatch.setattr(preflight, "CHECKS", ours)
        called.clear()
        findings = preflight.check_run(run)
        assert called == [finding.subject for finding in findings] == asked
