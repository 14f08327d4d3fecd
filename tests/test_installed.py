"""The wheel, installed into an environment of its own, and used from an empty folder."""

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
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
    """Build the wheel and install it, with the dependencies of the tests' own environment."""
    folder = tmp_path_factory.mktemp("installed")
    uv = Path(sys.prefix) / "bin" / "uv"
    _run(uv, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    _run(uv, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    _run(uv, "pip", "install", "--python", python, "--no-deps", wheel)
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    (packages / "dependencies.pth").write_text(site.getsitepackages()[0])
    return folder / "venv" / "bin", wheel


def _run(*command, cwd=None, code=0):
    variables = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    ran = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=variables, timeout=280, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout
    return ran.stdout


def test_the_wheel_holds_the_programs_the_presets_and_what_other_hosts_need(environment):
    names = zipfile.ZipFile(environment[1]).namelist()
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
    commands, _ = environment
    said = _run(commands / "impala-mm", "--preset=catch-impala", "--max_seconds=3", cwd=tmp_path)
    assert "results: runs/catch-impala-" in said
    assert "usage: experiment.py [--name=value ...]" in _run(
        commands / "impala-mm", "--help", cwd=tmp_path
    )
    said = _run(commands / "impala-mm-cluster", "--level_name=catch", "--dry_run", cwd=tmp_path)
    assert f"{commands.parent}/lib/" in said
    assert "--job_name=actor --task=2" in said, "the example CSV"


def test_a_user_of_the_library_sees_no_file_of_the_clone(environment, tmp_path):
    code = (
        "import impala_mm; print(impala_mm.__file__, impala_mm.__version__);"
        "run = impala_mm.train('catch', num_actors=1, max_seconds=3).wait();"
        "print(impala_mm.evaluate(run.logdir, num_episodes=2).lengths)"
    )
    said = _run(environment[0] / "python", "-c", code, cwd=tmp_path)
    assert f"{environment[0].parent}/lib/" in said.splitlines()[0]
    assert "[9, 9]" in said.splitlines()[-1]


def test_a_host_gets_the_whole_project_from_an_installed_package(environment, tmp_path):
    host = tmp_path / "host"
    _run(environment[0] / "python", "-c", COPY, host, cwd=tmp_path)
    for name in ("docker/install.py", "constraints.lock", "pyproject.toml", "nets/__init__.py"):
        assert (host / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert not (host / "launcher" / "project").exists()
    _run(sys.executable, host / "docker" / "install.py", "--fits")
    said = _run(
        sys.executable, host / "experiment.py", "--level_name=catch", "--validate", cwd=host
    )
    assert said.startswith("valid: catch")


def test_horovod_is_built_by_the_installed_package(environment, tmp_path):
    said = _run(environment[0] / "impala-mm", "install-horovod", "--help", cwd=tmp_path)
    assert "--mpi" in said
