"""Tests of complete runs by the frontend: real training, real crashes, hundreds of processes."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import ROOT, Process, free_port, needs_horovod, run
from rows import read_rows
from supervising import until

from launcher.supervise.json_files import read_json
from launcher.supervise.procfs import descendants

pytestmark = pytest.mark.slow


def test_the_frontend_starts_the_same_commands_as_a_user_by_hand(cluster):
    """The commands that a dry run prints, run in shells, train as the frontend's processes do."""
    port = free_port()
    rows = cluster.csv(f"learner,localhost,{port},{sys.executable}", "actor,localhost,,")
    flags = (rows, "--level_name=catch", "--stop_at_return=2", "--total_environment_frames=40000")
    assert cluster.run(*flags, f"--logdir={cluster.logdir}")[0] == 0
    by_hand = cluster.folder / "by hand"
    code, printed = cluster.run(*flags, "--dry_run", f"--logdir={by_hand}")
    assert code == 0, printed
    learner, actor = (
        line.replace(f"--token_file={cluster.state}/token", "")
        for line in printed.splitlines()
        if not line.startswith("#")
    )
    acting = Process("bash", "-c", f"exec env {actor}", **cluster.environment)
    assert run("bash", "-c", f"exec env {learner}", **cluster.environment)[0] == 0
    acting.kill()
    differs = {"logdir", "token_file", "origins"}
    commands, settings, counts = [], [], []
    for folder in (cluster.logdir, by_hand):
        start = json.loads((folder / "starts.jsonl").read_text())
        arguments = shlex.split(start["command"])
        commands.append([a for a in arguments if "token_file" not in a and str(folder) not in a])
        written = json.loads((folder / "settings.json").read_text())
        settings.append({n: v for n, v in written.items() if n not in differs})
        rows = read_rows(folder)
        counts.append({row["frames"] / row["updates"] for row in rows if row["updates"]})
    assert len(commands[0]) > 4
    assert commands[0] == commands[1]
    assert settings[0] == settings[1]
    assert counts[0] == counts[1] == {8 * 18}, "two of 20 steps of Catch are resets"


@needs_horovod
def test_crashed_learners_resume_while_actors_wait_and_so_do_those_of_a_killed_supervisor(cluster):
    rows = cluster.csv(
        *[f"learner,localhost,{free_port()}," for _ in range(2)], *["actor,localhost,,"] * 2
    )
    flags = ("--level_name=catch", "--stop_at_return=2", "--save_checkpoint_secs=3")
    frontend = cluster.start(rows, *flags, "--restart_learners")
    frontend.until(r"checkpoint at update", 90)
    frontend.until(r"checkpoint at update", 30)
    actors = [cluster.state / name / "state.json" for name in ("actor-0", "actor-1")]
    before = [read_json(path)["process"] for path in actors]
    state = cluster.state / "learners" / "state.json"
    mpirun = read_json(state)["process"][0]
    rank = next(pid for pid in descendants(mpirun) if "--job_name=learner" in _command(pid))
    os.kill(rank, signal.SIGKILL)
    frontend.until(r"learners on localhost failed: .*\n(.*\n)*  it will be restarted in 0.5 s", 20)
    frontend.until(r"resumed at [1-9][\d,]* frames", 60)
    frontend.until(r"checkpoint at update", 60)
    assert [read_json(path)["process"] for path in actors] == before
    os.kill(read_json(state)["supervisor"][0], signal.SIGKILL)
    frontend.until("the learners on this machine are not running any more: restarting", 20)
    frontend.until(r"resumed at [1-9][\d,]* frames", 90)
    frontend.until(r"checkpoint at update", 90)
    until(lambda: {p["state"] for p in cluster.status()["processes"]} == {"running"}, 30)
    frontend.interrupt()
    last = read_rows(cluster.logdir)[-1]
    newest = sorted((cluster.logdir / "checkpoints").iterdir())[-1]
    assert json.loads((newest / "about.json").read_text())["updates"] == last["updates"]


@needs_horovod
def test_the_documented_command_of_the_predecessor_works_unchanged(cluster):
    """Only the ports of its CSV are others here, since a run of somebody else may listen there."""
    pytest.importorskip("ale_py")
    written = (ROOT / "sandbox" / "local_workers_example.csv").read_text()
    csv = cluster.folder / "workers.csv"
    csv.write_text(re.sub(r"\b800\d\b", lambda _: str(free_port()), written))
    flags = (
        *(f"--workers_csv_path={csv}", "--seed=1"),
        *("--level_name=BreakoutNoFrameskip-v4", "--agent_name=SimpleConvNetAgent"),
        *("--num_action_repeats=1", "--batch_size=32", "--unroll_length=20"),
        *("--entropy_cost=0.01", "--learning_rate=0.0006", "--reward_clipping=abs_one"),
        *("--total_environment_frames=200000000", "--gradients_clipping=40.0"),
    )
    frontend = cluster.start(*flags)
    frontend.until(r"note: \S*workers.csv: row 4: tf_port 9001 is not used")
    frontend.until(r"[1-9][\d,]* frames \| [1-9]", 180)
    assert {p["name"] for p in cluster.status()["processes"]} == {
        *("learners", "actor-0", "actor-1", "actor-2"),
    }
    frontend.interrupt(90)
    assert "mean return" in frontend.printed() or "no finished episodes" in frontend.printed()


def test_three_hundred_processes_are_started_and_ended_in_less_than_three_hundred_times_one(
    cluster,
):
    seconds = {}
    for actors in (1, 300):
        rows = cluster.csv(
            f"learner,localhost,{free_port()},{cluster.program},",
            f"actor,localhost,,{cluster.program},{actors}",
            columns="job,ip,tf_port,python,count",
        )
        begin = time.monotonic()
        assert cluster.start(rows, "--detach").wait(100) == 0
        until(lambda: cluster.process(f"actor-{actors - 1}"), 100)  # noqa: B023
        seconds[actors] = time.monotonic() - begin
        assert cluster.run("--stop")[0] == 0
        mark = f"{cluster.logdir}"
        assert not [path for path in Path("/proc").glob("[0-9]*") if mark in _command(path.name)]
        shutil.rmtree(cluster.logdir)
    assert seconds[300] < 150 * seconds[1]


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
