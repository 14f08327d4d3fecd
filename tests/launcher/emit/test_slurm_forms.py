"""Slurm jobs in containers, on one node, and of an experiment, with a stand-in for srun.

The stand-in writes down its arguments and runs the command as often as the step has tasks. Real
jobs are in tests/test_slurm_job.py.
"""

import json
import os
import sys
from types import SimpleNamespace

import pytest
from cluster import FRONTEND
from processes import ROOT, run

from launcher.emit import slurm
from launcher.plan.process_plan import PlanError
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from sandbox.results import experiment_report

_SRUN = """\
#!{python}
import json, os, signal, subprocess, sys
arguments = sys.argv[1:]
if arguments == ["--mpi=list"]:
    sys.exit(print("none", os.environ.get("PMIX", "")))
words = []
while arguments and arguments[0].startswith("-"):
    words.append(arguments.pop(0))
with open(os.environ["STEPS"], "a") as steps:
    steps.write(json.dumps([words, arguments]) + "\\n")
tasks = [word.split("=")[1] for word in words if word.startswith("--ntasks=")]
tasks = int(tasks[-1]) if tasks else 1
env = os.environ | {{"SLURMD_NODENAME": "n1", "SLURM_NTASKS": str(tasks)}}
started = [subprocess.Popen(arguments, env=env | {{"SLURM_PROCID": str(i)}}) for i in range(tasks)]
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [each.send_signal(number) for each in started])
sys.exit(max(each.wait() for each in started))
"""
# What stands in for Python: a learner ends once all actors are there, an actor waits to be told to
# end, -c runs for real.
_PYTHON = """\
#!/bin/bash
[ "$1" != -c ] || exec {python} "$@"
echo "$SLURM_PROCID $@" >> "$TOLD"
case "$*" in
  *--job_name=learner*)
    until [ "$(grep -c job_name=actor "$TOLD")" = "$ACTORS" ]; do sleep 0.05; done ;;
  *--job_name=actor*) trap 'exit 0' USR1 TERM; while :; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that runs a script as the first node of a job, and what it did."""
    programs = {
        "srun": _SRUN.format(python=sys.executable),
        "scontrol": "#!/bin/sh\necho NodeName=n1 NodeAddr=10.0.0.1 \n",
        "python": _PYTHON.format(python=sys.executable),
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "workers.csv").write_text(
        f"job,ip,python,workdir,count\nlearner,here,{tmp_path}/python,{ROOT},\n"
        f"actor,here,{tmp_path}/python,{ROOT},3\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rows = "--workers_csv_path=workers.csv"

    def emit(*flags):
        code, text = run(*FRONTEND, "--emit=slurm", rows, *flags, cwd=tmp_path)
        return code, text

    def run_script(text, **env):
        (tmp_path / "job.sh").write_text(text)
        log = {"STEPS": str(tmp_path / "steps"), "TOLD": str(tmp_path / "told")}
        code, printed = run(
            "bash", tmp_path / "job.sh", **{"SLURM_JOB_ID": "7", "ACTORS": "3"} | log | env
        )
        steps = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
        told = (tmp_path / "told").read_text().splitlines()
        for name in ("steps", "told"):
            (tmp_path / name).unlink()
        return SimpleNamespace(code=code, printed=printed, steps=steps, told=sorted(told))

    return SimpleNamespace(emit=emit, run=run_script, folder=tmp_path)


def _header(script):
    return [line for line in script.splitlines() if line.startswith("#SBATCH --n")]


def test_a_csv_with_one_host_is_a_job_on_one_node_whose_processes_share_it(job):
    code, script = job.emit("--logdir=run")
    assert code == 0, script
    assert _header(script) == ["#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=7"]
    assert "hetjob" not in script
    needs = [
        Worker(2, "learner", "a", gpus=2, memory="16Gi"),
        Worker(3, "actor", "a", count=3, gpus=1, memory="1Gi"),
    ]
    asked = slurm.make_script("impala", needs, LauncherConfig(), {})
    assert _header(asked) == [
        "#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=7 --gpus=5 --mem=19456M"
    ]
    ran = job.run(script)
    assert ran.code == 0, ran.printed
    logdir = job.folder / "run"
    assert [line.split()[0] for line in ran.told] == ["0", "0", "1", "2"]
    assert all("--learner_hosts=10.0.0.1:8001 " in line for line in ran.told)
    _, actors, learners = sorted(ran.steps, key=lambda step: step[1][-2:])
    assert learners[1][-2:] == ["learner", str(logdir)]
    assert {"--ntasks=1", "--overlap"} <= {*learners[0]}
    assert {"--ntasks=3", "--overlap"} <= {*actors[0]}
    assert "container" not in str(ran.steps)


def test_learners_and_actors_in_containers(job):
    flags = ("--container_image=hub#learner:1", "--container_mounts=/data:/data:ro")
    code, script = job.emit("--logdir=run", *flags, "--container_image=actor=/a.sqsh")
    assert code == 0, script
    ran = job.run(script)
    assert ran.code == 0, ran.printed
    logdir = job.folder / "run"
    mounts = f"--container-mounts={logdir}:{logdir},/data:/data:ro"
    images = []
    for words, command in ran.steps:
        image = [word.partition("=")[2] for word in words if word.startswith("--container-image=")]
        images.append((command[0] if command[1] == "-c" else command[2], *image))
        assert (mounts in words) == bool(image)
        assert ("--no-container-entrypoint" in words) == bool(image)
    assert sorted(images) == [
        (f"{job.folder}/python", "hub#learner:1"),  # makes the token where the project is
        ("actor", "/a.sqsh"),
        ("bash",),  # asks for the nodes' names
        ("learner", "hub#learner:1"),
    ]
    # Rows without a Python of their own use that of the image.
    (job.folder / "workers.csv").write_text("job,ip\nlearner,a\nlearner,b\nactor,c\n")
    script = job.emit("--logdir=run", *flags)[1]
    assert "cd -- /opt/impala_mm || exit 2\n    command=(/opt/impala_mm/.venv/bin/python" in script
    assert "#SBATCH hetjob" in script
    # Several learners of which each is in a container are started by srun alone.
    (job.folder / "workers.csv").write_text(
        "job,ip,python,workdir\n" + f"learner,a,{job.folder}/python,{ROOT}\n" * 2
    )
    script = job.emit("--logdir=run", *flags)[1]
    ran = job.run(script, PMIX="pmix", ACTORS="0")
    assert ran.code == 0
    assert "--mpi=pmix" in ran.steps[-1][0]
    (job.folder / "told").touch()
    ran = job.run(script)
    assert ran.code == 1
    assert "several learners in containers need srun with PMIx" in ran.printed


_SWEEP = """\
level_name = "catch"
[axes]
seed = [1, 2]
learning_rate = [0.001, 0.01]
[search]
at_once = 2
"""


def test_an_experiment_is_an_array_whose_jobs_are_its_trials(job):
    (job.folder / "sweep.toml").write_text(_SWEEP)
    flags = ("--experiment=sweep.toml", "--mirror=s3://bucket/sweep")
    code, script = job.emit(*flags)
    assert code == 0, script
    assert "#SBATCH --array=0,1,2,3%2\n" in script
    folder = job.folder / "runs" / "sweep"
    told = {}
    for number in (2, 3):
        trial = folder / "trials" / f"{number:03d}"
        row = {"frames": 100.0 + number, "seconds": 9, "episode_return": 2.0 * number}
        (trial / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        own = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_JOB_ID": str(70 + number)}
        ran = job.run(script, ACTORS="2", **own)
        assert ran.code == 0, ran.printed
        told[number] = ran.told
        assert all(f"--config={trial}/trial.toml" in line for line in ran.told)
        assert all(f"--logdir={trial} " in line for line in ran.told)
    ports = [line.split("--learner_hosts=10.0.0.1:")[1].split()[0] for line, *_ in told.values()]
    assert len(set(ports)) == 2, "two trials may be on one node"
    text = (folder / "trials" / "003" / "trial.toml").read_text()
    assert "seed = 2 " in text
    assert "learning_rate = 0.01 " in text
    assert 'mirror = "s3://bucket/sweep/trials/003" ' in text
    # The report reads them, and the same command makes an array of the rest.
    trials = experiment_report._read_trials(folder)
    assert [trials[name]["state"] for name in trials] == ["asked", "asked", "ended", "ended"]
    assert (trials["002"]["score"], trials["002"]["frames"]) == (4.0, 102.0)
    assert trials["002"]["values"] == {"seed": 2, "learning_rate": 0.001}
    assert "#SBATCH --array=0,1%2\n" in job.emit(*flags)[1]


def test_what_no_array_can_do_is_one_sentence(job):
    sweep = job.folder / "sweep.toml"
    sweep.write_text(_SWEEP + 'kind = "population"\n[needs]\nactors = 9\n')
    assert "population" in job.emit("--experiment=sweep.toml")[1]
    sweep.write_text(_SWEEP + "[needs]\nactors = 9\n")
    code, printed = job.emit("--experiment=sweep.toml")
    assert code == 2
    assert "a trial needs 9 actors, and the CSV has 3" in printed


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (["impala_mm-learner"], "write the image in small letters, and with its tag"),
        (["hub:5000/impala_mm-learner"], "write the image in small letters, and with its tag"),
        (["learner=a.sqsh"], "write the image in small letters, and with its tag"),
        (["actor=a:1"], "name the image of learners"),
    ],
)
def test_images_that_are_refused(images, why):
    config = LauncherConfig(container_image=images)
    with pytest.raises(PlanError, match=why):
        slurm.make_script("impala", [Worker(2, "learner", "here")], config, {})


def test_mounts_that_are_refused(job):
    code, printed = job.emit("--container_image=a:1", "--container_mounts=/data:/data,data:/data")
    assert code == 2
    assert "data:/data is not SOURCE:TARGET" in printed
