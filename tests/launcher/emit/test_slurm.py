"""The script of a Slurm job: what it asks for, and that each process is told what its row says."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from cluster import FRONTEND
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import ROOT, run
from supervising import until

from launcher.emit import slurm
from launcher.plan import project
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

EXPERIMENT = str(project.ROOT / "experiment.py")

STRANGE = "a 'b\" $(c); d*"
_TELLS = """\
import json, os, sys
print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))
"""


def _learner(port=8001, **more):
    return Worker(2, "learner", "localhost", tf_port=port, **more)


def _actor(**more):
    return Worker(3, "actor", "another", **more)


def _evaluator(**more):
    return Worker(4, "evaluator", "localhost", **more)


def _script(rows, flags=None, **config):
    return slurm.make_script("impala", rows, LauncherConfig(**config), flags or {})


def _header(script):
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


@pytest.fixture
def told(tmp_path):
    """(flags by name, folder, environment) of a process of a script; its Python is a stand-in."""
    python = tmp_path / "it's python"
    (tmp_path / "tells.py").write_text(_TELLS)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "{tmp_path}/tells.py" "$@"\n')
    python.chmod(0o755)
    logdir = tmp_path / STRANGE
    (logdir / "slurm").mkdir(parents=True)
    (logdir / "slurm" / "learner_hosts").write_text("a:1,b:2\n")

    def ask(job, number, rows, flags=None, **config):
        rows = [dataclasses.replace(row, python=row.python or str(python)) for row in rows]
        (logdir / "job.sh").write_text(_script(rows, flags, **config))
        env = {"SLURM_PROCID": str(number), "OF_USER": "yes"}
        code, printed = run("bash", logdir / "job.sh", job, logdir, **env)
        assert code == 0, printed
        (program, *arguments), folder, environment = json.loads(printed)
        assert program == EXPERIMENT
        return dict(a.removeprefix("--").split("=", 1) for a in arguments), folder, environment

    return ask


def test_learners_are_the_first_component_actors_and_evaluators_those_after_it():
    rows = [_actor(count=3), _learner(), _evaluator(), _learner(8002), _actor(count=2)]
    assert _header(_script(rows))[-7:] == [
        "#SBATCH --ntasks=2 --cpus-per-task=4",
        "#SBATCH hetjob",
        "#SBATCH --ntasks=5 --cpus-per-task=1",
        "#SBATCH --no-kill",
        "#SBATCH hetjob",
        "#SBATCH --ntasks=1 --cpus-per-task=1",
        "#SBATCH --no-kill",
    ]
    alone = _script([_learner()])
    assert "hetjob" not in " ".join(_header(alone))
    assert "#SBATCH --signal=B:USR1@120" in _header(alone)
    assert "#SBATCH --requeue" in _header(alone)


def test_gpus_are_counted_and_learners_that_want_fewer_are_noted():
    rows = [_learner(cuda_visible_devices="4,7"), _learner(cuda_visible_devices="0"), _actor()]
    assert _header(_script(rows))[5:7] == [
        "#SBATCH --ntasks=2 --cpus-per-task=4 --gpus-per-task=2",
        "#SBATCH hetjob",
    ]
    for none in ("-1", "NoDevFiles", ""):
        assert "gpus" not in _script([_learner(), _actor(cuda_visible_devices=none)])
    (note,) = slurm.list_notes(rows, LauncherConfig(), [])
    assert note.startswith("every learner gets 2 GPUs")
    assert "#SBATCH --ntasks=1 --cpus-per-task=12 --gpus-per-task=3 --mem-per-cpu=1366M" in _header(
        _script([_learner(cores=12, gpus=3, memory="16Gi"), _actor()])
    ), "by the columns for schedulers"


def test_no_two_learners_share_a_port_wherever_slurm_puts_them():
    rows = [_learner(port) for port in (0, 8001, 8001, 8002, 9000)]
    ports = slurm.choose_ports(rows)
    assert ports[-1] == 9000
    assert len({*ports}) == 5
    assert min(ports) == 8001


def test_a_folder_that_is_not_named_is_the_jobs_own_at_each_of_its_starts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert f'new_logdir={tmp_path}/runs/impala-"${{SLURM_JOB_ID:-}}"' in _script([_learner()])
    assert f"new_logdir={tmp_path}/mine\n" in _script([_learner()], {"logdir": "mine"})


def _share(tmp_path, security="none"):
    """Return a job's script, and a function that writes what the job's processes share."""
    learner = _learner(python=sys.executable, setup="cd /", workdir=str(tmp_path))
    flags = {"logdir": str(tmp_path / STRANGE), "transport_security": security}
    script = _script([learner, _actor()], flags)
    script = script[: script.rindex('if [ "$#" = 2 ]')]
    made = tmp_path / "made.sh"
    made.write_text(f"{script}\nlogdir=$new_logdir state=$new_logdir/slurm; share\n")
    call = ["bash", "-c", 'umask 0; exec bash "$0"', made]
    return script, lambda: subprocess.run(call, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("security", "parts"), [("auto", 5), ("none", 0)])
def test_a_job_makes_its_own_token_file_at_each_start(tmp_path, security, parts):
    script, share = _share(tmp_path, security)
    token, contents = tmp_path / STRANGE / "slurm" / "token", set()
    for _ in range(2):
        ran = share()
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        assert token.stat().st_mode & 0o777 == 0o600
        contents.add(token.read_text())
        assert token.read_text().count("-----END ") == parts
    assert len(contents) == 2
    assert not any(content.splitlines()[0] in script for content in contents)


def test_a_job_warns_of_a_folder_in_which_others_can_replace_its_script(tmp_path):
    """It makes none that they can write, whatever the user's umask is."""
    _, share = _share(tmp_path)
    folder = tmp_path / STRANGE
    for mode, warns in ((None, False), (0o775, True), (0o777, True), (0o1777, False)):
        if mode:
            folder.chmod(mode)
        ran = share()
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(f"warning: others can write {folder}, replace") == warns
        assert bool(ran.stdout) == warns


