"""Experiments as real processes: kills of every kind, and one that learns.

Learners and actors are stand-ins for experiment.py, but for the last test.
"""

import importlib.util
import json
import os
import re
import signal
import sys
import time

import pytest
from cluster import FRONTEND
from far_cluster import FarCluster
from processes import Process
from supervising import until

from launcher.supervise import file_lock
from launcher.supervise.json_files import read_json

SWEEP = """
total_environment_frames = 2000
level_name = "catch"
[axes]
learning_rate = [0.1, 0.3, 0.2]
[search]
at_once = 2
[needs]
actors = 1
"""

MEMBERS = """
level_name = "catch"
total_environment_frames = 1e6
learning_rate_schedule = "constant"
save_checkpoint_secs = 2
[axes]
learning_rate = {log_uniform = [1e-6, 1e-2]}
[search]
kind = "population"
trials = 2
exchange_frames = 1e5
share = 0.5
factors = [0.3, 3.0]
seed = 5
[needs]
actors = 1
"""


def journal(folder, event):
    """Return the rows of an event in an experiment's journal."""
    path = folder / "experiment.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [row for row in rows if row["event"] == event]


def test_an_experiment_survives_kills_of_its_process_and_of_a_trial(cluster):
    (cluster.folder / "sweep.toml").write_text(SWEEP)
    sweep = cluster.folder / "sweep"
    learner, actor = (f"{job},localhost,,{cluster.program}" for job in ("learner", "actor"))
    csv = cluster.csv(*[learner, actor] * 2)
    command = (
        f"--experiment={cluster.folder}/sweep.toml",
        f"--logdir={sweep}",
        csv,
        "--skip_check",
    )

    def start():
        return Process(*FRONTEND, *command, **cluster.environment, TOLD="trial")

    holds = [sweep / "trials" / name / "hold" for name in ("000", "001")]
    for hold in holds:
        hold.parent.mkdir(parents=True)
        hold.touch()
    first = start()
    first.until("trial 1 starts on localhost: learning_rate=0.3")
    learner = cluster.state.parent / "sweep-000" / "learners" / "state.json"
    until(lambda: read_json(learner).get("process"), 60)
    first.process.kill()
    first.wait(20)
    os.kill(read_json(learner)["process"][0], signal.SIGKILL)  # its supervisor restarts it
    code, printed = cluster.ask(*command, "--batch_size=3")
    assert code == 2
    assert "batch_size is 3 and was unset: undo the change" in printed
    second = start()
    until(lambda: read_json(learner).get("restarts") == 1, 60)
    until(lambda: file_lock.is_held(sweep / "experiment.lock"), 60)
    code, printed = cluster.ask(*command[:1], csv, f"--logdir={cluster.folder}/other")
    assert code == 2
    assert f"another experiment is running on this machine, in {sweep}" in printed
    for hold in holds:
        hold.unlink()
    assert second.wait(120) == 0, second.printed()
    assert len(journal(sweep, "started")) == 3, "trials that were running are not started again"
    assert {row["trial"]: row["score"] for row in journal(sweep, "ended")} == {
        0: 200.0,
        1: 600.0,
        2: 400.0,
    }
    assert "best: trial 1 with return 600.00" in second.printed()
    assert "learning_rate = 0.3" in (sweep / "trials" / "001" / "trial.toml").read_text()
    assert not list(cluster.state.parent.glob("*/run.json")), "no record of a trial is left"


@pytest.mark.slow
def test_ctrl_c_saves_all_trials_and_the_same_command_resumes_them(cluster):
    (cluster.folder / "sweep.toml").write_text(SWEEP)
    sweep = cluster.folder / "sweep"
    csv = cluster.csv(*[f"{job},localhost,,{cluster.program}" for job in ("learner", "actor")])
    command = (
        f"--experiment={cluster.folder}/sweep.toml",
        f"--logdir={sweep}",
        csv,
        "--skip_check",
    )
    impatient = Process(*FRONTEND, *command, **cluster.environment, TOLD="trial")
    metrics = sweep / "trials" / "000" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, 60)
    (metrics.parent / "hold").touch()
    impatient.process.send_signal(signal.SIGINT)
    impatient.until("saving and stopping trial 0")
    impatient.process.send_signal(signal.SIGINT)  # it does not wait, nor does the next command
    assert impatient.wait(60) == 130, impatient.printed()
    assert "when trials that are stopping have ended" in impatient.printed()
    first = Process(*FRONTEND, *command, **cluster.environment, TOLD="trial")
    first.until("trial 0 starts again")
    rows = metrics.read_text().count("\n")
    until(lambda: metrics.read_text().count("\n") > rows, 60)
    first.process.send_signal(signal.SIGINT)
    assert first.wait(60) == 130, first.printed()
    assert "the same command goes on" in first.printed()
    frames = journal(sweep, "stopped")[0]["frames"]
    assert frames > 1000
    (metrics.parent / "hold").unlink()
    rows = metrics.read_text().count("\n")
    second = Process(*FRONTEND, *command, **cluster.environment, TOLD="trial")
    assert second.wait(180) == 0, second.printed()
    again = [json.loads(line)["frames"] for line in metrics.read_text().splitlines()[rows:]]
    assert min(again[1:]) > frames or frames == 2000, "the first row is the start's"
    assert max(again) == 2000
    assert [row["trial"] for row in journal(sweep, "ended")] == [0, 1, 2]
    code, printed = cluster.ask(*command)
    assert code == 0
    assert "3 trials: 3 ended" in printed


