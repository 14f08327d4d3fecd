"""What the frontend does before it starts anything: dry runs, refusals and checks."""

import dataclasses
import importlib.util
import re
import shutil
import socket

import pytest
from processes import ROOT, free_port

from impala_mm.config.settings import Config
from launcher.plan.request import Request, read_workers
from launcher.plan.settings import LauncherConfig


def test_a_state_folder_that_cannot_be_written_is_reported_before_anything_else(cluster):
    (cluster.folder / "file").touch()
    state, rows = cluster.folder / "file" / "state", cluster.rows()
    code, printed = cluster.ask(rows, XDG_STATE_HOME=str(state))
    assert code == 2
    assert printed.startswith(f"error: {state}/impala_mm/runs cannot be written (Not a directory)")
    assert "set XDG_STATE_HOME=FOLDER" in printed
    assert not (cluster.folder / "runs").exists()
    assert cluster.ask(rows, "--dry_run", XDG_STATE_HOME=str(state))[0] == 0


def test_without_horovod_the_example_csv_is_one_learner_with_all_actors(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    asked = Request(LauncherConfig())
    assert [worker.job for worker in read_workers(asked)] == ["learner", "actor", "actor"]
    printed = capsys.readouterr().out
    assert "Horovod is not installed" in printed
    assert "levels" not in printed
    read_workers(Request(LauncherConfig(), Config(level_name="catch,memory,tmaze")))
    assert "2 actors play 2 of the 3 levels" in capsys.readouterr().out
    named = dataclasses.replace(asked, given=["workers_csv_path"])
    assert [worker.job for worker in read_workers(named)].count("learner") == 2, (
        "a CSV that the user names is not changed"
    )


def test_a_dry_run_prints_every_command_also_of_other_hosts(cluster):
    rows = cluster.csv(
        "learner,gpu.example,8001,,",
        "actor,far.example,,,hunter2",
        columns="job,ip,tf_port,python,ssh_password",
    )
    (cluster.folder / "workers.csv").chmod(0o600)
    secrets = ("--env", "API_KEY=hunter2", "--env", "DB=postgres://u:hunter2@h")
    code, printed = cluster.ask(rows, "--dry_run", *secrets, "--level_name=catch")
    assert code == 0
    assert "# learners on gpu.example, in " in printed
    assert "# actor-0 on far.example, in " in printed
    assert "hunter2" not in printed
    assert "--level_name=catch" in printed
    code, printed = cluster.run(rows, "--skip_check")
    assert code == 2
    assert "error: cannot reach the learners' host: gpu.example" in printed
    assert not (cluster.folder / "runs").exists()
    assert not cluster.state.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num_actors=3"], "--num_actors is not for the frontend"),
        (["--mode=test"], "--mode=test is one process: give it to `python experiment.py`"),
        (["--level_name=a\nb"], "--level_name contains a line break"),
        (["--tmux_sess=a b"], "--tmux_sess: 'a b' is not a valid name"),
        (["--apply"], "there is no run named impala"),
        (["--apply", "--dry_run"], "--dry_run and --apply are two commands"),
        (["--env=SECRET hunter2"], "--env=...: write NAME=value"),
        (["--deploy", "--wheelhouse=no"], "--wheelhouse=no: there is no such folder"),
        (["--stop_secs=inf"], "--stop_secs=inf: it must be at least "),
        (["--stall_secs=inf"], "--stall_secs=inf: it must be at least "),
        (["--orphan_secs=inf"], "--orphan_secs=inf: it must be at least "),
        (["--emit=pbs"], "--emit=pbs: there is no launcher to emit for 'pbs'"),
        (["--env=A=1\n2"], "--env=A: its value contains a line break"),
    ],
)
def test_flags_that_are_not_for_the_frontend_are_refused_in_one_line(cluster, flags, said):
    code, printed = cluster.ask(cluster.rows(), *flags)
    assert code == 2
    assert "hunter2" not in printed
    (line,) = [line for line in printed.splitlines() if not line.startswith("note: ")]
    assert line.startswith(f"error: {said}")


def test_a_learner_that_other_hosts_cannot_reach_is_refused(cluster):
    rows = cluster.csv("learner,localhost,8001,", "actor,far.example,,")
    code, printed = cluster.ask(rows, "--dry_run")
    assert code == 2
    assert "row 2: hosts of other rows cannot reach a learner at localhost" in printed


