"""The frontend with real windows, supervisors and signals; most of its processes are stand-ins."""

import fcntl
import importlib.util
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from conftest import ROOT, Process, free_port, needs_horovod, run
from supervising import until

from launcher.config import LauncherConfig
from launcher.frontend import Asked, read_csv
from launcher.kernel import descendants, lives, started
from launcher.task import read_json

FRONTEND = (sys.executable, str(ROOT / "run_experiment_mm_raw.py"))
needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux here")
STRANGE = "a 'b\" $(c); d"


class Cluster:
    """A user of their own: with their own state folder, tmux server and CSV."""

    def __init__(self, folder):
        self.folder, self.logdir = folder, folder / STRANGE
        self.environment = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TMUX_TMPDIR": str(folder / "tmux"),
            "COLUMNS": "200",
        }
        (folder / "tmux").mkdir()
        self.state = folder / "state" / "impala_mm" / "runs" / "impala"
        self.program = folder / "stands-in"
        self.program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -uS {ROOT}/tests/standing_in.py "$@"\n'
        )
        self.program.chmod(0o755)

    def csv(self, *rows, columns="job,ip,tf_port,python"):
        """Written; a row without a Python has the stand-in."""
        path = self.folder / "workers.csv"
        path.write_text("\n".join([columns, *rows]) + "\n")
        return f"--workers_csv_path={path}"

    def rows(self, actors=2):
        """One learner and so many actors, stand-ins all."""
        learner = f"learner,localhost,{free_port()},{self.program}"
        return self.csv(learner, *[f"actor,localhost,,{self.program}"] * actors)

    def run(self, *flags, **env):
        """The frontend, to its end."""
        return run(*FRONTEND, *flags, cwd=self.folder, **self.environment | env)

    def start(self, *flags, **env):
        """The frontend, going on."""
        flags = ("--skip_check", f"--logdir={self.logdir}", *flags)
        return Process(*FRONTEND, *flags, **self.environment | env)

    def status(self, name=""):
        """As JSON; of one process, if it is named."""
        code, printed = self.run("--status", "--json")
        assert code == 0, printed
        known = json.loads(printed)
        return next(p for p in known["processes"] if p["name"] == name) if name else known

    def process(self, name):
        """[pid, start] of it, once it says that it is up."""
        log = self.logdir / f"{name}.log"
        until(lambda: log.exists() and "\nup\n" in log.read_text(), 20)
        return read_json(self.state / name / "state.json")["process"]

    def told(self, name):
        """What a stand-in was told."""
        self.process(name)
        return json.loads(
            re.search(r"^told (.*)$", (self.logdir / f"{name}.log").read_text(), re.MULTILINE)[1]
        )

    def tmux(self, *arguments):
        """What it answers."""
        ran = subprocess.run(
            ["tmux", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | self.environment,
        )
        return ran.stdout

    def end(self):
        """All of it, whatever it does."""
        self.run("--stop")
        if shutil.which("tmux"):
            self.tmux("kill-server")


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.end()


@needs_tmux
def test_a_run_has_a_window_for_each_process_and_ctrl_c_saves_and_stops_it(cluster):
    # A server that an earlier login left behind, with an environment of its own.
    subprocess.run(
        ["tmux", "new-session", "-d", "-s", "old", "sleep 60"],
        env=os.environ | cluster.environment | {"TOLD": "by the old server"},
        check=True,
    )
    frontend = cluster.start(cluster.rows(), "--env", "MORE=a 'b", "--seed=7", TOLD="by the user")
    frontend.until(r"impala: 3 processes started in .* s; all of it in .*\n.*Ctrl-C saves")
    told = {name: cluster.told(name) for name in ("learners", "actor-0", "actor-1")}
    for each in told.values():
        assert each["flags"]["logdir"] == str(cluster.logdir)
        assert each["flags"]["seed"] == "7"
        assert each["environment"]["TOLD"] == "by the user"
        assert each["environment"]["MORE"] == "a 'b"
        assert each["environment"]["TERM"].startswith(("tmux", "screen"))
    windows = cluster.tmux("list-windows", "-t", "impala", "-F", "#{window_name} #{pane_dead}")
    assert windows.splitlines() == ["learners 0", "actor-0 0", "actor-1 0"]
    frontend.until(r"\nup\n")
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.process.wait(20) == 130
    printed = frontend.printed()
    assert "the run saves and stops; Ctrl-C again ends it at once" in printed
    assert "got SIGUSR1" in printed, "what learners say is shown here"
    windows = cluster.tmux("list-windows", "-t", "impala", "-F", "#{window_name} #{pane_dead}")
    assert windows.splitlines() == ["learners 1", "actor-0 1", "actor-1 1"], "they are kept"
    assert "got SIGTERM" in cluster.tmux("capture-pane", "-p", "-t", "impala:actor-1")
    assert {p["state"] for p in cluster.status()["processes"]} == {"stopped"}
    assert cluster.tmux("has-session", "-t", "old") == ""


def test_from_another_terminal_a_run_is_seen_followed_and_stopped(cluster):
    rows = cluster.rows()
    frontend = cluster.start(rows)
    processes = [cluster.process(name) for name in ("learners", "actor-0", "actor-1")]
    code, printed = cluster.run(rows, "--skip_check")
    assert (code, printed.count("\n")) == (2, 1)
    assert "error: a run called impala goes on: --status shows it, --stop ends it" in printed

    os.kill(processes[1][0], signal.SIGKILL)
    killed = time.monotonic()
    while (known := cluster.status("actor-0"))["restarts"] < 1:
        assert time.monotonic() - killed < 5
    assert known["failure"]["why"] == "it was ended by SIGKILL"
    frontend.until(r"actor-0 on localhost failed: it was ended by SIGKILL\n", 5)
    until(lambda: cluster.status("actor-0")["state"] == "running")

    known = cluster.status()
    assert (known["name"], known["state"], known["logdir"]) == (
        *("impala", "running"),
        str(cluster.logdir),
    )
    assert (known["frames"], known["verdict"]) == (1000, "all is well")
    assert all(p["memory"] is not None for p in known["processes"] if p["up"] > 5)
    code, table = cluster.run("--status")
    assert code == 0
    assert "1,000 frames, 10/s" in table
    assert re.search(r"actor-0 +localhost +running .* 1  ", table)

    follower = Process(*FRONTEND, "--logs=actor-1", **cluster.environment)
    follower.until(r"told .*\nup\n")
    code, printed = cluster.run("--logs=actor-7")
    assert (code, printed) == (2, "error: --logs=actor-7: there are learners, actor-0, actor-1\n")

    code, printed = cluster.run("--stop")
    assert code == 0
    assert "the learners save and stop, then the others" in printed
    follower.until(r"got SIGTERM")
    assert follower.process.wait(10) == 0
    assert frontend.process.wait(10) == 0, "it ended, though not by its own doing"
    assert "got SIGUSR1" in (cluster.logdir / "learners.log").read_text()
    assert not any(map(lives, processes))
    assert not cluster.state.exists(), "and its secret with it"
    for flag in ("--stop", "--status", "--logs=learners"):
        assert cluster.run(flag) == (2, "error: there is no run called impala\n")


def test_the_first_error_of_each_process_is_shown_where_the_user_sits(cluster):
    frontend = cluster.start(cluster.rows(actors=1), "--max_restarts=1", TOLD="fail")
    frontend.until(
        r"actor-0 on localhost failed: it ended with exit code 1\n"
        r"    Traceback \(most recent call last\):\n(    .*\n)+"
        r"    ValueError: an actor that fails\n"
        r"  it starts again in 0\.5 s; its log: .*actor-0\.log\n",
        10,
    )
    frontend.until(
        r"actor-0 on localhost failed again: .*\n(    .*\n)+  it stays away, after 2", 10
    )


def test_a_run_goes_on_without_its_frontend_even_one_that_was_killed_while_it_started(cluster):
    rows = cluster.rows(actors=20)
    frontend = cluster.start(rows)
    until((cluster.state / "learners" / "state.json").exists)
    frontend.kill()
    learner = cluster.process("learners")
    assert cluster.status()["state"] == "running"
    code, printed = cluster.run("--stop")
    assert code == 0, printed
    assert not lives(learner)

    frontend = cluster.start(rows)
    frontend.until("Ctrl-C saves")
    learner = cluster.process("learners")
    frontend.process.send_signal(signal.SIGHUP)  # its terminal was closed
    assert frontend.process.wait(5) == 0
    assert "the run goes on: `python run_experiment_mm_raw.py --status` shows it" in (
        frontend.printed()
    )
    assert lives(learner)


def test_d_leaves_the_run_to_itself(cluster):
    ours, theirs = pty.openpty()
    frontend = subprocess.Popen(
        [*FRONTEND, cluster.rows(actors=1), "--skip_check", f"--logdir={cluster.logdir}"],
        env=os.environ | cluster.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - its own terminal
    )
    learner = cluster.process("learners")
    os.write(ours, b"d")
    assert frontend.wait(10) == 0
    assert b"the run goes on" in os.read(ours, 1 << 16)
    assert termios.tcgetattr(theirs)[3] & termios.ICANON, "the terminal is as it was"
    assert lives(learner)


@needs_tmux
def test_a_frontend_killed_at_any_moment_of_its_start_leaves_what_stop_can_end(cluster):
    rows = cluster.rows(actors=12)
    for after in (0.0, 0.02, 0.05, 0.1, 0.2):
        frontend = cluster.start(rows)
        until((cluster.state / "run.json").exists)
        time.sleep(after)
        frontend.kill()
        begin = time.monotonic()
        code, printed = cluster.run("--stop")
        assert code == 0, printed
        assert time.monotonic() - begin < 15
        assert not cluster.state.exists()
    assert "impala" not in cluster.tmux("list-sessions")


def test_two_who_stop_a_run_at_once_and_who_watches_it_agree(cluster):
    frontend = cluster.start(cluster.rows(actors=1))
    cluster.process("actor-0")
    stops = [Process(*FRONTEND, "--stop", **cluster.environment) for _ in range(2)]
    assert [each.process.wait(20) for each in (*stops, frontend)] == [0, 0, 0]
    assert "error" not in frontend.printed()


def test_it_needs_neither_an_input_nor_somebody_who_reads_to_the_end(cluster):
    command = shlex.join([*FRONTEND, cluster.rows(actors=1), "--skip_check"])
    environment = {**cluster.environment, "A": "1"}
    flag = shlex.quote(f"--logdir={cluster.logdir}")
    code, printed = run("bash", "-c", f"{command} {flag} <&- | head -1", **environment)
    assert (code, "Traceback" in printed) == (0, False)
    assert "2 processes started" in printed
    assert cluster.status("actor-0")["state"] in ("starting", "running")
    printed = run("bash", "-c", f"{command} --dry_run 2>&1 | head -1", **environment)[1]
    assert len(printed.splitlines()) == 1


@needs_tmux
def test_a_session_that_no_run_made_is_left_alone(cluster):
    environment = os.environ | cluster.environment
    subprocess.run(["tmux", "new-session", "-d", "-s", "impala"], env=environment, check=True)
    code, printed = cluster.run(cluster.rows(), "--skip_check", f"--logdir={cluster.logdir}")
    assert code == 2
    assert "error: tmux has a session called impala that no run made: --tmux_sess=NAME" in printed
    assert cluster.tmux("list-windows", "-t", "impala")


def test_without_horovod_the_example_is_one_learner_with_all_actors(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    asked = Asked(LauncherConfig(), [], {}, "", 20.0, None, None)
    assert [worker.job for worker in read_csv(asked)] == ["learner", "actor", "actor", "actor"]
    assert "there is no Horovod here (`make horovod` builds it): one learner trains" in (
        capsys.readouterr().out
    )
    named = asked._replace(given=["workers_csv_path"])
    assert [worker.job for worker in read_csv(named)].count("learner") == 2, "as it was asked for"


def test_what_a_reboot_left_behind_is_said_and_forgotten(cluster):
    cluster.start(cluster.rows(), "--detach").process.wait(20)
    cluster.process("actor-1")
    cluster.run("--stop")
    sleeping = subprocess.Popen(["sleep", "60"])
    record = {
        **{"name": "impala", "time": time.time() - 9, "boot": "another", "socket": ""},
        **{"logdir": str(cluster.logdir), "flags": {}, "learners": [], "next_actor": 0},
        "processes": [{"name": "learners", "job": "learner", "host": "localhost"}],
    }
    recorded = [sleeping.pid, started(sleeping.pid) + 1]  # its number came again
    state = {"name": "learners", "job": "learner", "host": "localhost", "state": "running"}
    (cluster.state / "learners").mkdir(parents=True)
    (cluster.state / "run.json").write_text(json.dumps(record))
    (cluster.state / "learners" / "state.json").write_text(
        json.dumps(state | {"supervisor": recorded, "process": recorded})
    )
    try:
        assert cluster.status()["state"] == "stale"
        code, printed = cluster.run("--stop")
        assert code == 0
        assert "impala ended when this machine did: it is forgotten; its folder is whole" in printed
        assert sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()
    assert cluster.start(cluster.rows(), "--detach").process.wait(20) == 0


def test_without_tmux_processes_run_in_the_background(cluster, tmp_path):
    beside = tmp_path / "bin"
    beside.mkdir()
    for tool in ("sh", "bash"):
        (beside / tool).symlink_to(shutil.which(tool))
    frontend = cluster.start(cluster.rows(actors=1), PATH=str(beside))
    frontend.until("there is no tmux here: the processes run in the background")
    actor = cluster.process("actor-0")
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.process.wait(20) == 130
    assert not lives(actor)


def test_actors_of_a_running_run_come_and_go_as_the_csv_has_them(cluster):
    learner = f"learner,localhost,{free_port()},{cluster.program},,"
    columns = "job,ip,tf_port,python,count,num_envs"
    plain, wide = (f"actor,localhost,,{cluster.program},{more}" for more in ("2,", "1,8"))
    rows = cluster.csv(learner, plain, columns=columns)
    assert cluster.start(rows, "--detach").process.wait(20) == 0
    first = [cluster.process(name) for name in ("actor-0", "actor-1")]
    cluster.csv(learner, f"actor,localhost,,{cluster.program},1,", wide, wide, columns=columns)
    code, printed = cluster.run(rows, "--apply", "--seed=9")
    assert code == 0, printed
    assert "note: --seed stays as it was when the run was started" in printed
    assert "impala: 2 actors added, 1 removed" in printed
    told = cluster.told("actor-3")["flags"]
    assert told == cluster.told("actor-0")["flags"] | {"task": "3", "num_envs": "8"}
    assert "seed" not in told
    until(lambda: cluster.status("actor-1")["state"] == "stopped")
    assert not lives(first[1])
    assert lives(first[0])
    states = {p["name"]: p["state"] for p in cluster.status()["processes"]}
    assert states.pop("actor-1") == "stopped"
    assert states == dict.fromkeys(["learners", "actor-0", "actor-2", "actor-3"], "running")
    cluster.csv(learner, plain, wide, wide, columns=columns)
    assert "impala: 1 actors added, 0 removed" in cluster.run(rows, "--apply")[1]
    cluster.process("actor-4")  # the number of one that was told to end is not used again
    cluster.csv(learner, f"learner,localhost,{free_port()},{cluster.program},,", columns=columns)
    code, printed = cluster.run(rows, "--apply")
    assert "note: learners cannot change while a run goes on" in printed
    assert "impala: 0 actors added, 4 removed" in printed
    assert cluster.run("--apply") == (
        *(2, "error: --apply needs the changed CSV: --workers_csv_path=PATH\n"),
    )


def test_a_dry_run_prints_every_command_those_of_other_hosts_included(cluster):
    rows = cluster.csv(
        "learner,localhost,8001,,",
        "actor,far.example,,,hunter2",
        columns="job,ip,tf_port,python,ssh_password",
    )
    (cluster.folder / "workers.csv").chmod(0o600)
    secrets = ("--env", "API_KEY=hunter2", "--env", "DB=postgres://u:hunter2@h")
    code, printed = cluster.run(rows, "--dry_run", *secrets, "--level_name=catch")
    assert code == 0
    assert "# learners on localhost, in " in printed
    assert "# actor-0 on far.example, in " in printed
    assert "hunter2" not in printed
    assert "--level_name=catch" in printed
    code, printed = cluster.run(rows, "--skip_check")
    assert code == 2
    assert "error: row 3: far.example is another host" in printed
    assert not (cluster.folder / "runs").exists()
    assert not cluster.state.exists()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (
            "--num_actors=3",
            "--num_actors is not for the frontend: the CSV has a row for each actor",
        ),
        ("--mode=test", "--mode=test is one process: give it to experiment.py itself"),
        ("--level_name=a\nb", "--level_name holds a line's end; no process can be told that"),
        ("--tmux_sess=a b", "--tmux_sess: 'a b' is no name: letters, digits, - and _ make one"),
        ("--apply", "there is no run called impala"),
        ("--env=SECRET hunter2", "--env=...: write NAME=value"),
    ],
)
def test_what_is_not_for_the_frontend_is_refused_in_a_sentence(cluster, flag, said):
    code, printed = cluster.run(cluster.rows(), flag)
    assert code == 2
    assert printed.startswith(f"error: {said}")
    assert "hunter2" not in printed
    assert len(printed.splitlines()) == 1