@pytest.mark.slow
def test_trials_of_a_lost_host_go_on_elsewhere(lan):
    far = FarCluster(lan)
    laptop = lan.laptop
    laptop.path("/root/sweep.toml").write_text(SWEEP.replace("2000", "90000"))
    rows = [far.row(job, name) for name in ("learner1", "learner2") for job in ("learner", "actor")]
    command = (*FRONTEND, "--experiment=/root/sweep.toml", "--logdir=/root/sweep", far.csv(*rows))
    command += ("--skip_check", "--lost_secs=30", "--env", "TOLD=trial")
    running = laptop.start(*command)
    running.until(r"trial 1 starts on 10\.77\.1\.12", 60)
    sweep = laptop.path("/root/sweep")
    for name in ("000", "001"):
        metrics = sweep / "trials" / name / "metrics.jsonl"
        until(lambda path=metrics: path.exists() and path.read_text().count("\n") > 3, 90)
    hold = lan.learner1.path("/root/sweep/trials/000/hold")
    hold.touch()
    running.kill()
    frontends = [str(row["frontend"][0]) for row in journal(sweep, "started")]
    laptop.run("kill", "-9", *frontends)
    time.sleep(16)  # after which nobody has heard of a host
    running = laptop.start(*command)
    follows = sweep / "trials" / "000" / "frontend.log"
    until(lambda: "sweep-000: running" in follows.read_text(), 90)
    lan.trust(lan.jump)
    for name in ("sweep.toml", "workers.csv"):  # another experiment, of another frontend
        lan.jump.path(f"/root/{name}").write_text(laptop.path(f"/root/{name}").read_text())
    other = lan.jump.run(*FRONTEND, "--experiment=/root/sweep.toml", command[4], check=False)
    assert other.returncode == 2
    assert "has running trials of another experiment, /root/sweep of laptop" in other.stderr
    lan.learner2.cut()
    lan.learner2.kill_all()
    hold.unlink()
    running.until(r"10\.77\.1\.12.* cannot be reached: its trials go back to the queue", 120)
    running.until(r"trial 1 starts again on 10\.77\.1\.11", 200)
    assert running.wait(300) == 0, running.printed()
    assert re.search(r"trial 1 lost after [1-9][\d,]* frames", running.printed())
    assert sorted(row["trial"] for row in journal(sweep, "ended")) == [0, 1, 2]
    assert [row["trial"] for row in journal(sweep, "started")].count(0) == 1


@pytest.mark.slow
def test_members_of_two_hosts_exchange_weights(lan):
    """Real learners on hosts that share no files: a member goes on from the other one's checkpoint.

    The optimizer's new learning rate is the one that the exchange names.
    """
    far = FarCluster(lan, python=sys.executable)
    lan.laptop.path("/root/members.toml").write_text(MEMBERS)
    rows = [far.row(job, name) for name in ("learner1", "learner2") for job in ("learner", "actor")]
    command = (*FRONTEND, "--experiment=/root/members.toml", "--logdir=/root/members")
    running = lan.laptop.start(*command, far.csv(*rows), "--skip_check")
    assert running.wait(900) == 0, running.printed()
    folder = lan.laptop.path("/root/members")
    rows = [json.loads(line) for line in (folder / "population.jsonl").read_text().splitlines()]
    confirmed = [row for row in rows if row["event"] == "confirmed"]
    assert confirmed, (rows, running.printed())
    assert {row["host"] for row in journal(folder, "started")} == {"10.77.1.11", "10.77.1.12"}
    for member in ("000", "001"):
        assert (folder / "trials" / member / "metrics.jsonl").exists(), "results are copied here"


@pytest.mark.slow
def test_seeds_and_learning_rates_of_cartpole(cluster):
    (cluster.folder / "sweep.toml").write_text(
        'preset = "classic-ppo"\ntotal_environment_frames = 2e4\n'
        "[axes]\nlearning_rate = [1e-5, 1e-3]\nseed = [1, 2]\n[needs]\nactors = 1\n"
    )
    flags = (f"--experiment={cluster.folder}/sweep.toml", f"--logdir={cluster.folder}/sweep")
    running = Process(*FRONTEND, *flags, **cluster.environment)
    assert running.wait(900) == 0, running.printed()
    ended = {row["trial"]: row["score"] for row in journal(cluster.folder / "sweep", "ended")}
    assert sorted(ended) == [0, 1, 2, 3]
    assert min(ended[2], ended[3]) > 1.5 * max(ended[0], ended[1]), "the higher rate learns"


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="pip install wandb")
def test_trials_are_one_group_of_wandb(cluster):
    (cluster.folder / "grouped.toml").write_text(
        'level_name = "catch"\ntotal_environment_frames = 2000\n'
        "[axes]\nseed = [1, 2]\n[needs]\nactors = 1\n"
    )
    flags = (f"--experiment={cluster.folder}/grouped.toml", f"--logdir={cluster.folder}/all")
    tracked = ("--track=wandb", "--env=WANDB_MODE=offline")
    running = Process(*FRONTEND, *flags, *tracked, **cluster.environment)
    assert running.wait(600) == 0, running.printed()
    files = sorted(cluster.folder.glob("all/trials/*/wandb/offline-run-*/run-*.wandb"))
    assert [path.parents[2].name for path in files] == ["000", "001"]
    for path in files:  # which names a group, and neither the experiment nor its folder
        assert b"grouped" in path.read_bytes()