def test_every_process_has_what_its_row_says(told, tmp_path):
    rows = [
        _learner(),
        _learner(8002, setup="export MADE='by set up'", workdir=str(tmp_path)),
        _actor(count=2, num_envs=4),
        _actor(learner=1, setup="cd /"),
        _evaluator(),
    ]
    common = {"batch_size": "4", "learner_hosts": "a:1,b:2", "logdir": f"{tmp_path}/{STRANGE}"}
    common["token_file"] = f"{tmp_path}/{STRANGE}/slurm/token"
    flags, folder, environment = told(
        "learner", 1, rows, {"batch_size": "4"}, env=("A=b 'c",), setup="exit 9"
    )
    assert flags == common | {"job_name": "learner"}
    assert folder == str(tmp_path)
    assert (environment["MADE"], environment["A"]) == ("by set up", "b 'c")
    assert environment["OF_USER"] == "yes"
    assert told("learner", 0, rows)[1] == str(ROOT)


def test_an_actor_has_its_own_number_wherever_it_runs(tmp_path):
    """Its stand-in ends with 2, which is not started again; it says in its log what it was told."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 2\n')
    python.chmod(0o755)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "learner_hosts").write_text("a:1")
    rows = [_learner(), _actor(count=2, num_envs=4), _actor(learner=0)]
    rows = [dataclasses.replace(row, python=str(python)) for row in rows]
    (tmp_path / "job.sh").write_text(_script(rows, {"seed": "7"}))
    for number, own in enumerate(("--num_envs=4", "--num_envs=4", "--learner=0")):
        env = {"SLURM_PROCID": str(number), "SLURMD_NODENAME": "n7"}
        code, printed = run("bash", tmp_path / "job.sh", "actor", tmp_path, **env)
        log = tmp_path / f"actor-{number}.log"
        assert code == 2
        assert f"actor {number} on n7 exited with code 2; " in printed
        assert log.read_text() == (
            f"{EXPERIMENT} --seed=7 --job_name=actor {own} --learner_hosts=a:1 "
            f"--logdir={tmp_path} --token_file={tmp_path}/slurm/token --task={number}\n"
        )


def test_an_actor_that_dies_starts_again_until_it_is_told_to_end(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ -e died ] || { touch died; echo "died of it"; exit 1; }\n'
        'trap "echo asked; exit 0" USR1\necho up\nwhile :; do sleep 0.1; done\n'
    )
    python.chmod(0o755)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "learner_hosts").write_text("a:1")
    rows = [_learner(), _actor(python=str(python), workdir=str(tmp_path))]
    (tmp_path / "job.sh").write_text(_script(rows))
    process = subprocess.Popen(
        ["bash", tmp_path / "job.sh", "actor", tmp_path], stdout=subprocess.PIPE, text=True
    )
    log = tmp_path / "actor-0.log"
    try:
        until(lambda: log.exists() and "up" in log.read_text(), 20)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert log.read_text() == "died of it\nup\nasked\n"
    assert "exited with code 1; the last line of its log " in process.stdout.read()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\n"), max_size=30))
def test_strange_values_reach_a_process_as_they_are(told, value):
    flags, _, environment = told(
        "learner", 0, [_learner()], {"level_name": value}, env=(f"A={value}",)
    )
    assert (flags["level_name"], environment["A"]) == (value, value)


def test_what_may_be_secret_or_comes_from_the_shell_is_not_in_the_script(monkeypatch):
    monkeypatch.setenv("WORD", "hunter2")
    config = {"env": ("API_KEY=hunter2", "DB=postgres://u:hunter2@h", "A=1", "WORD")}
    script = _script([_learner(), _actor()], **config)
    assert "hunter2" not in script
    assert "export A=1\n" in script
    notes = slurm.list_notes([], LauncherConfig(**config), [])
    assert [note.split()[0] for note in notes] == ["--env=API_KEY", "--env=DB", "--env=WORD"]
    assert "\n  -x\n  WORD\n" in script, "mpirun passes it on"


def test_what_only_the_frontend_itself_does_is_noted():
    given = ["restart_learners", "seed", "mirror_logdir", "deploy", "orphan_secs"]
    notes = slurm.list_notes([_learner()], LauncherConfig(), given)
    noted = [note.partition(" is not used under Slurm")[0] for note in notes]
    assert noted == ["--restart_learners", "--orphan_secs", "--mirror_logdir", "--deploy"]


def test_the_frontend_prints_nothing_but_the_script(cluster):
    rows = cluster.csv(
        "learner,gpu1,8001,", "actor,far.example,8002,", columns="job,ip,tf_port,python"
    )
    ran = subprocess.run(
        [*FRONTEND, rows, "--emit=slurm", "--detach", "--level_name=catch", "--env=A_KEY=hunter2"],
        env=os.environ | cluster.environment,
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0
    assert ran.stdout.startswith("#!/bin/bash\n")
    assert "hunter2" not in ran.stdout + ran.stderr
    assert ran.stderr.count("note: ") == 3
    assert subprocess.run(["bash", "-n"], input=ran.stdout, text=True, check=False).returncode == 0
    assert not (cluster.folder / "runs").exists()
