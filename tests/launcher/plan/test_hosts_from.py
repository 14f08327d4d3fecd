"""Tests of rows that are made from the environment of SkyPilot, dstack and Slurm."""

import os
import signal
import subprocess
import sys

import pytest
from processes import ROOT

from launcher.commands import dispatch
from launcher.plan import hosts_from
from launcher.plan.request import Request, UserError, read_workers
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import read
from launcher.supervise.errors import LauncherError

_SKY = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3", "SKYPILOT_NODE_RANK": "0"}
_DSTACK = {"DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2", "DSTACK_NODE_RANK": "1"}
_SLURM = {"SLURM_NODELIST": "gpu[07,09-10],cpu1", "SLURM_PROCID": "0"}


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """Have 12 cores, and no program of Slurm's nor a variable of a launcher of machines."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("PATH", "/nowhere")
    for name in [n for n in os.environ if n.startswith(("SKYPILOT_", "DSTACK_", "SLURM_"))]:
        monkeypatch.delenv(name)


def _rows(environment):
    return [(r.job, r.ip, r.cuda_visible_devices, r.count) for r in hosts_from.rows(environment)]


def test_learners_on_the_first_machine_and_an_actor_for_each_other_core(tmp_path):
    gpus = _SKY | {"SKYPILOT_NUM_GPUS_PER_NODE": "2"}
    assert _rows(gpus) == [
        ("learner", "10.0.0.1", "0", 1),
        ("learner", "10.0.0.1", "1", 1),
        ("actor", "10.0.0.1", "", 4),
        ("actor", "10.0.0.2", "", 12),
        ("actor", "10.0.0.3", "", 12),
    ]
    assert _rows(gpus | {"SKYPILOT_NUM_GPUS_PER_NODE": "4"})[4] == ("actor", "10.0.0.2", "", 12)
    assert _rows(_DSTACK | {"DSTACK_GPUS_PER_NODE": "0"}) == [
        ("learner", "10.0.0.1", "", 1),
        ("actor", "10.0.0.1", "", 8),
        ("actor", "10.0.0.2", "", 12),
    ]
    one = {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0"}
    assert _rows(one | {"SKYPILOT_NUM_GPUS_PER_NODE": "8"})[-1] == ("actor", "10.0.0.1", "", 1)
    # What is printed is a CSV of the same rows.
    path = tmp_path / "workers.csv"
    path.write_text(hosts_from.describe(hosts_from.rows(gpus)))
    assert read(str(path))[0] == hosts_from.rows(gpus)


def test_the_nodes_and_cores_of_a_slurm_job(monkeypatch, tmp_path):
    names = ["gpu07", "gpu09", "gpu10", "cpu1"]
    cores = {"SLURM_JOB_CPUS_PER_NODE": "8(x3),64", "SLURM_GPUS_ON_NODE": "1"}
    assert _rows(_SLURM | cores) == [
        ("learner", "gpu07", "0", 1),
        ("actor", "gpu07", "", 4),
        ("actor", "gpu09", "", 8),
        ("actor", "gpu10", "", 8),
        ("actor", "cpu1", "", 64),
    ]

    def nodes(text):
        return list(dict.fromkeys(ip for _, ip, *_ in _rows(_SLURM | {"SLURM_NODELIST": text})))

    assert nodes("a") == ["a"]
    assert nodes("a,b[1-2],c") == ["a", "b1", "b2", "c"]
    assert nodes("r[1-2]n[08-10]x") == [f"r{r}n{n}x" for r in (1, 2) for n in ("08", "09", "10")]
    # Slurm's own program is asked if it is there.
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho {' '.join(names[:2])}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert nodes("anything[1-9]") == names[:2]


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "no variable names the machines: SKYPILOT_NODE_IPS"),
        ({"DSTACK_NODES_IPS": "10.0.0.1"}, "DSTACK_NODE_RANK is not: dstack sets both"),
        ({"SLURM_NODELIST": "a"}, "SLURM_PROCID is not: Slurm sets both"),
        (_SKY | {"SKYPILOT_NODE_IPS": " \n"}, "SKYPILOT_NODE_IPS is empty"),
        (_SKY | {"SKYPILOT_NODE_RANK": "one"}, "SKYPILOT_NODE_RANK=one is not a whole number"),
        (_SKY | {"SKYPILOT_NUM_GPUS_PER_NODE": "0.5"}, "=0.5 is not a whole number"),
        (_SKY | {"SKYPILOT_NODE_RANK": "3"}, "SKYPILOT_NODE_RANK=3, but SKYPILOT_NODE_IPS names 3"),
        (_SKY | {"SKYPILOT_NODE_IPS": "a,b"}, "SKYPILOT_NODE_IPS: 'a,b' is not an address"),
        (_SKY | {"SKYPILOT_NODE_IPS": "-oProxyCommand=x"}, "'-oProxyCommand=x' is not an address"),
        (_SLURM | {"SLURM_GPUS_ON_NODE": "99999"}, "SLURM_GPUS_ON_NODE=99999: a machine has at"),
        (_SLURM | {"SLURM_NODELIST": "a[1-2"}, "SLURM_NODELIST=a[1-2 is no list of nodes"),
        (_SLURM | {"SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, "has 2 nodes, but SLURM_NODELIST has 4"),
    ],
)
def test_what_the_environment_lacks_is_one_sentence(environment, why, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    request = Request(LauncherConfig(hosts_from="environment", dry_run=True))
    with pytest.raises(LauncherError, match=r".") as failed:
        dispatch.main(request)
    assert why in str(failed.value)
    assert "\n" not in str(failed.value)


def test_rows_come_from_one_place(monkeypatch):
    for name, value in _SKY.items():
        monkeypatch.setenv(name, value)
    request = Request(LauncherConfig(hosts_from="environment"), given=["workers_csv_path"])
    with pytest.raises(UserError, match="give one"):
        read_workers(request)
    request = Request(LauncherConfig(hosts_from="environment", detach=True))
    with pytest.raises(UserError, match="--detach"):
        read_workers(request)


_WAIT = """
import sys
from launcher.commands import dispatch
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
sys.exit(dispatch.main(Request(LauncherConfig(hosts_from="environment"))))
"""


def test_other_machines_start_nothing(capsys, monkeypatch):
    monkeypatch.setenv("SKYPILOT_NODE_IPS", _SKY["SKYPILOT_NODE_IPS"])
    monkeypatch.setenv("SKYPILOT_NODE_RANK", "2")
    assert dispatch.main(Request(LauncherConfig(hosts_from="environment"))) == 0
    assert "machine 2: machine 0 starts" in capsys.readouterr().out
    # dstack ends a machine with its command, so that this waits for dstack to end it.
    how = {"cwd": ROOT, "env": os.environ | _DSTACK, "stdout": subprocess.PIPE, "text": True}
    for name in _SKY:
        del how["env"][name]
    with subprocess.Popen([sys.executable, "-u", "-c", _WAIT], **how) as waiting:
        assert "waits for dstack to end this one" in waiting.stdout.readline()
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(60) == 0
