"""Tests of `--fetch`, `--mirror_logdir` and the upload of a run's folder to another host."""

import dataclasses
import json
import os
import re
import signal
import sys
import time

import pytest
from folders import save, whole
from processes import ROOT

from launcher.supervise.run_registry import Record

_FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
_STATE = "/root/.local/state/impala_mm/runs/impala"
_THERE, _LOGS = "/root/there/run", "/root/.local/state/impala_mm/logs/impala-1"
_LEARNER, _ACTOR = "10.77.1.11", "10.77.1.21"


def _record(lan, **changes):
    """Write the record of a run of one learner and two actors to the laptop."""
    processes = [
        {"name": "learners", "place": _LEARNER, "log": f"{_THERE}/learners.log"},
        {"name": "actor-0", "place": _LEARNER, "log": f"{_THERE}/actor-0.log"},
        {"name": "actor-1", "place": _ACTOR, "log": f"{_LOGS}/actor-1.log"},
    ]
    record = Record(
        name="impala",
        id="1",
        time=time.time(),
        boot=lan.laptop.run("cat", "/proc/sys/kernel/random/boot_id").stdout.strip(),
        logdir="/root/run",
        socket="",
        processes=[
            each | {"job": "actor", "host": each["place"], "kind": {}} for each in processes
        ],
        flags={"logdir": _THERE, "learner_hosts": f"{_LEARNER}:8001"},
        learners=[],
        next_actor=2,
        targets={place: [place, "", "", "", ""] for place in (_LEARNER, _ACTOR)},
    )
    state = lan.laptop.path(_STATE)
    (state / "seen").mkdir(parents=True, exist_ok=True)
    lan.laptop.path("/root/run").mkdir(exist_ok=True)
    content = dataclasses.asdict(record) | changes
    (state / "run.json").write_text(json.dumps(content))
    return lan.laptop.path("/root/run")


def _make(lan):
    """Write the files of a run to its hosts."""
    there = lan.learner1.path(_THERE)
    save(there / "checkpoints" / "0000000100", os.urandom(3_000_000), 1.0)
    save(there / "checkpoints" / "0000000200", os.urandom(3_000_000), 2.0)
    (there / "metrics.jsonl").write_text('{"frames": 1}\n')
    (there / "learners.log").write_text("up\n")
    (there / "actor-0.log").write_text("an actor beside the learner\n")
    (there / "lock").write_text("7")
    logs = lan.actor1.path(_LOGS)
    logs.mkdir(parents=True)
    (logs / "actor-1.log").write_text("an actor elsewhere\n")
    (logs / "actor-1.log.1").write_text("what it said before\n")
    return there


def _fetch(lan, *flags, code=0):
    ran = lan.laptop.run(*_FRONTEND, "--fetch", *flags, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout


def test_fetch_downloads_new_files_from_every_host_and_prints_how_much(lan):
    here, there = _record(lan), _make(lan)
    said = _fetch(lan)
    assert re.search(rf"^{_LEARNER}: 12\.0 MB, \d files?, 2 checkpoints$", said, re.MULTILINE), said
    assert "\ndownload complete after " in said
    for name in ("metrics.jsonl", "learners.log", "actor-0.log"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert (here / "actor-1.log").read_text() == "an actor elsewhere\n"
    assert (here / "actor-1.log.1").read_text() == "what it said before\n"
    assert not (here / "lock").exists()
    assert len(list((here / "checkpoints").glob("[0-9]*"))) == 2
    assert whole(here)

    with (there / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 2}\n')
    _record(lan, targets={_LEARNER: [_LEARNER, "", "", "", ""], _ACTOR: [_ACTOR, "23", "", "", ""]})
    before = lan.laptop.bytes_received()
    said = _fetch(lan, code=1)
    assert lan.laptop.bytes_received() - before < 200_000, "nothing is transferred twice"
    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()
    assert f"error: {_ACTOR}: " in said
    assert "\ndownload incomplete after " in said


_PUSH = f"""
from pathlib import Path
from launcher.hosts.fetch import push_folder
from launcher.hosts.hosts import Hosts
from launcher.hosts.ssh_config import Target
from launcher.plan.settings import SshSettings
hosts = Hosts("impala", {{"learner2": Target("learner2", "", "", "", "")}}, SshSettings("", False))
assert not hosts.connect(print, {{host_id: [{sys.executable!r}] for host_id in hosts.targets}})
done = push_folder(hosts, "learner2", Path("/root/run"), "/root/there/run", print)
print(done.bytes, done.files, done.checkpoints)
hosts.close()
"""


def test_push_uploads_to_another_host_what_it_lacks(lan):
    here = lan.laptop.path("/root/run")
    save(here / "checkpoints" / "0000000100", os.urandom(1_000_000), 1.0)
    (here / "metrics.jsonl").write_text('{"frames": 1}\n')
    for expected in (r"2000\d{3} 1 1", "0 0 0"):
        ran = lan.laptop.run(sys.executable, "-c", _PUSH, env={"PYTHONPATH": str(ROOT)})
        *_, last = "", *ran.stdout.splitlines()  # slow hosts print lines of progress first
        assert re.fullmatch(expected, last), ran.stdout
    there = lan.learner2.path("/root/there/run")
    assert whole(there)
    assert (there / "checkpoints" / "0000000100").exists()
    assert (there / "metrics.jsonl").read_text() == '{"frames": 1}\n'


def test_checkpoints_of_another_run_replace_those_of_the_host_once(lan):
    """A member of a population has taken them; the host's own ones have higher numbers."""
    here, there = lan.laptop.path("/root/run"), lan.learner2.path("/root/there/run")
    save(here / "checkpoints" / "0000000100", os.urandom(1_000), 1.0)
    (here / "checkpoints" / "taken-1").touch()
    save(there / "checkpoints" / "0000000200", os.urandom(1_000), 1.0)
    script = _PUSH.replace("push_folder", "restore_if_missing").replace(
        "print(done.bytes, done.files, done.checkpoints)", "print(done)"
    )
    for expected in ("True", "False"):
        ran = lan.laptop.run(sys.executable, "-c", script, env={"PYTHONPATH": str(ROOT)})
        assert ran.stdout.split()[-1] == expected, ran.stdout
        assert sorted(p.name for p in (there / "checkpoints").iterdir()) == [
            "0000000100",
            "taken-1",
        ]
        assert whole(there)


@pytest.mark.slow
def test_the_last_checkpoint_is_mirrored_after_ctrl_c(lan):
    rows = f"job,ip,tf_port\nlearner,{_LEARNER},8001\nactor,{_ACTOR},\n"
    lan.laptop.path("/root/workers.csv").write_text(rows)
    run = lan.laptop.start(
        *(*_FRONTEND, "--workers_csv_path=/root/workers.csv", "--logdir=/root/run"),
        *("--level_name=catch", "--total_environment_frames=1e9", "--mirror_logdir"),
        "--skip_check",
    )
    run.until(r"[1-9][0-9,]* frames \|", 120)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(60) == 130, run.printed()
    here, there = lan.laptop.path("/root/run"), lan.learner1.path("/root/run")
    for name in ("metrics.jsonl", "learners.log", "learner.log", "settings.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    saved = [sorted(p.name for p in each.glob("checkpoints/*")) for each in (here, there)]
    assert saved[0] == saved[1] != []
    assert (here / "actor-0.log").exists()
    assert "mirroring" not in run.printed()