def test_checks_before_a_start_print_how_to_fix_each_failure(cluster):
    """`--check` prints all results, a start prints only failures and starts no process.

    A module of --import adds its own checks to ours.
    """
    shutil.copy(ROOT / "sandbox" / "own_check.py", cluster.folder)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        rows = cluster.csv(
            *(f"learner,localhost,{port},,0,", f"learner,localhost,{free_port()},,,"),
            "actor,localhost,,/no/python,,5",
            columns="job,ip,tf_port,python,cuda_visible_devices,num_envs",
        )
        code, printed = cluster.run(rows, "--check", "--level_name=Pongg-v9", "--import=own_check")
        assert code == 1
        assert re.search(r"FAILED +games +.*/data/games.*\s+-> mount it: sudo mount", printed)
        assert re.search(r"FAILED +flags +.*Pongg-v9", printed)
        assert re.search(rf"FAILED +ports +row 2: localhost:{port}: .*\(held by pro", printed)
        assert "-> stop the process that uses it" in printed
        assert re.search(r"FAILED +versions +/no/python: ", printed)
        assert re.search(r"passed +disk +[\d,]+ GiB free", printed)
        if not shutil.which("nvidia-smi"):
            assert re.search(r"FAILED +GPUs +the CSV names GPU 0, but nvidia-smi is not", printed)
        code, printed = cluster.run(rows, "--level_name=catch", "--algorithm=ppo")
    assert code == 1
    printed = " ".join(printed.split())  # the table breaks lines
    assert "FAILED rounds row 4 (localhost), column num_envs: " in printed
    assert "each of 2 learners trains on rounds of its own actors" in printed
    assert "no process was started: fix the failed checks" in printed
    assert "passed disk" not in printed
    assert not cluster.state.exists()
    assert not (cluster.folder / "runs").exists()


def test_checks_run_after_the_set_up_commands_in_the_folder_of_the_processes(cluster):
    elsewhere = cluster.folder / "elsewhere"
    elsewhere.mkdir()
    learner = f"learner,localhost,{free_port()},{elsewhere}"
    rows = cluster.csv(learner, columns="job,ip,tf_port,workdir")
    setup = f'--setup=pwd > "{cluster.folder}/seen"; exit 3'
    code, printed = cluster.run(rows, "--check", setup, "--level_name=catch")
    assert code == 1
    assert re.search(r"FAILED +flags", printed)
    assert (cluster.folder / "seen").read_text() == f"{elsewhere}\n"


@pytest.mark.slow
def test_the_environment_is_among_the_checks_and_found_by_a_relative_pythonpath(cluster):
    """The processes run in another folder than the frontend, to which PYTHONPATH is relative."""
    elsewhere = cluster.folder / "elsewhere"
    elsewhere.mkdir()
    (cluster.folder / "helpers").symlink_to(ROOT / "tests" / "helpers")
    learner = f"learner,localhost,{free_port()},{elsewhere}"
    rows = cluster.csv(learner, columns="job,ip,tf_port,workdir")
    for bug, flag, expected, said in (
        ("ResetRaises", "--check_env_secs=2", 1, "ResetRaises-v0: reset raised KeyError: 'door'"),
        ("OutOfBounds", "--check_env_secs=2", 0, "OutOfBounds-v0: step 1 returned obs"),
        ("ResetRaises", "--check_env_secs=0", 0, "passed"),
    ):
        name = f"--level_name=faulty_levels:{bug}-v0"
        code, printed = cluster.run(rows, "--check", name, flag, PYTHONPATH="helpers")
        assert code == expected, printed
        assert said in printed


def test_two_learners_and_their_actors_reincarnate_a_teacher(cluster):
    rows = cluster.csv(*["learner,localhost"] * 2, "actor,localhost", columns="job,ip")
    teacher = ("--teacher=cartpole", "--mode=reincarnate", "--offline_updates=70")
    code, printed = cluster.ask(rows, "--dry_run", *teacher)
    assert code == 0, printed
    told = printed.split("experiment.py")[1:]
    assert [part.count("--job_name=learner") for part in told] == [1, 1, 0]
    for part in told:
        for flag in (*teacher, "--teacher_method=qdagger"):
            assert flag in part
