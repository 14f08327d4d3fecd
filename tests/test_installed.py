"""The wheel, installed into an environment of its own, and used from an empty folder."""

import re
import sys
import zipfile

import pytest
from processes import ROOT, run

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


def test_the_wheel_holds_the_programs_the_presets_and_what_other_hosts_need(package):
    names = zipfile.ZipFile(package.wheel).namelist()
    for name in (
        *("experiment.py", "run_experiment_mm_raw.py", "impala_mm/py.typed"),
        *("impala_mm/presets/mujoco-ppo.toml", "impala_mm/environments/atari/scores.csv"),
        *("launcher/plan/slurm_job.sh", "launcher/project/constraints.lock"),
        *("launcher/project/docker/install.py", "launcher/project/docker/sshd_config"),
        *("launcher/project/workers.csv.example", "launcher/project/setup.py"),
    ):
        assert name in names
    assert not any(name.startswith(("tests", "sandbox")) or ".pyc" in name for name in names)


def test_the_commands_train_and_follow_a_cluster(package, tmp_path):
    said = package.run("impala-mm", "--preset=catch-impala", "--max_seconds=3", cwd=tmp_path)
    assert "results: runs/catch-impala-" in said
    said = package.run("impala-mm-cluster", "--level_name=catch", "--dry_run", cwd=tmp_path)
    assert f"{package.commands.parent}/lib/" in said
    assert "--job_name=actor --task=2" in said, "the example CSV"


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


def test_horovod_is_built_by_the_installed_package(package):
    assert "--mpi" in package.run("impala-mm", "install-horovod", "--help")