def test_before_it_starts_anything_it_checks_all_and_says_what_to_mend(cluster):
    """By itself with --check; of a start only what is not good is shown, and nothing started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        rows = cluster.csv(
            f"learner,localhost,{port},,0",
            "actor,localhost,,/no/python,",
            columns="job,ip,tf_port,python,cuda_visible_devices",
        )
        code, printed = cluster.run(rows, "--check", "--level_name=Pongg-v9")
        assert code == 1
        assert re.search(r"BAD +flags +.*Pongg-v9", printed)
        assert re.search(rf"BAD +ports +row 2: localhost:{port}: .* in use \(held by pro", printed)
        assert re.search(r"BAD +versions +/no/python: ", printed)
        assert re.search(r"good +disk +[\d,]+ GiB free", printed)
        assert "-> end what holds it, or name another tf_port in the CSV" in printed
        if not shutil.which("nvidia-smi"):
            assert re.search(r"BAD +GPUs +the CSV names GPU 0, and there is no nvidia", printed)
        code, printed = cluster.run(rows, "--level_name=catch")
    assert code == 1
    assert "nothing was started; --check shows all of it, --skip_check starts all" in printed
    assert "good  disk" not in printed
    assert not cluster.state.exists()
    assert not (cluster.folder / "runs").exists()


def test_the_checks_run_as_the_processes_will_after_their_set_up_in_their_folder(cluster):
    elsewhere = cluster.folder / "elsewhere"
    elsewhere.mkdir()
    learner = f"learner,localhost,{free_port()},{elsewhere}"
    rows = cluster.csv(learner, columns="job,ip,tf_port,workdir")
    setup = f'--setup=pwd > "{cluster.folder}/seen"; exit 3'
    code, printed = cluster.run(rows, "--check", setup, "--level_name=catch")
    assert code == 1
    assert re.search(r"BAD +flags", printed)
    assert (cluster.folder / "seen").read_text() == f"{elsewhere}\n"


@pytest.mark.slow
def test_by_the_frontend_is_as_by_hand(cluster):
    """What a dry run prints, pasted into shells, makes the run that the frontend makes."""
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
    acting = Process("bash", "-c", f"exec {actor}", **cluster.environment)
    assert run("bash", "-c", f"exec {learner}", **cluster.environment)[0] == 0
    acting.kill()
    commands, settings, counts = [], [], []
    for folder in (cluster.logdir, by_hand):
        start = json.loads((folder / "starts.jsonl").read_text())
        arguments = shlex.split(start["command"])
        commands.append([a for a in arguments if "token_file" not in a and str(folder) not in a])
        written = json.loads((folder / "settings.json").read_text())
        settings.append({n: v for n, v in written.items() if n not in ("logdir", "token_file")})
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        counts.append({row["frames"] / row["updates"] for row in rows if row["updates"]})
    assert len(commands[0]) > 4
    assert commands[0] == commands[1]
    assert settings[0] == settings[1]
    assert counts[0] == counts[1] == {8 * 18}, "of 20 steps of Catch two are resets"


@pytest.mark.slow
@needs_horovod
def test_learners_that_die_start_again_from_the_last_checkpoint_and_actors_wait(cluster):
    rows = cluster.csv(
        *[f"learner,localhost,{free_port()}," for _ in range(2)], *["actor,localhost,,"] * 2
    )
    flags = ("--level_name=catch", "--stop_at_return=2", "--save_checkpoint_secs=3")
    frontend = cluster.start(rows, *flags, "--restart_learners")
    frontend.until(r"checkpoint at update", 90)
    frontend.until(r"checkpoint at update", 30)
    actors = [cluster.state / name / "state.json" for name in ("actor-0", "actor-1")]
    before = [read_json(path)["process"] for path in actors]
    mpirun = read_json(cluster.state / "learners" / "state.json")["process"][0]
    rank = next(pid for pid in descendants(mpirun) if "--job_name=learner" in _command(pid))
    os.kill(rank, signal.SIGKILL)
    frontend.until(r"learners on localhost failed: .*\n(.*\n)*  it starts again in 0.5 s", 20)
    frontend.until(r"resumed at [1-9][\d,]* frames", 60)
    frontend.until(r"checkpoint at update", 60)
    assert [read_json(path)["process"] for path in actors] == before
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.process.wait(60) == 130
    last = json.loads((cluster.logdir / "metrics.jsonl").read_text().splitlines()[-1])
    newest = sorted((cluster.logdir / "checkpoints").iterdir())[-1]
    assert json.loads((newest / "about.json").read_text())["updates"] == last["updates"]


@pytest.mark.slow
def test_an_actor_that_hangs_counts_as_dead(cluster):
    rows = cluster.csv(f"learner,localhost,{free_port()},", *["actor,localhost,,"] * 2)
    frontend = cluster.start(rows, "--level_name=catch", "--stop_at_return=2", "--stall_secs=8")
    frontend.until(r"\d frames \|", 60)
    actor = read_json(cluster.state / "actor-0" / "state.json")["process"]
    os.kill(actor[0], signal.SIGSTOP)
    frontend.until(
        r"actor-0 on localhost failed: it hangs: nothing was heard from it for 8 s\n(.*\n)*"
        r"  it starts again",
        20,
    )
    until(lambda: cluster.status("actor-0")["state"] == "running")
    assert cluster.status("learners")["restarts"] == cluster.status("actor-1")["restarts"] == 0


@pytest.mark.slow
@needs_horovod
def test_the_predecessors_command_runs_as_it_was_printed(cluster):
    pytest.importorskip("ale_py")
    flags = (
        *("--workers_csv_path=sandbox/local_workers_example.csv", "--seed=1"),
        *("--level_name=BreakoutNoFrameskip-v4", "--agent_name=SimpleConvNetAgent"),
        *("--num_action_repeats=4", "--batch_size=32", "--unroll_length=20"),
        *("--entropy_cost=0.01", "--learning_rate=0.0006", "--reward_clipping=abs_one"),
        *("--total_environment_frames=200000000", "--gradients_clipping=40.0"),
    )
    frontend = cluster.start(*flags)
    frontend.until(r"note: sandbox/local_workers_example.csv: row 4: tf_port 9001 is not used")
    frontend.until(r"[1-9][\d,]* frames \| [1-9]", 180)
    assert {p["name"] for p in cluster.status()["processes"]} == {
        *("learners", "actor-0", "actor-1", "actor-2"),
    }
    frontend.process.send_signal(signal.SIGINT)
    assert frontend.process.wait(90) == 130
    assert "mean return" in frontend.printed() or "no games" in frontend.printed()


@pytest.mark.slow
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
        assert cluster.start(rows, "--detach").process.wait(100) == 0
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
