"""The checks of one machine, run on this one: what its rows name must exist."""

import os
import sys

import pytest

from launcher.checks.machine import MachineChecks
from launcher.node import logind
from launcher.plan import process_plan
from launcher.plan.host_environment import local_installation
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts
from launcher.ssh.ssh_config import Settings


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Return a function that makes the checks of rows with these columns."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def _check(*columns, setup="", bind_address=""):
        rows = [Worker(i, "learner", "localhost", 8001, **each) for i, each in enumerate(columns)]
        config = LauncherConfig(setup=setup)
        hosts = Hosts("checked", {}, Settings())
        processes = process_plan.make_single_learners(
            rows, config, lambda row: local_installation(row, "")
        )
        return MachineChecks(hosts, "", processes, rows, config, bind_address)

    return _check


def _said(findings):
    return [(each.subject, each.message, each.remedy) for each in findings if each.ok is False]


def test_a_folder_a_python_and_a_set_up_that_do_not_exist_are_told_apart(check, tmp_path):
    (tmp_path / "file").touch()
    python = tmp_path / "python"  # it has no TensorFlow
    python.write_text("#!/bin/sh\necho python 3.11.2\n")
    python.chmod(0o755)
    rows = check(
        {"workdir": "/no/folder"},
        {"workdir": str(tmp_path / "file")},
        {"python": "/no/python"},
        {"python": "/no/python", "setup": "true"},
        {"python": sys.executable, "setup": "source /no/activate"},
        {"python": sys.executable, "setup": "exit 3"},
        {"python": str(python)},
    )
    folder = "create the folder, or correct workdir in the CSV"
    fix_python = "run `make setup` in the host's clone, or correct python in the CSV"
    fix_setup = "correct setup in the CSV, or --setup"
    failed = "the set-up commands failed (exit code"
    where = "/no/activate: No such file or directory"
    assert _said(rows.check_versions()) == [
        ("workdir", "/no/folder: No such file or directory", folder),
        ("workdir", f"{tmp_path}/file: Not a directory", folder),
        ("versions", "/no/python: No such file or directory", fix_python),
        (
            "versions",
            "/no/python: set-up: line 2: /no/python: No such file or directory",
            fix_python,
        ),
        ("setup", f"{failed} 1): set-up: line 1: {where}", fix_setup),
        ("setup", f"{failed} 3): no output", fix_setup),
        ("versions", f"{python}: TensorFlow is not installed", fix_python),
    ]
    assert _said(check({}, {"python": sys.executable}).check_versions()) == []
    assert _said(check({}, setup="exit 4").check_versions()) == [
        ("setup", f"{failed} 4): no output", fix_setup)
    ]


def test_gpus_that_do_not_exist_are_named(check, monkeypatch, tmp_path):
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho '0, GPU-8f2a-11'\necho '1, GPU-93bb-22'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    present = ("", "-1", "NoDevFiles", "0,1", "GPU-8f2a", "GPU-93bb-22,0", "MIG-1-2")
    found = check(*[{"cuda_visible_devices": each} for each in present]).check_gpus()
    assert [(each.ok, each.message) for each in found] == [(True, "2 found")]
    wrong = check({"cuda_visible_devices": "0,2"}, {"cuda_visible_devices": "GPU-1,GPU-93"})
    assert [each[:2] for each in _said(wrong.check_gpus())] == [
        ("GPUs", "the CSV names GPU 2, GPU-1, which does not exist")
    ]


def test_processes_that_systemd_would_end_at_the_logout_are_reported(check, monkeypatch, tmp_path):
    """The host has a stand-in for loginctl that answers as systemd's does."""
    monkeypatch.setattr(logind, "_user", lambda: "anna")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def host(kills, excluded="root", only="", lingers="no"):
        for program, line in {
            "loginctl": f"case $2 in anna) echo Linger={lingers};; --property=KillUserProcesses) "
            f"echo KillUserProcesses={kills}; echo KillOnlyUsers={only}; "
            f"echo KillExcludeUsers={excluded};; esac",
            "systemd-run": "exit 0",
        }.items():
            (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / program).chmod(0o755)
        for function in (logind.ends_processes, logind.staying_command):
            function.cache_clear()
        return [(f.subject, f.ok, f.message, f.remedy) for f in check({}).check_logout()]

    reported = [
        (
            *("logout", None),
            "systemd ends all processes of the user at the logout (KillUserProcesses=yes)",
            "run `loginctl enable-linger` on the host, or set KillUserProcesses=no",
        )
    ]
    assert host("no") == []
    assert logind.staying_command() == []
    assert host("yes") == reported
    assert host("yes", excluded="root anna") == []
    assert host("yes", only="bob") == []
    assert host("no", only="'bob anna'") == reported, "the lists override it"
    assert host("yes", lingers="yes") == []
    assert logind.staying_command() == ["systemd-run", "--user", "--scope", "--quiet", "--"]
    (tmp_path / "loginctl").unlink()
    logind.ends_processes.cache_clear()
    logind.staying_command.cache_clear()
    assert logind.staying_command() == [], "there is no systemd"
    logind.ends_processes.cache_clear()
    logind.staying_command.cache_clear()


@pytest.mark.parametrize(
    ("bind_address", "asked"),
    [("", "localhost:8001"), ("0.0.0.0:8001", "0.0.0.0:8001"), ("[::]:0", "[::]:8001")],
)
def test_a_learners_port_is_tried_where_it_will_listen(check, bind_address, asked):
    """Behind a router, its own machine does not have the address in the CSV."""
    tried = []
    (found,) = check({}, bind_address=bind_address).check_ports(tried.append)
    assert (found.ok, tried) == (True, [asked])
